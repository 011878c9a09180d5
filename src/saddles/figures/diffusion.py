"""Figures of the diffusion lab: ways through concept space, concept errors, speeds, and the film strip."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from matplotlib.typing import ColorType

from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, THEORY, look
from saddles.measures.concept_space import exponential_tail, learning_times, speed

HALF = 0.5
"""A concept is there when the mean probability passes this for good."""
MOST = 10
"""Pictures of a strip."""
PLACES = {"00": "red, big", "01": "red, small", "10": "blue, big", "11": "blue, small"}


def orders(trajectory: xr.Dataset) -> Figure:
    """Figure 6a: ways of class 11, one colour per separation; below, film strips of the weakest and strongest."""
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
        several = path.sizes["seed"] > 1
        if several:
            left.plot(one["time"], error, color="#cccccc", linewidth=1)
            left.plot([], [], color="#cccccc", label=f"seeds: {path.sizes['seed']}")
        label = "of the mean over seeds" if several else "one seed"
        left.plot(one["time"], mean, color=COLOURS[0], label=label, **MEASURED)
        left.set(xlabel="step", ylabel="concept-space MSE, class 11", xscale="log", ylim=(0, None))
        left.set_title(f"Concept error, colour separation {float(one['separation']):g}")
        left.legend(loc="upper right")
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
        colours = _shades(trajectory)
        for k, separation in enumerate(trajectory["separation"].values):
            one, fit = pace.isel(separation=k), tail.isel(separation=k)
            words = f"separation {separation:g}"
            if np.isfinite(fit["rate"]):
                top = int(one.argmax("time"))
                used = slice(top, top + max(int(fit["instants"]), 2))
                t = one["time"].values[used]
                level = float(np.log(np.maximum(one.values[used], 1e-12)).mean() + float(fit["rate"]) * t.mean())
                left.plot(t, np.exp(level - float(fit["rate"]) * t), **THEORY | {"color": colours[k], "linewidth": 2})
                words += f": rate {float(fit['rate']):.2g} a step, R² = {float(fit['fit']):.2f}"
            left.plot(one["time"], one, ".-", color=colours[k], label=words, linewidth=0.9, alpha=0.8)
        left.plot([], [], **THEORY, label="exponential fit of the tail")
        left.set(xlabel="step", ylabel="|dC/dt| of class 11, a step", yscale="log")
        left.set_ylim(bottom=max(1e-7, left.get_ylim()[0]))
        left.locator_params(axis="x", nbins=5)
        left.set_title("Speed in concept space")
        left.legend(loc="lower left", fontsize=7.5)
        _ways(right, trajectory)
        _strip(below[0], trajectory.isel(separation=-1))
    return figure


def _two_rows(strips: int) -> tuple[Figure, SubFigure, list[SubFigure]]:
    figure = Figure(figsize=(11, 4.8 + 3.9 * strips), layout="constrained")
    parts = figure.subfigures(1 + strips, 1, squeeze=False, height_ratios=[4.8, *[3.9] * strips])[:, 0]
    return figure, parts[0], list(parts[1:])


def _shades(trajectory: xr.Dataset) -> list[ColorType]:
    """One colour per separation, darker where it is weaker."""
    values = trajectory["separation"].values
    if len(values) == 1:
        return [COLOURS[0]]
    return [colormaps[HEAT](0.9 * (value - values.min()) / np.ptp(values)) for value in values]


def _ways(axis: Axes, trajectory: xr.Dataset) -> None:
    path = trajectory["output"].sel(point="11").transpose("time", "separation", "seed", "coordinate")
    several = path.sizes["separation"] > 1
    for k, (separation, colour) in enumerate(zip(path["separation"].values, _shades(trajectory), strict=True)):
        for n in range(path.sizes["seed"] if not several and path.sizes["seed"] > 1 else 0):
            axis.plot(*path.isel(separation=k, seed=n).values.T, color="#cccccc", linewidth=0.9, zorder=1)
        x, y = path.isel(separation=k).mean("seed").values.T
        formed = _formed(trajectory.isel(separation=k))
        axis.plot(x[: formed + 1], y[: formed + 1], ":", color=colour, linewidth=0.9, alpha=0.6, zorder=2)
        later = {"markersize": 5, "linewidth": 1.8, "label": f"separation {separation:g}", "zorder": 3}
        axis.plot(x[formed:], y[formed:], ".-", color=colour, **later)
        axis.plot(x[formed : formed + 1], y[formed : formed + 1], "s", color=colour, markersize=7, zorder=4)
    axis.plot([], [], ":", color=GREY, linewidth=0.9, label="images are not yet circles")
    axis.plot([], [], "s", color=GREY, markersize=7, label="half of trained classes right")
    axis.plot([1], [1], "*", color=INK, markersize=13, label="class 11, never trained", zorder=5)
    axis.plot([0, 0, 1], [0, 1, 0], "o", color=GREY, markersize=8, label="trained classes", zorder=2)
    axis.set(xlabel="colour: probability of blue", ylabel="size: probability of small", xlim=(-0.06, 1.06))
    axis.set(ylim=(-0.06, 1.06), title="Images of the prompt (blue, small)", aspect="equal")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)


def _formed(one: xr.Dataset) -> int:
    """The first evaluation at which half of the images of the trained classes are what was asked for, or the last."""
    right = one["accuracy"].sel(point=["00", "01", "10"]).mean(["point", "seed"]).values >= 0.5
    return int(np.argmax(right)) if right.any() else len(right) - 1


def _when(axis: Axes, trajectory: xr.Dataset) -> None:
    """Steps at which each concept is there for good against the separation; lines are means over seeds."""
    path = trajectory["output"].sel(point="11", drop=True)
    found = learning_times(path, trajectory["target"], HALF, for_good=True)["learned_at"]
    end = float(trajectory["time"][-1])
    separations = trajectory["separation"].values
    for name, colour, mark in (("colour", COLOURS[0], "o"), ("size", COLOURS[3], "s")):
        when = found.sel(coordinate=name).transpose("separation", "seed").values
        axis.plot(separations, when, mark, color=colour, markersize=5, alpha=0.6)
        late = np.where(np.isnan(when), 1.3 * end, when)
        label = f"{name} ({'blue' if name == 'colour' else 'small'})"
        label += "" if when.shape[1] == 1 else ", line: geometric mean"
        axis.plot(separations, np.exp(np.log(late).mean(axis=1)), color=colour, label=label, **MEASURED)
        for separation in separations[np.isnan(when).any(axis=1)]:
            axis.plot([separation], [1.3 * end], "^", color=colour, markersize=9)
    axis.plot([], [], "^", color=GREY, markersize=9, label="not learned")
    axis.axhline(end, color=GREY, linewidth=0.8, label="end of the run")
    axis.set(xlabel="colour separation", ylabel="step at which class 11 has it for good", yscale="log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_title("Order of learning")
    low, high = np.log(axis.get_ylim())
    axis.set_ylim(top=np.exp(low + (high - low) / 0.78))  # room for the legend above the end of the run
    axis.legend(loc="upper right", fontsize=8)


def _strip(part: SubFigure, one: xr.Dataset) -> None:
    """One row of pictures per class, over training."""
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
