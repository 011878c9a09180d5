"""Figures of the concepts lab: the symmetric two-layer flow."""

from typing import Any, Literal

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, INK, MEASURED, THEORY, look, sheet

THIN: dict[str, Any] = {**THEORY, "linewidth": 1}
"""Keywords of a theory curve that must not hide the measured one."""


def describe(axis: Axes, title: str, x: str, y: str, log: str = "", **more: Any) -> None:  # as `Axes.set` takes them
    """Title and labels of an axis; `log` names the logarithmic directions, such as "xy"."""
    axis.set(title=title, xlabel=x, ylabel=y, **{f"{direction}scale": "log" for direction in log}, **more)


def stage_plot(trajectory: xr.Dataset) -> Figure:
    """Test loss and entries of W over time with predicted events, and the output's path, for one start."""
    from_deepest = trajectory.isel(seed=_deepest(trajectory["test_loss"].transpose("time", "seed").values))
    one, clock = from_deepest, trajectory["time"].values
    jacobian = one["jacobian"].transpose("time", "row", "column").values
    with look():
        figure, axes = sheet(2, 2, 11.5, 7.0, width_ratios=[1.5, 1])
        top, bottom, path, share = axes[0, 0], axes[1, 0], axes[0, 1], axes[1, 1]
        top.plot(clock, one["test_loss"], color=INK, **MEASURED)
        top.set(ylabel="test loss", title="Test loss", ylim=(0, None))
        _events(bottom, one["event_predicted"].transpose("row", "column").values, names=False)
        _entries(bottom, clock, jacobian)
        bottom.set(xlabel="gradient time", ylabel="entry of W", title="Jacobian, with the predicted events")
        _events(top, one["event_predicted"].transpose("row", "column").values)
        top.legend(fontsize=8, loc="upper center")
        path.plot(*one["output"].transpose("time", "coordinate").values.T[:2], color=COLOURS[0], **MEASURED)
        path.plot(*one["target"].values[:2], "*", color=INK, markersize=13)
        path.set(xlabel="output, concept 1", ylabel="output, concept 2", title="Output at the test point")
        names = ("major_growth", "minor_growth", "suppressed")
        labels = ("major entries grow", "minor entries grow", "entries shrink")
        for name, label, colour in zip(names, labels, COLOURS, strict=False):
            share.plot(clock, one[name], color=colour, label=label, **MEASURED)
        share.plot(clock, one["test_loss"] - one["test_loss"][0], label="test loss", **THEORY)
        share.set(xlabel="gradient time", ylabel="change of the test loss", title="Who changes the test loss")
        share.legend(fontsize=8, loc="center right")
        below = np.flatnonzero(one["test_loss"].values < 1e-3 * one["test_loss"].values[0])
        learned = clock[below[0] if len(below) else -1]
        for axis in (top, bottom, share):
            axis.set_xlim(0, learned)
    return figure


def _deepest(loss: np.ndarray) -> int:
    scaled = loss / loss[0]
    return int(np.argmax((scaled - np.minimum.accumulate(scaled, axis=0)).max(axis=0)))


def _entries(
    axis: Axes,
    clock: np.ndarray,
    jacobian: np.ndarray,
    place: Literal["center left", "center right"] = "center right",
    columns: int = 2,
) -> None:
    size = jacobian.shape[1]
    for p in range(size):
        axis.plot(clock, jacobian[:, p, p], color=COLOURS[p], label=f"w{_low(p + 1)}{_low(p + 1)}", **MEASURED)
    styles = iter([":", "--", "-.", (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (5, 1))] * 3)
    for p in range(size):
        for j in range(p):
            axis.plot(
                clock, jacobian[:, p, j], color=GREY, linestyle=next(styles), label=f"w{_low(p + 1)}{_low(j + 1)}"
            )
    axis.legend(fontsize=8, ncols=columns if size > 2 else 1, loc=place, frameon=True, edgecolor="none", framealpha=0.9)


def _low(number: int) -> str:
    return "₀₁₂₃₄₅₆₇₈₉"[number]


def _events(axis: Axes, grid: np.ndarray, names: bool = True) -> None:
    for i, row in enumerate(grid):
        for j, at in enumerate(row):
            if not np.isfinite(at):
                continue
            words = f"w{_low(i + 1)}{_low(j + 1)} {'grows' if i == j else 'is suppressed'}, predicted"
            colour, line = (COLOURS[i], "-") if i == j else (GREY, ":")
            axis.axvline(at, linewidth=1, label=words if names else None, color=colour, linestyle=line)


def search(trajectory: xr.Dataset) -> Figure:
    """The best example (loss and Jacobian on a log clock), and how often that many descents occur."""
    clock = trajectory["time"].values
    shown = clock > 0
    jacobian = trajectory["jacobian"].transpose("time", "row", "column").values
    wanted, starts = int(trajectory.attrs["wanted"]), int(trajectory.attrs["starts"])
    with look():
        figure, axes = sheet(2, 2, 12, 7.0, width_ratios=[1.5, 1])
        (top, bars), (bottom, counts) = axes
        top.plot(clock[shown], trajectory["test_loss"].values[shown], color=INK, **MEASURED)
        describe(top, f"Test loss of the best start found ({trajectory.attrs['example']})", "", "test loss", log="x")
        _entries(bottom, clock[shown], jacobian[shown], "center left")
        bottom.set(xscale="log", xlabel="gradient time", ylabel="entry of W", title="Its Jacobian")
        end = clock[np.flatnonzero(trajectory["test_loss"].values > 1e-3 * trajectory["test_loss"].values[0])[-1]]
        for axis in (top, bottom):
            axis.set_xlim(clock[1], 1.5 * end)
        draws = [str(name) for name in trajectory["draw"].values]
        cases = [(1, 0.01), (1, 0.001), (2, 0.01), (2, 0.001)]
        for k, (power, prominence) in enumerate(cases):
            values = 100 * trajectory["fraction"].sel(power=power, prominence=prominence).values
            places = np.arange(len(draws)) + 0.2 * (k - 1.5)
            label = f"{'A' if power == 1 else 'A², the authors’ scripts'}, prominence {100 * prominence:g} %"
            drawn = bars.bar(places, values, 0.19, color=COLOURS[k], label=label)
            bars.bar_label(drawn, [f"{v:.2g}" for v in values], fontsize=7, padding=1)
        describe(bars, f"At least {wanted} descents, {starts} starts each", "", "% of starts", xticks=range(len(draws)))
        bars.set_xticklabels(draws, fontsize=8)
        bars.legend(fontsize=7.5)
        bars.margins(y=0.25)
        numbers = trajectory["descents"].values
        for k, name in enumerate(draws):
            values = 100 * trajectory["histogram"].sel(power=1, prominence=0.01).isel(draw=k).values
            counts.plot(numbers, np.where(values > 0, values, np.nan), "o-", color=COLOURS[k], label=name)
        describe(counts, "How many descents", "descents (A, prominence 1 %)", "% of starts", log="y", xticks=numbers)
        counts.legend(fontsize=8)
    return figure


def failure_plot(trajectory: xr.Dataset) -> Figure:
    """Entries of W to the horizon and beyond, from full rank and from rank two; predicted against seen times."""
    clock, horizon = trajectory["time"].values, float(trajectory.attrs["horizon"])
    with look():
        figure, (axes,) = sheet(1, 3, 15, 4.4)
        for axis, rank in zip(axes, (3, 2), strict=False):
            one = trajectory.sel(rank=rank)
            _entries(axis, clock[1:], one["jacobian"].transpose("time", "row", "column").values[1:], columns=1)
            axis.axvline(horizon, color=INK, linewidth=1)
            axis.annotate(
                "horizon", (horizon, 0.3), xycoords=("data", "axes fraction"), xytext=(3, 0), rotation=90, fontsize=8,
                textcoords="offset points",
            )  # fmt: skip
            for p, at in enumerate(one["said_time"].isel(run=0).values):
                if np.isfinite(at):
                    axis.axvline(at, color=COLOURS[p], linewidth=1, linestyle=(0, (4, 2)))
            title = "W(0) of full rank: lost only within the horizon" if rank == 3 else "W(0) of rank 2: lost for ever"
            describe(
                axis,
                title,
                "gradient time (dashed: predicted growth)",
                "entry of W",
                log="x",
                xlim=(clock[1], clock[-1]),
            )
        said = trajectory["said_time"].sel(rank=3).transpose("run", "coordinate").values
        major = trajectory["major"].sel(rank=3).transpose("time", "run", "coordinate").values
        for p in range(said.shape[1]):
            up = major[:, :, p] >= 0.5
            seen = np.where(up.any(axis=0), clock[np.argmax(up, axis=0)], np.nan)
            axes[2].plot(said[:, p], seen, ".", color=COLOURS[p], markersize=4, label=f"concept {p + 1}")
        ends = np.array([np.nanmin(said) * 0.8, np.nanmax(said[np.isfinite(said)]) * 1.2])
        axes[2].plot(ends, ends, **THIN)
        describe(
            axes[2],
            f"{said.shape[0]} starts of full rank",
            "predicted time of growth (gradient time)",
            "time at which the entry is ½ (gradient time)",
            log="xy",
        )
        axes[2].legend()
    return figure


def breakdown(trajectory: xr.Dataset) -> Figure:
    """Depth of transient memorisation against the hidden width, and test losses of the narrowest and widest."""
    widths = trajectory["width"].values
    clock = trajectory["time"].values
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.2)
        depth, twice = (trajectory[name].transpose("width", "seed").values for name in ("depth", "twice"))
        means = [np.where(v.mean(axis=1) > 0, v.mean(axis=1), np.nan) for v in (depth, twice)]
        depth = np.where(depth > 0, depth, np.nan)
        axes[0].plot(widths, 100 * depth, "o-", color=COLOURS[0], alpha=0.5, linewidth=1)
        label = "mean depth, % of the first loss"
        axes[0].plot(widths, 100 * means[0], "o", color=COLOURS[0], label=label, **MEASURED)
        axes[0].plot(widths, 100 * means[1], "s--", color=COLOURS[1], label="starts with two descents, %")
        describe(
            axes[0],
            f"Transient memorisation, d'τ² = {trajectory.attrs['scale']:g}",
            "hidden width d' (none beyond the lines)",
            "%",
            log="xy",
        )
        axes[0].set_xticks(widths, [str(w) for w in widths])
        axes[0].minorticks_off()
        axes[0].legend()
        for axis, k in ((axes[1], 0), (axes[2], -1)):
            loss = trajectory["test_loss"].isel(width=k).transpose("time", "run").values
            axis.plot(clock[1:], loss[1:] / loss[0], color=COLOURS[0], linewidth=1, alpha=0.7)
            describe(
                axis,
                f"Twelve starts, d' = {widths[k]}",
                "gradient time",
                "test loss / its start",
                log="x",
                ylim=(0, None),
            )
    return figure


def pivot_law(trajectory: xr.Dataset) -> Figure:
    """Predicted against measured times of growth, the error's distribution, and the verdicts within a horizon."""
    trajectory = trajectory.isel(time=0)
    measured, greedy, signal = (trajectory[name].values for name in ("measured", "greedy", "signal"))
    scale = np.broadcast_to(trajectory["scale"].values[:, None], measured.shape)
    real, horizon = trajectory["strength"].notnull().values, trajectory["horizon"].values[:, None]
    lost = ~(measured <= horizon) & real
    with look():
        figure, (axes,) = sheet(1, 3, 14.5, 4.4)
        for k, (value, name) in enumerate(((0.0, "uniform [0, 0.2]"), (0.1, "Gaussian 0.1"), (0.01, "Gaussian 0.01"))):
            here = real & (scale == value) & np.isfinite(measured)
            axes[0].plot(greedy[here], measured[here], ".", markersize=3, alpha=0.5, color=COLOURS[k], label=name)
        top = float(np.nanmax(measured))
        axes[0].plot([0, top], [0, top], **THIN)
        describe(axes[0], "Time of growth", "predicted: log(1/S) / 4a", "measured: w passes ½", xlim=(0, 1.1 * top))
        axes[0].legend(markerscale=3)
        for values, name, colour in ((greedy, "greedy order", COLOURS[0]), (signal, "order of a", COLOURS[1])):
            error = np.sort(np.abs(values[real] / measured[real] - 1))
            error = error[np.isfinite(error)]
            label = f"{name}: median {100 * np.median(error):.1f} %"
            axes[1].plot(100 * error, np.linspace(0, 100, len(error)), color=colour, label=label, **MEASURED)
        axes[1].set(xscale="log", xlabel="relative error, %", ylabel="% of concepts below", title="Error of the law")
        axes[1].legend(loc="upper left")
        said = (greedy > horizon) & real
        right, named = (said.any(1) == lost.any(1)).mean(), (said == lost).all(1).mean()
        margin = np.abs(np.log(np.where(real, greedy, np.nan) / horizon))
        nearest = np.nanmin(np.where(np.isfinite(margin), margin, np.nan), axis=1)
        wrong = (said != lost).any(1)
        bins = np.geomspace(1e-3, 5, 24)
        labels = [f"right: {100 * named:.1f} % name all, {100 * right:.1f} % whether", "wrong"]
        axes[2].hist(
            [nearest[~wrong], nearest[wrong]], bins=bins, stacked=True, color=[COLOURS[2], COLOURS[3]], label=labels
        )
        describe(
            axes[2],
            f"Failure within a horizon: {100 * lost.any(1).mean():.0f} % fail",
            "|log(predicted time / horizon)| of the nearest concept",
            "instances",
            log="x",
        )
        axes[2].legend(loc="upper left")
        axes[2].margins(y=0.25)
    return figure


def lemma_table(trajectory: xr.Dataset) -> Figure:
    """Margins of the lemmas over instances, where D.3 fails, and the least constants at realistic scales."""
    lemmas = [str(name) for name in trajectory["lemma"].values]
    margin = trajectory["margin"].isel(time=0).transpose("run", "lemma").values
    with look():
        figure, (axes,) = sheet(1, 3, 15, 4.6)
        holds = 100 * (margin >= -1e-6).mean(axis=0)
        drawn = axes[0].bar(range(len(lemmas)), holds, color=[COLOURS[2] if h == 100 else COLOURS[3] for h in holds])
        axes[0].bar_label(drawn, [f"{h:.3g}" for h in holds], fontsize=8)
        describe(
            axes[0],
            f"{len(margin)} instances that meet D.1 to D.5",
            "",
            "% of instances in which it holds",
            ylim=(0, 112),
            xticks=range(len(lemmas)),
        )
        axes[0].set_xticklabels(lemmas)
        third = np.maximum(margin[:, lemmas.index("D.3")], -6)
        axes[1].plot(trajectory["correlation"], third, ".", color=COLOURS[0], markersize=4)
        axes[1].axhline(0, color=INK, linewidth=1)
        describe(
            axes[1],
            "Lemma D.3 fails where W(0) is correlated",
            "largest |correlation| in W(0)",
            "margin of lemma D.3 (log, cut at −6)",
        )
        constants = [str(name) for name in trajectory["constant"].values]
        for k, name in enumerate(trajectory["draw"].values):
            values = trajectory["least"].isel(draw=k).transpose("start", "constant").values
            share = np.isfinite(values).mean(axis=0)
            place = np.arange(len(constants)) + 0.22 * (k - 1)
            for x, column in zip(place, values.T, strict=True):
                real = column[np.isfinite(column)]
                if len(real):
                    axes[2].vlines(x, real.min(), real.max(), color=COLOURS[k], linewidth=1)
                    axes[2].plot(x, np.median(real), "o", color=COLOURS[k])
            axes[2].plot([], [], "o", color=COLOURS[k], label=str(name))
            for x, part in zip(place, share, strict=True):
                if part < 1:
                    axes[2].annotate(
                        f"∞ in {100 * (1 - part):.0f} %", (x, 1), xycoords=("data", "axes fraction"), fontsize=7,
                        rotation=90, va="top", ha="center", color=COLOURS[k],
                    )  # fmt: skip
        axes[2].set(yscale="log", xticks=range(len(constants)), title="Least constants that hold, figure 10's task")
        axes[2].set_xticklabels(constants, fontsize=8)
        axes[2].legend(fontsize=8, loc="center", bbox_to_anchor=(0.66, 0.6))
    return figure
