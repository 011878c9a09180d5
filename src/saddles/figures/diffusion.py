"""Figures of the diffusion lab: ways through concept space, concept errors, speeds, and the film strip."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, THEORY, look
from saddles.measures.concept_space import exponential_tail, speed

MOST = 10
"""Pictures of a strip."""
PLACES = {"00": "red, big", "01": "red, small", "10": "blue, big", "11": "blue, small"}


def orders(trajectory: xr.Dataset) -> Figure:
    """Figure 6a: ways of class 11, one colour a separation; below, film strips of the weakest and strongest."""
    shown = sorted({0, trajectory.sizes["separation"] - 1})
    with look():
        figure, above, below = _two_rows(len(shown))
        axis, clock = above.subplots(1, 2, width_ratios=[1, 1.15])
        _ways(axis, trajectory)
        _when(clock, trajectory)
        for row, place in zip(below, shown, strict=True):
            _strip(row, trajectory.isel(separation=place))
    return figure


def memorisation(trajectory: xr.Dataset) -> Figure:
    """Figure 6b: concept-space MSE of class 11 over training, and the film strip."""
    one = trajectory.isel(separation=-1)
    path = one["output"].sel(point="11").transpose("time", "seed", "coordinate")
    with look():
        figure, above, below = _two_rows(1)
        left, right = above.subplots(1, 2, width_ratios=[1.15, 1])
        error = ((path - one["target"]) ** 2).mean("coordinate")
        mean = ((path.mean("seed") - one["target"]) ** 2).mean("coordinate")
        left.plot(one["time"], error, color="#cccccc", linewidth=1)
        left.plot([], [], color="#cccccc", label=f"seeds: {path.sizes['seed']}")
        left.plot(one["time"], mean, color=COLOURS[0], label="of the mean over seeds", **MEASURED)
        left.set(xlabel="step", ylabel="concept-space MSE, class 11", xscale="log", ylim=(0, None))
        left.set_title(f"Concept error, colour separation {float(one['separation']):g}")
        left.legend(loc="lower left")
        _ways(right, trajectory.isel(separation=[-1]))
        _strip(below[0], one)
    return figure


def slowing(trajectory: xr.Dataset) -> Figure:
    """Figure 6c: |dC/dt| of class 11 over training with the exponential fit of its tail."""
    path = trajectory["output"].sel(point="11").mean("seed").transpose("time", "separation", "coordinate")
    pace, tail = speed(path), exponential_tail(path, trajectory["target"])
    with look():
        figure, above, below = _two_rows(1)
        left, right = above.subplots(1, 2, width_ratios=[1.15, 1])
        for k, separation in enumerate(trajectory["separation"].values):
            one, fit = pace.isel(separation=k), tail.isel(separation=k)
            colour = COLOURS[k % len(COLOURS)]
            left.plot(one["time"], one, ".-", color=colour, label=f"separation {separation:g}", linewidth=1.2)
            if np.isfinite(fit["rate"]):
                top = int(one.argmax("time"))
                used = slice(top, top + max(int(fit["instants"]), 2))
                t = one["time"].values[used]
                level = float(np.log(np.maximum(one.values[used], 1e-12)).mean() + float(fit["rate"]) * t.mean())
                words = f"e^(−{float(fit['rate']):.2g} t), R² = {float(fit['fit']):.2f}"
                left.plot(t, np.exp(level - float(fit["rate"]) * t), **THEORY, label=words)
        left.set(xlabel="step", ylabel="|dC/dt| of class 11, a step", yscale="log")
        left.set_title("Speed in concept space")
        left.legend(loc="upper right", fontsize=8)
        _ways(right, trajectory)
        _strip(below[0], trajectory.isel(separation=-1))
    return figure


def film(trajectory: xr.Dataset) -> Figure:
    """Film strips of all separations."""
    count = trajectory.sizes["separation"]
    with look():
        figure = Figure(figsize=(11, 4.6 * count), layout="constrained")
        for k, row in enumerate(np.atleast_1d(np.asarray(figure.subfigures(count, 1)))):
            _strip(row, trajectory.isel(separation=k))
    return figure


def _two_rows(strips: int) -> tuple[Figure, Any, list[Any]]:
    figure = Figure(figsize=(11, 4.8 + 3.9 * strips), layout="constrained")
    parts: Any = figure.subfigures(1 + strips, 1, height_ratios=[4.8, *[3.9] * strips])
    return figure, parts[0], list(parts[1:])


def _shade(trajectory: xr.Dataset) -> tuple[Any, Normalize]:
    values = trajectory["separation"].values
    from matplotlib import colormaps

    span = Normalize(float(values.min()), float(values.max()) if len(values) > 1 else float(values.min()) + 1)
    return colormaps[HEAT], span


def _ways(axis: Any, trajectory: xr.Dataset) -> None:
    path = trajectory["output"].sel(point="11").transpose("time", "separation", "seed", "coordinate")
    several = path.sizes["separation"] > 1
    shades, span = _shade(trajectory)
    for k, separation in enumerate(path["separation"].values):
        colour = shades(0.9 * span(separation)) if several else COLOURS[0]
        for n in range(path.sizes["seed"] if not several else 0):
            axis.plot(*path.isel(separation=k, seed=n).values.T, color="#cccccc", linewidth=0.9, zorder=1)
        x, y = path.isel(separation=k).mean("seed").values.T
        axis.plot(x, y, ".-", color=colour, markersize=5, linewidth=1.8, label=f"separation {separation:g}", zorder=3)
        axis.plot(x[:1], y[:1], "s", color=colour, markersize=6, zorder=4)
    axis.plot([], [], "s", color=GREY, markersize=6, label="first evaluation")
    axis.plot([1], [1], "*", color=INK, markersize=13, label="class 11, never trained", zorder=5)
    axis.plot([0, 0, 1], [0, 1, 0], "o", color=GREY, markersize=8, label="trained classes", zorder=2)
    axis.set(xlabel="colour: probability of blue", ylabel="size: probability of small", xlim=(-0.06, 1.06))
    axis.set(ylim=(-0.06, 1.06), title="Images of the prompt (blue, small)", aspect="equal")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)


def _when(axis: Any, trajectory: xr.Dataset) -> None:
    """Mean probabilities over time: colour solid, size dashed."""
    path = trajectory["output"].sel(point="11").mean("seed").transpose("time", "separation", "coordinate")
    shades, span = _shade(trajectory)
    for k, separation in enumerate(path["separation"].values):
        colour = shades(0.9 * span(separation))
        one = path.isel(separation=k)
        axis.plot(one["time"], one.sel(coordinate="colour"), color=colour, linewidth=1.8)
        axis.plot(one["time"], one.sel(coordinate="size"), color=colour, linewidth=1.6, linestyle=(0, (3, 1.5)))
    axis.plot([], [], color=INK, label="colour (blue)")
    axis.plot([], [], color=INK, linestyle=(0, (3, 1.5)), label="size (small)")
    axis.axhline(0.5, color=GREY, linewidth=0.8)
    axis.set(xlabel="step", ylabel="mean probability, class 11", xscale="log", ylim=(-0.03, 1.03))
    axis.set_title("Each concept over training")
    axis.legend(loc="lower right")
    if path.sizes["separation"] > 1:
        bar = axis.figure.colorbar(ScalarMappable(span, shades), ax=axis, pad=0.01)
        bar.set_label("colour separation")


def _strip(part: Any, one: xr.Dataset) -> None:
    """One row of pictures a class, over training."""
    instants = one["instant"].values
    places = np.unique(np.linspace(0, len(instants) - 1, min(MOST, len(instants))).round().astype(int))
    names = [str(name) for name in one["point"].values]
    axes = part.subplots(len(names), len(places), squeeze=False)
    images = one["image"].transpose("instant", "point", "row", "column", "channel").values
    for i, name in enumerate(names):
        for j, place in enumerate(places):
            axis = axes[i, j]
            axis.imshow(images[place, i], interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set_visible(False)
            if i == len(names) - 1:
                axis.set_xlabel(f"{int(instants[place])}", fontsize=8)
        axes[i, 0].set_ylabel(f"{name}\n{PLACES[name]}", fontsize=8, rotation=0, ha="right", va="center")
    part.supxlabel("step", fontsize=9)
    part.suptitle(f"The same noise over training, colour separation {float(one['separation']):g}", fontsize=10)
