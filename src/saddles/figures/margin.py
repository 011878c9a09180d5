"""Figures of the margin lab."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, INK, MEASURED, THEORY, look, sheet

NORM = "norm of the weights"


def _middle(values: np.ndarray) -> np.ndarray:
    """The median of each row, NaN where no instance has a number."""
    found = np.full(len(values), np.nan)
    seen = np.isfinite(values).any(axis=1)
    found[seen] = np.nanmedian(values[seen], axis=1)
    return found


def _norms(trajectory: xr.Dataset) -> np.ndarray:
    return 10.0 ** trajectory["time"].values


def _bundle(axis: Axes, x: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Every instance as a thin line, their median as a thick one; x is shared, or has one column per instance."""
    many = x[:, None].repeat(values.shape[1], axis=1) if x.ndim == 1 else x
    axis.plot(many, values, color=colour, linewidth=0.6, alpha=0.3)
    axis.plot(_middle(many), _middle(values), color=colour, label=label, **MEASURED)


def _band(axis: Axes, x: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """The median over instances, and where the middle eight of ten lie."""
    seen = np.isfinite(values).any(axis=1)
    low, middle, high = np.nanpercentile(values[seen], [10, 50, 90], axis=1)
    axis.fill_between(x[seen], low, high, color=colour, alpha=0.18, linewidth=0)
    axis.plot(x[seen], middle, color=colour, label=label, **MEASURED)


def diagonal(trajectory: xr.Dataset) -> Figure:
    """Excess over the linear program against the norm, against log t, and its distribution."""
    norms, excess = _norms(trajectory), 100 * trajectory["excess"].values
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 14, 4.3)
        _bundle(left, norms, excess, COLOURS[0], "gradient flow: instances, median")
        left.axhline(1.0, label="1 %", **THEORY)
        left.set(xscale="log", yscale="log", xlabel="|β|₂", ylabel="ℓ1 norm at unit margin above the optimum, %",
                 title="Excess falls as the weights grow", ylim=(1e-2, 1e3))  # fmt: skip
        left.legend(loc="lower left")
        late = trajectory["time"].values >= 2
        clock = trajectory["log_time"].values[late]
        _bundle(middle, clock, excess[late], COLOURS[0], "instances, median")
        _power(middle, _middle(clock), _middle(excess[late]))
        middle.set(xscale="log", yscale="log", xlabel="log t, t the gradient time", ylabel="excess, %",
                   title="… like a power of log t")  # fmt: skip
        middle.legend(loc="lower left")
        marks = [mark for mark in (1e3, 1e5, 1e7) if mark <= norms[-1] * 1.01]
        for colour, mark in zip((COLOURS[1], COLOURS[0], COLOURS[2]), marks, strict=False):
            values = np.sort(excess[int(np.argmin(np.abs(norms - mark)))])
            right.step(values, np.arange(1, len(values) + 1) / len(values), color=colour, where="post",
                       label=f"|β| = {mark:.0e}", linewidth=2)  # fmt: skip
        right.set(
            xscale="log",
            xlabel="excess, %",
            ylabel="share of instances below",
            title="Over all instances",
            ylim=(0, 1.02),
        )
        right.legend(loc="upper left")
    return figure


def _power(axis: Axes, clock: np.ndarray, values: np.ndarray) -> None:
    fine = np.isfinite(clock) & np.isfinite(values) & (clock > 0) & (values > 0)
    if fine.sum() < 3:
        return
    slope, start = np.polyfit(np.log(clock[fine]), np.log(values[fine]), 1)
    axis.plot(clock[fine], np.exp(start) * clock[fine] ** slope, label=f"fit ∝ (log t)^{slope:.2f}", **THEORY)


def kkt(trajectory: xr.Dataset) -> Figure:
    """Residuals with the proof's multipliers (left) and with dual feasible ones (right)."""
    norms = _norms(trajectory)
    with look():
        figure, ((left, right),) = sheet(1, 2, 12, 4.4, sharey=True)
        words = {"stationarity": COLOURS[0], "slackness": COLOURS[1]}
        for axis, kind in ((left, "kkt"), (right, "dual")):
            for word, colour in words.items():
                _band(axis, norms, trajectory[f"{kind}_{word}"].values, colour, word)
        _band(right, norms, trajectory["certified_gap"].values, COLOURS[2], "certified gap")
        scale = np.log(trajectory["margin"].values)
        _band(
            left, norms, trajectory["support_stationarity"].values, COLOURS[3], "stationarity on the solution's support"
        )
        left.plot(norms, _middle(trajectory["level"].values / scale), label="D/ln μ", **THEORY)
        left.set(
            xscale="log",
            yscale="log",
            xlabel="|β|₂",
            ylabel="residual (median, middle 80 %)",
            title="Multipliers of the proof, φ/ln μ",
        )
        right.set(xscale="log", xlabel="|β|₂", title="Dual feasible multipliers, φ/‖Bφ‖∞")
        left.legend(loc="lower left")
        right.legend(loc="lower left")
    return figure


def aligned(trajectory: xr.Dataset) -> Figure:
    """Diagonal of U_KᵀWU_Q at unit margin, excess over the closed form, alignment defect."""
    norms = _norms(trajectory)
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 14, 4.3)
        one = trajectory.isel(instance=0)
        for k in range(trajectory.sizes["coordinate"]):
            colour = COLOURS[k % 6] if abs(one["goal"].values[k]) > 1e-12 else GREY
            left.plot(norms, one["entry"].values[:, k], color=colour, linewidth=1.8)
            left.axhline(one["goal"].values[k], **THEORY | {"linewidth": 0.9})
        left.plot([], [], color=COLOURS[0], linewidth=1.8, label="gradient flow")
        left.plot([], [], **THEORY, label="closed form, 1/((1 − c) r s) or 0")
        largest = 1.6 * float(np.abs(one["goal"].values).max())
        left.set(xscale="log", xlabel=NORM, ylabel="diagonal of U_KᵀWU_Q / μ", title="Singular values find their place",
                 ylim=(-0.1 * largest, largest))  # fmt: skip
        left.legend(loc="upper right")
        _bundle(middle, norms, 100 * np.maximum(trajectory["excess"].values, 1e-16), COLOURS[0], "instances, median")
        middle.set(
            xscale="log",
            yscale="log",
            xlabel=NORM,
            ylabel="above the closed form, %",
            title="Nuclear norm at unit margin",
        )
        middle.legend(loc="lower left")
        _bundle(right, norms, np.maximum(trajectory["defect"].values, 1e-18), COLOURS[3], "instances, median")
        right.axhline(1e-8, label="asked for", **THEORY)
        right.set(
            xscale="log",
            yscale="log",
            xlabel=NORM,
            ylabel="share of W off the diagonal of U_KᵀWU_Q",
            title="Alignment (Lemma 5.1)",
        )
        right.legend(loc="center left")
    return figure


def _both(axis: Axes, trajectory: xr.Dataset, norm: str, words: str) -> None:
    for who, colour in (("factored", COLOURS[0]), ("joint", COLOURS[1])):
        values = 100 * trajectory[f"{who}_{norm}"].values
        _band(
            axis,
            _norms(trajectory),
            np.maximum(values, 1e-4),
            colour,
            {"factored": "K and Q apart", "joint": "one matrix W"}[who],
        )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="‖W‖, Frobenius",
        ylabel="above its optimum, % (median, middle 80 %)",
        title=f"{words} at unit margin",
    )
    axis.legend(loc="lower left")


def general(trajectory: xr.Dataset) -> Figure:
    """Both norms of both parametrisations, ranks, and the arms where the expectation fails."""
    with look():
        figure, ((a, b), (c, d)) = sheet(2, 2, 12, 8.2)
        _both(a, trajectory, "nuclear", "Nuclear norm")
        _both(b, trajectory, "frobenius", "Frobenius norm")
        ranks = [trajectory[f"{who}_rank"].values for who in ("factored", "joint", "solution")]
        bins = np.arange(0.5, max(row.max() for row in ranks) + 1.5)
        words = ("K and Q apart", "one matrix W", "nuclear optimum")
        for row, word, colour, shift in zip(
            ranks, words, (COLOURS[0], COLOURS[1], INK), (-0.27, 0.0, 0.27), strict=True
        ):
            heights = np.histogram(row, bins)[0]
            c.bar(0.5 * (bins[1:] + bins[:-1]) + shift, heights, width=0.25, color=colour, label=word)
        c.set_xticks(np.arange(1, bins[-1]))
        c.set(xlabel="singular values above 1 % of the largest", ylabel="instances", title="Rank at the last norm")
        c.set_ylim(top=1.3 * c.get_ylim()[1])
        c.legend(loc="upper left", ncols=3, fontsize=8)
        _arms(d, trajectory)
    return figure


def _arms(axis: Axes, trajectory: xr.Dataset) -> None:
    """Nuclear norm of both parametrisations, arm by arm, and how many runs are lost."""
    names = [str(name) for name in trajectory["arm"].values]
    draw = np.random.default_rng(0)
    most = 1.0
    for who, colour, shift in (("factored", COLOURS[0], -0.14), ("joint", COLOURS[1], 0.14)):
        values = 100 * trajectory[f"arm_{who}_nuclear"].values
        most = max(most, float(np.nanmax(values, initial=1.0)))
        place = np.arange(len(names))[:, None] + shift + draw.uniform(-0.06, 0.06, size=values.shape)
        axis.plot(
            place.ravel(),
            np.maximum(values, 1e-2).ravel(),
            "o",
            color=colour,
            markersize=4,
            alpha=0.7,
            linestyle="none",
        )
        for k, lost in enumerate(np.isnan(values).sum(axis=1)):
            if lost:
                axis.annotate(f"{lost} lost", (k + shift, 3 * most), color=colour, ha="center", fontsize=8,
                              xytext=(0, 0 if shift < 0 else 11), textcoords="offset points")  # fmt: skip
    axis.set_xticks(np.arange(len(names)), names, rotation=20, ha="right")
    title = f"Other arms, {trajectory.sizes['trial']} draws each"
    axis.set(yscale="log", ylabel="nuclear norm above its optimum, %", title=title, ylim=(None, 20 * most))


def rank(trajectory: xr.Dataset) -> Figure:
    """Excess over the optimum against the norm: one column, two, and all of them under Assumption 4."""
    panels = {
        "1": ("One column: rank 1", "other_1", "another local optimum (median)"),
        "2": ("Two columns: rank 2", "lower_2", "the optimum of rank 1 (median)"),
        "all": ("All columns, Assumption 4", "first_all", "direction of the first step (median)"),
    }
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.3, sharey=True)
        for (name, (title, null, words)), axis in zip(panels.items(), axes, strict=True):
            excess = 100 * np.maximum(trajectory[f"excess_{name}"].values, 1e-6)
            _bundle(axis, _norms(trajectory), excess, COLOURS[0], "small random start: instances, median")
            axis.axhline(100 * float(np.median(trajectory[null])), color=GREY, linewidth=1.5, label=words)
            axis.axhline(1.0, label="1 %", **THEORY)
            lost = int(np.isnan(excess[-1]).sum())
            axis.set(xscale="log", yscale="log", xlabel="‖W‖, Frobenius", ylim=(1e-4, 1e3),
                     title=title + (f", {lost} lost" if lost else ""))  # fmt: skip
            axis.legend(loc="lower left", fontsize=8)
        axes[0].set_ylabel("nuclear norm at unit margin above\nthe optimum of that rank, %")
    return figure


def initialisation(trajectory: xr.Dataset) -> Figure:
    """Excess against the norm for every initial scale, and against the scale at some norms."""
    norms, scales = _norms(trajectory), trajectory["scale"].values
    excess = 100 * trajectory["excess"].transpose("time", "scale", "instance").values
    with look():
        figure, ((left, right),) = sheet(1, 2, 12, 4.4)
        for k, colour in enumerate(colormaps["viridis"](np.linspace(0.05, 0.88, len(scales)))):
            left.plot(norms, _middle(excess[:, k]), color=colour, label=f"ω₀ = {scales[k]:g}", **MEASURED)
        left.set(xscale="log", yscale="log", xlabel="|β|₂", ylabel="ℓ1 norm at unit margin above the optimum, %",
                 title="Median over the instances")  # fmt: skip
        left.legend(loc="lower left", ncols=2)
        for colour, mark in zip(COLOURS, (1e3, 1e5, 1e7), strict=False):
            if mark <= norms[-1] * 1.01:
                row = excess[int(np.argmin(np.abs(norms - mark)))]
                right.plot(scales, _middle(row), "o-", color=colour, label=f"|β| = {mark:.0e}", linewidth=2)
        right.set(
            xscale="log",
            yscale="log",
            xlabel="initial scale ω₀",
            ylabel="excess, % (median)",
            title="Neither small nor large is best",
        )
        right.legend()
    return figure


def real_tokens(trajectory: xr.Dataset) -> Figure:
    """Both norms on real tokens, and the diagonal layer against both of its candidates."""
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 14, 4.3)
        _both(left, trajectory, "nuclear", "Nuclear norm")
        _both(middle, trajectory, "frobenius", "Frobenius norm")
        norms = _norms(trajectory)
        _bundle(
            right,
            norms,
            np.maximum(100 * trajectory["diagonal_l1"].values, 1e-4),
            COLOURS[2],
            "diagonal layer: runs, median",
        )
        right.axhline(100 * float(np.median(trajectory["l2_solution_l1"])), label="ℓ2 solution (median)", **THEORY)
        lost = int(np.isnan(trajectory["diagonal_l1"].values[-1]).sum())
        # The limits are named because every run may be lost, and then there is nothing to read them off.
        right.set(xscale="log", yscale="log", xlabel="|β|₂", ylabel="above the ℓ1 optimum, %",
                  xlim=(norms[0], norms[-1]),
                  title=f"ℓ1 norm at unit margin ({lost} of {trajectory.sizes['instance']} lost)")  # fmt: skip
        right.legend(loc="lower left")
    return figure
