"""Figures of trained transformers, after Boix-Adserà et al., Figures 1, 4 to 7 and 12 to 20.

KQ is blue and VO orange, as there; spectra of the initial product are red, those of the change run from light to
dark green. Bands are one standard deviation over heads (and seeds).
"""

from textwrap import fill
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from saddles.figures.style import COLOURS, GREY, INK, MEASURED, look

COLOUR = {"KQ": COLOURS[0], "VO": COLOURS[1]}
WORDS = {"KQ": r"$\Delta W_K W_Q^\top$", "VO": r"$\Delta W_V W_O^\top$"}
START = COLOURS[3]
SHOWN = 12
"""Singular values drawn over time."""


def growth(trajectory: xr.Dataset) -> Figure:
    """Stable rank by layer (Figures 4, 12, 13, 15, 17, 19, 20), spectra (1, 5, 14, 16, 18), loss and accuracy."""
    layers = trajectory["layer"].values
    columns = min(6, len(layers))
    rows = -(-len(layers) // columns)
    with look():
        places = _chosen(trajectory)
        figure = Figure(figsize=(max(11.5, 2.3 * columns + 1), 2.2 * rows + 6.4), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=[2.2 * rows, 6.4])
        top, bottom = halves
        grid = top.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axis, layer in zip(grid.flat, layers, strict=False):
            _ranks(axis, trajectory.sel(layer=layer))
            axis.set_title(f"layer {layer}")
        for axis in list(grid.flat)[len(layers) :]:
            axis.set_visible(False)
        for axis in grid[:, 0]:
            axis.set_ylabel("stable rank")
        for place in range(max(0, len(layers) - columns), len(layers)):
            _epochs(grid.flat[place], trajectory)
            grid.flat[place].tick_params(labelbottom=True)
        grid[0, 0].set_ylim(0, None)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        band = Patch(color=GREY, alpha=0.4, linewidth=0)
        labels = [*(f"{words}, mean" for words in labels), f"± {_deviation(trajectory)}"]
        top.legend([*handles, band], labels, loc="outside upper right", ncols=3)
        axes = bottom.subplots(2, len(places) + 1, squeeze=False)
        for column, (layer, head) in enumerate(places):
            for row, product in enumerate(COLOUR):
                _spectra(axes[row, column], trajectory, layer, head, product)
        bottom.legend(*_spectra_legend(axes[:, :-1]), loc="outside lower left", ncols=5)
        _loss(axes[0, -1], trajectory)
        _accuracy(axes[1, -1], trajectory)
    return figure


def by_scale(trajectory: xr.Dataset) -> Figure:
    """Singular values of a head of the second layer at every scale (Figure 6); final ranks by scale (Figure 7)."""
    scales = trajectory["scale"].values
    layer = trajectory["layer"].values[min(1, trajectory.sizes["layer"] - 1)]
    with look():
        figure, values, (bars, loss) = _sheet_by_scale(len(scales))
        for row, product in enumerate(COLOUR):
            for column, scale in enumerate(scales):
                one = trajectory.sel(scale=scale, layer=layer, product=product).isel(head=0)
                _values(values[row, column], trajectory, one)
                values[row, column].set_title(f"{WORDS[product]}, scale {scale:g}")
            values[row, 0].set(ylabel="singular value", ylim=(0, None))  # once all are drawn, for all of them
            count = min(SHOWN, trajectory.sizes["index"])
            order = ScalarMappable(BoundaryNorm(np.arange(count + 1) + 0.5, count), ListedColormap(_shades(count)))
            ticks = np.unique([1, (count + 1) // 2, count])
            figure.colorbar(order, ax=list(values[row]), label="singular value, 1: largest", ticks=ticks, pad=0.01)
        _bars(bars, trajectory)
        _loss(loss, trajectory)
        head = f"head {int(trajectory['head'][0])}{_of_first(trajectory)}"
        figure.suptitle(f"Singular values of the change of layer {layer}, {head}", fontsize=11)
    return figure


def _sheet_by_scale(scales: int) -> tuple[Figure, np.ndarray, np.ndarray]:
    """Panels of singular values, which share their axes so that scales can be compared, and two of all scales.

    Those two stand beside the others where there are few, and below where that would be too wide to read.
    """
    parts: Any
    if scales <= 3:
        figure = Figure(figsize=(3.1 * scales + 6, 6.8), layout="constrained")
        parts = figure.subfigures(1, 2, width_ratios=[3.1 * scales, 5])
        of_all = parts[1].subplots(2, 1)
    else:
        figure = Figure(figsize=(2.5 * scales + 1, 9.6), layout="constrained")
        parts = figure.subfigures(2, 1, height_ratios=[6, 3.6])
        of_all = parts[1].subplots(1, 2)
    return figure, parts[0].subplots(2, scales, squeeze=False, sharey="row"), of_all


def _shades(count: int) -> np.ndarray:
    """Colours of singular values, the largest first."""
    return colormaps["viridis"](np.linspace(0, 0.9, count))


def _deviation(trajectory: xr.Dataset) -> str:
    """What bands and bars are."""
    return "one standard deviation over heads" + (" and seeds" if trajectory.sizes["seed"] > 1 else "")


def _of_first(trajectory: xr.Dataset) -> str:
    """Whose spectra are drawn, where there are several seeds."""
    return ", first seed" if trajectory.sizes["seed"] > 1 else ""


def _spectra_legend(axes: np.ndarray) -> tuple[list[Any], list[str]]:
    """One legend for all spectra: a panel lacks the instants at which its head had not moved."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    return list(found.values()), list(found)


def _ranks(axis: Axes, one: xr.Dataset) -> None:
    clock = one["epoch"].values
    for product, colour in COLOUR.items():
        values = one["stable_rank"].sel(product=product)
        mean, spread = values.mean(("scale", "seed", "head")), values.std(("scale", "seed", "head"))
        axis.plot(clock, mean, color=colour, label=WORDS[product], **MEASURED)
        axis.fill_between(clock, mean - spread, mean + spread, color=colour, alpha=0.25, linewidth=0)
    start = one["initial_stable_rank"].mean(("scale", "seed", "head"))
    words = ", ".join(f"{product} {float(start.sel(product=product)):.0f}" for product in COLOUR)
    axis.set_title(f"initial: {words}", loc="right", fontsize=7, fontweight="normal", color="#555555")


def _spectra(axis: Axes, trajectory: xr.Dataset, layer: int, head: int, product: str) -> None:
    """Spectra over their largest value: of the initial product, and of the change at a few instants."""
    one = trajectory.isel(scale=0).sel(layer=layer, head=head, product=product)
    first = one["initial_singular_value"].dropna("index").values
    axis.plot(np.arange(1, first.size + 1), first / first[0], color=START, linewidth=2.2, label="initial product")
    count = one.sizes["instant"]
    places = np.unique(np.linspace(0, count - 1, min(4, count)).round().astype(int))
    per_epoch = float(trajectory["step"][-1] / trajectory["epoch"][-1])
    for place, shade in zip(places, colormaps["Greens"](np.linspace(0.4, 0.95, len(places))), strict=True):
        values = one["singular_value"].isel(instant=place).dropna("index").values
        if values.size and values[0] > 0:
            label = f"change, epoch {_short(float(one['instant'][place]) / per_epoch)}"
            axis.plot(np.arange(1, values.size + 1), values / values[0], color=shade, linewidth=1.6, label=label)
    whose = f"layer {layer}, head {head}{_of_first(trajectory)}"
    axis.set(title=f"{WORDS[product]}, {whose}", ylim=(0, 1.03), xlim=(0, 1.02 * first.size))
    axis.set(xlabel="index of singular value", ylabel="singular value / largest")
    axis.title.set_fontsize(9)


def _values(axis: Axes, trajectory: xr.Dataset, one: xr.Dataset) -> None:
    values = one["singular_value"].dropna("index", how="all").isel(index=slice(SHOWN))
    clock = one["instant"].values / float(trajectory["step"][-1] / trajectory["epoch"][-1])
    for place, shade in enumerate(_shades(min(SHOWN, trajectory.sizes["index"]))[: values.sizes["index"]]):
        axis.plot(clock, values.isel(index=place), color=shade, linewidth=1.5, marker="o", markersize=2)
    axis.tick_params(labelleft=True)
    _epochs(axis, trajectory)


def _bars(axis: Axes, trajectory: xr.Dataset) -> None:
    """Final stable rank of ΔKQ at layers 0, 2, 4 (the paper's 1, 3, 5) against the scale."""
    layers = [layer for layer in (0, 2, 4) if layer in trajectory["layer"].values]
    scales = np.sort(trajectory["scale"].values)
    end = trajectory["stable_rank"].isel(time=-1).sel(product="KQ", scale=scales)
    width = 0.8 / len(layers)
    for place, layer in enumerate(layers):
        values = end.sel(layer=layer)
        at = np.arange(len(scales)) + (place - (len(layers) - 1) / 2) * width
        bars: dict[str, Any] = {"ecolor": INK, "elinewidth": 1, "capsize": 2}
        spread = values.std(("seed", "head"))
        axis.bar(at, values.mean(("seed", "head")), width, yerr=spread, color=COLOURS[place],
                 label=f"layer {layer}", error_kw=bars)  # fmt: skip
    axis.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
    axis.set(xlabel="scale of the initial weights", title=f"{WORDS['KQ']} at the end")
    # Longer lines are longer than the axis.
    axis.set_ylabel(fill(f"final stable rank, mean ± {_deviation(trajectory)}", 38), fontsize=9)
    axis.legend(loc="best")


def _loss(axis: Axes, trajectory: xr.Dataset) -> None:
    several = trajectory.sizes["scale"] > 1
    for place, scale in enumerate(trajectory["scale"].values):
        one = trajectory.sel(scale=scale).mean("seed")
        colour = COLOURS[(place + 2) % len(COLOURS)] if several else INK
        words = f"scale {scale:g}" if several else "training"
        axis.plot(one["epoch"], one["train_loss"], color=colour, label=words, linewidth=1.8)
        tested = _tested(trajectory["test_loss"].sel(scale=scale))
        axis.plot(tested["epoch"], tested, color=colour, linestyle=":", label=None if several else "test")
    guess = float(np.log(trajectory.attrs["outputs"]))
    axis.axhline(guess, color=GREY, linewidth=1, zorder=0, label="uniform guess")
    words = ["Loss", *["mean over seeds"] * (trajectory.sizes["seed"] > 1), *["test dotted"] * several]
    axis.set(title=", ".join(words), ylabel="cross-entropy", ylim=(0, 1.15 * guess))
    _peaks(axis, 1.15 * guess)
    _epochs(axis, trajectory)
    # Below the axis: test losses may run anywhere between 0 and the guess.
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8, columnspacing=1, handlelength=1.6)


def _peaks(axis: Axes, top: float) -> None:
    """Mark where a curve leaves the frame, with its highest value."""
    for line in list(axis.get_lines()):
        across, up = (np.asarray(values, dtype=float) for values in (line.get_xdata(), line.get_ydata()))
        if not np.isfinite(up).any() or np.nanmax(up) <= top:
            continue
        at = int(np.nanargmax(up))
        axis.plot([across[at]], [0.97 * top], "^", color=line.get_color(), markersize=7)
        axis.annotate(f"up to {up[at]:.1f}", (across[at], top), xytext=(7, -1), textcoords="offset points",
                      va="top", fontsize=8)  # fmt: skip


def _accuracy(axis: Axes, trajectory: xr.Dataset) -> None:
    """Accuracy where there is one; the learning rate behind it in any case."""
    tested = _tested(trajectory["test_accuracy"].mean("scale"))
    rate = trajectory["rate"].isel(scale=0, seed=0)
    if tested.size:
        axis.plot(tested["epoch"], 100 * tested, color=COLOURS[2], **MEASURED)
        axis.set(title="Test accuracy", ylabel="%", ylim=(0, 100))
    else:
        axis.plot(trajectory["epoch"], rate, color=GREY, **MEASURED)
        axis.set(title="Learning rate", ylabel="rate", ylim=(0, None))
        axis.ticklabel_format(axis="y", scilimits=(-2, 2))
    _epochs(axis, trajectory)


def _tested(values: xr.DataArray) -> xr.DataArray:
    """Mean over seeds, where most of them were tested: a mean over others from point to point would zigzag."""
    count = values.notnull().sum("seed")
    return values.mean("seed").where((count > 0) & (count == count.max())).dropna("time")


def _short(number: float) -> str:
    """Two digits, or all of a whole part."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _epochs(axis: Axes, trajectory: xr.Dataset) -> None:
    axis.set_xlabel("epoch")
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=float(trajectory["epoch"][-1]) >= 4))


def _chosen(trajectory: xr.Dataset) -> list[tuple[int, int]]:
    """(layer, head) that moved most in the first, middle and last layer."""
    layers = [int(layer) for layer in trajectory["layer"].values]
    norms = trajectory["frobenius_norm"].isel(time=-1, scale=0, seed=0).sum("product")
    wanted = dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]])
    return [(layer, int(norms.sel(layer=layer).argmax("head"))) for layer in wanted]
