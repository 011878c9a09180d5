"""Figures of the concepts lab: training runs. Those of the two-layer flow are in `concept_flows`."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from saddles.figures.concept_flows import (
    THIN,
    breakdown,
    describe,
    failure_plot,
    lemma_table,
    pivot_law,
    search,
    stage_plot,
)
from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, THEORY, look, sheet

__all__ = [
    "breakdown",
    "failure_plot",
    "hierarchy",
    "lemma_table",
    "memorisation_losses",
    "memorisation_paths",
    "orders",
    "pivot_law",
    "search",
    "slopes",
    "stage_plot",
]


def orders(trajectory: xr.Dataset) -> Figure:
    """Output at the test point in the plane of the two concepts, one curve per setting."""
    panels = [name for name in ("signal", "diversity") if name in trajectory["varied"].values]
    titles = {"signal": "Varied signal μ", "diversity": "Varied diversity σ"}
    with look():
        figure, (axes,) = sheet(1, len(panels), 5.6 * len(panels), 5.0)
        for axis, name in zip(axes, panels, strict=True):
            chosen = trajectory.isel(setting=np.flatnonzero(trajectory["varied"].values == name))
            _paths(axis, chosen, name)
            axis.set(title=f"{titles[name]}: {trajectory.attrs['network']}")
    return figure


def _paths(axis: Axes, chosen: xr.Dataset, varied: str) -> None:
    for k in range(chosen.sizes["setting"]):
        one = chosen.isel(setting=k, seed=0)
        colour = COLOURS[k % len(COLOURS)]
        x, y = one["output"].transpose("time", "coordinate").values.T
        label = str(one["setting"].values).split(", σ" if varied == "signal" else ", σ = ")
        axis.plot(x, y, color=colour, label=label[0] if varied == "signal" else f"σ = {label[1]}", **MEASURED)
        marks = _marks(one)
        axis.plot(x[marks], y[marks], ".", color=colour, markersize=7)
        if "predicted" in one:
            axis.plot(*one["predicted"].transpose("time", "coordinate").values.T, **THIN)
        axis.plot(*one["target"].values, "*", color=colour, markersize=13, markeredgecolor=INK, markeredgewidth=0.6)
    if "predicted" in chosen:
        axis.plot([], [], **THEORY, label="Theorem 4.1")
    axis.plot([], [], "*", color=GREY, markersize=11, markeredgecolor=INK, markeredgewidth=0.6, label="test point")
    axis.plot([], [], ".", color=GREY, markersize=7, label="equal steps of time")
    axis.set(xlabel="output, concept 1", ylabel="output, concept 2")
    axis.legend(loc="lower right", fontsize=8)


def _marks(one: xr.Dataset) -> np.ndarray:
    """Instants at equal steps of time, about fifteen until the path is near its end."""
    gap = np.linalg.norm(one["output"].transpose("time", "coordinate").values - one["target"].values, axis=1)
    near = np.flatnonzero(gap <= max(0.01 * gap[0], 1.2 * gap[-1]))
    last = int(near[0]) if len(near) else len(gap) - 1
    return np.unique(np.linspace(0, max(last, 1), 15).astype(int))


def memorisation_paths(trajectory: xr.Dataset) -> Figure:
    """Outputs of all seeds in the plane of the concepts over μ; the one with the deepest detour in colour."""
    labels = [str(label) for label in trajectory["setting"].values]
    with look():
        figure, (axes,) = sheet(1, len(labels), 5.2 * len(labels), 4.9)
        for axis, label, colour in zip(axes, labels, COLOURS, strict=False):
            one = trajectory.sel(setting=label).dropna("seed", subset=["test_loss"])
            path = (one["output"] / one["target"]).transpose("time", "seed", "coordinate").values
            best = _deepest(one)
            for k in range(path.shape[1]):
                axis.plot(path[:, k, 0], path[:, k, 1], color="#cccccc", linewidth=0.9, zorder=1)
            axis.plot(path[:, best, 0], path[:, best, 1], color=colour, zorder=3, label="deepest detour", **MEASURED)
            axis.plot([], [], color="#cccccc", label=f"seeds: {path.shape[1]}")
            axis.plot([1], [1], "*", color=INK, markersize=13, label="test point")
            axis.plot([1, 0], [0, 1], "o", color=GREY, markersize=8, label="cluster centres")
            describe(
                axis,
                f"{trajectory.attrs['network'].split(',')[0]}, {label}",
                "output / μ, concept 1",
                "output / μ, concept 2",
                xlim=(-0.8, 1.4),
                ylim=(-0.8, 1.4),
            )
            axis.legend(loc="lower right", fontsize=8)
    return figure


def memorisation_losses(trajectory: xr.Dataset) -> Figure:
    """Test losses relative to their start; the seed with the deepest rise in colour."""
    labels = [str(label) for label in trajectory["setting"].values]
    with look():
        figure, (axes,) = sheet(1, len(labels), 5.2 * len(labels), 4.2, sharey=True)
        for axis, label, colour in zip(axes, labels, COLOURS, strict=False):
            one = trajectory.sel(setting=label).dropna("seed", subset=["test_loss"])
            loss = (one["test_loss"] / one["test_loss"].isel(time=0)).transpose("time", "seed").values
            clock = one["gradient_time"].values if "gradient_time" in one else one["time"].values
            best = _deepest(one)
            axis.plot(clock, loss, color="#cccccc", linewidth=0.9, zorder=1)
            axis.plot(clock, loss[:, best], color=colour, zorder=3, label="largest rise", **MEASURED)
            axis.plot([], [], color="#cccccc", label=f"seeds: {loss.shape[1]}")
            end = clock[np.flatnonzero((loss > 0.01).any(axis=1))[-1]]
            describe(
                axis,
                f"{trajectory.attrs['network'].split(',')[0]}, {label}",
                "gradient time",
                "",
                ylim=(0, 1.25),
                xlim=(0, end),
            )
            axis.legend(loc="upper right", fontsize=8)
        axes[0].set_ylabel("test loss / its start")
    return figure


def depth(trajectory: xr.Dataset) -> Figure:
    """Share of runs with transient memorisation against the number of layers, and test losses of the deepest."""
    layers, dims = trajectory["layers"].values, trajectory["dim"].values
    share = (trajectory["depth"] > 0.01).mean("seed").transpose("dim", "layers").values
    with look():
        figure, (axes,) = sheet(1, 1 + len(dims), 5.0 * (1 + len(dims)), 4.2)
        for dim, row, colour in zip(dims, share, COLOURS, strict=False):
            axes[0].plot(layers, row, "o-", color=colour, label=f"d = {dim}", linewidth=2)
        axes[0].set_xticks(layers)
        axes[0].set_ylim(-0.02, 1.02)
        describe(axes[0], "Transient memorisation", "layers", "share of runs whose test loss rises in between")
        axes[0].legend(loc="upper left")
        for axis, dim, colour in zip(axes[1:], dims, COLOURS, strict=False):
            one = trajectory.sel(dim=dim).isel(layers=-1)
            loss = (one["test_loss"] / one["test_loss"].isel(time=0)).transpose("time", "seed").values
            axis.plot(one["time"], loss, color=colour, linewidth=0.6, alpha=0.5)
            describe(axis, f"{layers[-1]} layers, d = {dim}", "gradient time", "test loss / its start", ylim=(0, 1.1))
    return figure


def _deepest(one: xr.Dataset) -> int:
    """The seed whose test loss climbs highest above an earlier minimum, before its end."""
    loss = (one["test_loss"] / one["test_loss"].isel(time=0)).transpose("time", "seed").values
    return int(np.argmax((loss - np.minimum.accumulate(loss, axis=0)).max(axis=0)))


def hierarchy(trajectory: xr.Dataset) -> Figure:
    """The cube of test points coloured by loss at three epochs, and the fraction of pairs in order."""
    epochs = np.atleast_1d(trajectory.attrs["epochs"])
    names = [str(name) for name in trajectory["point"].values]
    level = np.array([name.count("1") for name in names])
    places = {}
    for ones in range(level.max() + 1):
        there = np.flatnonzero(level == ones)
        for k, index in enumerate(there):
            places[int(index)] = (float(ones), (len(there) - 1) / 2 - k)
    with look():
        figure, (axes,) = sheet(1, len(epochs) + 1, 15, 4.4, width_ratios=[1] * len(epochs) + [0.9])
        dots: Any = None
        for axis, epoch in zip(axes, epochs, strict=False):
            row = int(np.argmin(np.abs(trajectory["epoch"].values - epoch)))
            loss = trajectory["point_loss"].isel(time=row, seed=0).values
            dots = _cube(axis, names, places, loss)
            axis.set(title=f"Epoch {int(epoch)}")
        figure.colorbar(dots, ax=list(axes[:-1]), label="test loss, cut at 1", shrink=0.8, pad=0.01)
        kept = trajectory["order_kept"].transpose("time", "seed").values
        axes[-1].plot(trajectory["epoch"], kept, color="#cccccc", linewidth=1)
        axes[-1].plot(trajectory["epoch"], kept.mean(axis=1), color=COLOURS[0], label="mean", **MEASURED)
        axes[-1].plot([], [], color="#cccccc", label="seeds")
        describe(axes[-1], "Pairs in order", "epoch", "fraction with ℓ(u) ≤ ℓ(v), u ≤ v", ylim=(None, 1.005))
        axes[-1].legend(loc="lower left")
    return figure


def _cube(axis: Axes, names: list[str], places: dict[int, tuple[float, float]], loss: np.ndarray) -> PathCollection:
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            if i < j and sum(a != b for a, b in zip(first, second, strict=True)) == 1:
                axis.plot(*zip(places[i], places[j], strict=True), color="#bbbbbb", linewidth=0.8, zorder=1)
    x, y = np.array([places[k] for k in range(len(names))]).T
    dots = axis.scatter(x, y, c=np.minimum(loss, 1), cmap=HEAT, vmin=0, vmax=1, s=620, zorder=2, edgecolors=INK)
    for k, name in enumerate(names):
        light = min(loss[k], 1) > 0.6
        axis.text(x[k], y[k], name, ha="center", va="center", fontsize=7.5, color=INK if light else "white", zorder=3)
    axis.set_axis_off()
    axis.margins(0.12)
    return dots


def slopes(trajectory: xr.Dataset) -> Figure:
    """Sup-norm error against the learning rate (left), and the runs of the largest rate (right)."""
    rates = trajectory["rate"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.4)
        for j, method in enumerate(trajectory["method"].values):
            errors = trajectory["error"].isel(method=j).transpose("rate", "seed").values
            mean = np.exp(np.log(errors).mean(axis=1))
            slope = np.polyfit(np.log(rates), np.log(mean), 1)[0]
            left.plot(rates, errors, ".", color=COLOURS[j], alpha=0.35, markersize=5)
            left.plot(rates, mean, "o-", color=COLOURS[j], label=f"{method}: slope {slope:.2f}", linewidth=2)
            x, y = trajectory["output"].isel(method=j).transpose("time", "coordinate").values.T
            right.plot(x, y, color=COLOURS[j], label=f"{method}, rate {rates[0]:g}", **MEASURED)
        scale = float(trajectory["error"].isel(rate=0, method=0).mean())
        left.plot(rates, scale * rates / rates[0], **THIN, label="slope 1")
        describe(
            left, "Error of the theory against training", "learning rate", "largest distance from Theorem 4.1", log="xy"
        )
        left.set_xticks(rates, [f"{rate:g}" for rate in rates])
        left.minorticks_off()
        left.legend()
        right.plot(*trajectory["predicted"].transpose("time", "coordinate").values.T, **THEORY, label="Theorem 4.1")
        right.plot(*trajectory["target"].values, "*", color=INK, markersize=13, label="test point")
        right.set(xlabel="output, concept 1", ylabel="output, concept 2", title="Output at the test point")
        right.legend(loc="lower right")
    return figure
