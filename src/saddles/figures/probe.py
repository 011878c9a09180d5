"""Figures of recorded and inspected training runs, after Boix-Adserà et al., Figures 1, 4 to 7 and 12 to 20.

KQ is blue and VO orange, as there; the initial product is red and the change runs from light to dark green. Means over
heads carry a band of one standard deviation. What rounding of stored weights could produce alone is grey.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saddles.errors import SaddlesError
from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, look, sheet
from saddles.measures.growth import rank_growth

PRODUCT = {"KQ": COLOURS[0], "VO": COLOURS[1]}
WORDS = {"KQ": r"$\Delta W_K W_Q^\top$", "VO": r"$\Delta W_V W_O^\top$"}
INITIAL = COLOURS[3]
COLUMNS = 4
"""Layers side by side."""
FEW_STEPS = 15
"""Below so many rows each one is marked."""
LOG_RATIO = 200
"""Steps that span more than this factor get a logarithmic axis."""


def stable_rank(tree: xr.DataTree, variable: str = "stable_rank") -> Figure:
    """Stable rank over training, one panel per layer: mean and deviation over heads (Figures 4, 12, 13, 15, 20)."""
    heads = _heads(tree)
    layers = heads["layer"].values
    columns = min(COLUMNS, len(layers))
    rows = -(-len(layers) // columns)
    with look():
        figure, axes = sheet(rows, columns, 1.2 + 2.7 * columns, 0.9 + 2.0 * rows, sharex=True, sharey=True)
        for axis, layer in zip(axes.flat, layers, strict=False):
            for product, colour in PRODUCT.items():
                _band(axis, heads, heads[variable].sel(layer=layer, product=product), colour, WORDS[product])
            axis.set_title(f"layer {layer}")
            _step_axis(axis, heads)
            if variable == "stable_rank" and "initial_stable_rank" in heads:
                start = heads["initial_stable_rank"].sel(layer=layer).mean("head")
                words = ", ".join(f"{p} {float(start.sel(product=p)):.1f}" for p in PRODUCT)
                # Beside the title: in the panel it would lie on the curves.
                axis.set_title(f"initial: {words}", loc="right", fontsize=8, fontweight="normal", color="#555555")
        for axis in list(axes.flat)[len(layers) :]:
            axis.set_visible(False)
        for place, axis in enumerate(axes.flat):
            axis.set(ylim=(0, None))
            if place % columns == 0:
                axis.set_ylabel(variable.replace("_", " "))
            if place >= len(layers) - columns:
                axis.set_xlabel("training step")
                axis.tick_params(labelbottom=True)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def normalised_spectra(tree: xr.DataTree, places: list[tuple[int, int]] | None = None) -> Figure:
    """Spectra divided by their largest value: of the initial product and of the change (Figures 1, 5, 14, 16, 18).

    Args:
        places: (layer, head) of each column; default: the head that moved most in the first, middle and last layer.
    """
    heads = _heads(tree)
    places = places or most_moved(heads)
    with look():
        figure, axes = sheet(2, len(places), 1.2 + 3.3 * len(places), 6.0, sharex=True, sharey=True)
        for column, (layer, head) in enumerate(places):
            for row, product in enumerate(PRODUCT):
                one = heads.sel(layer=layer, head=head, product=product)
                _spectra(axes[row, column], one)
                axes[row, column].set_title(f"{WORDS[product]}, layer {layer}, head {head}")
                if row == 1:
                    axes[row, column].set_xlabel("index of singular value")
        for axis in axes[:, 0]:
            axis.set(ylabel="singular value / largest", ylim=(0, 1.03))
        axes[0, -1].legend(loc="upper right", fontsize=8)
    return figure


def _with_spectra(one: xr.Dataset) -> xr.Dataset:
    """The rows of one head that have its spectrum, all of them where none has: recordings may keep it now and then."""
    rows = np.flatnonzero(one["singular_value"].notnull().any("index"))
    return one.isel(time=rows) if len(rows) else one


def _spectra(axis: Axes, one: xr.Dataset) -> None:
    one = _with_spectra(one)
    times = np.unique(np.linspace(0, one.sizes["time"] - 1, min(5, one.sizes["time"])).round().astype(int))
    shades = colormaps["Greens"](np.linspace(0.4, 0.95, len(times)))
    if "initial_singular_value" in one:
        first = one["initial_singular_value"].dropna("index")
        axis.plot(np.arange(1, first.size + 1), first / first[0], color=INITIAL, label="initial product", linewidth=2.2)
    for shade, time in zip(shades, times, strict=True):
        values = one["singular_value"].isel(time=time).dropna("index").values
        if values.size and values[0] > 0:
            label = f"change, step {int(one['step'][time])}"
            axis.plot(np.arange(1, values.size + 1), values / values[0], color=shade, label=label, linewidth=1.6)
    last = one.isel(time=-1)
    if "noise_floor" in one and float(last["singular_value"].max()) > 0:
        floor = float(last["noise_floor"] / last["singular_value"].max())
        axis.axhline(floor, color=GREY, linestyle=":", label="rounding, last step", zorder=0)


def singular_values(tree: xr.DataTree, layer: int | None = None, head: int | None = None, count: int = 12) -> Figure:
    """The largest singular values of one head's changes over training, and when each becomes active (Figure 6)."""
    heads = _heads(tree)
    where = most_moved(heads)[len(most_moved(heads)) // 2] if layer is None or head is None else (layer, head)
    growth = rank_growth(heads)
    active_words = f"active above {growth.attrs['share']:g} of the head's largest"
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.5)
        for axis, product in zip((left, right), PRODUCT, strict=True):
            one = _with_spectra(heads.sel(layer=where[0], head=where[1], product=product))
            steps, values = (
                one["step"].values,
                one["singular_value"].dropna("index", how="all").isel(index=slice(count)),
            )
            shades = colormaps[HEAT](np.linspace(0, 0.92, values.sizes["index"]))
            for place in reversed(range(values.sizes["index"])):
                axis.plot(
                    steps, values.isel(index=place), color=shades[place], linewidth=1.8, marker="o", markersize=2.5
                )
            if "noise_floor" in one:
                axis.fill_between(
                    steps, 0, one["noise_floor"], color=GREY, alpha=0.35, label="rounding alone", linewidth=0
                )
            active = growth["active"].sel(layer=where[0], head=where[1], product=product).dropna("time")
            level = growth.attrs["share"] * float(one["singular_value"].max())
            axis.axhline(level, color=INK, linewidth=1, linestyle="--", label=active_words)
            ends = f": {int(active[-1])} active at the end" if active.size else ""
            words = f"{WORDS[product]}, layer {where[0]}, head {where[1]}{ends}"
            axis.set(xlabel="training step", ylabel="singular value", ylim=(0, None), title=words)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def heads_that_moved(tree: xr.DataTree) -> Figure:
    """Norm and stable rank of every head's change at the last step."""
    heads = _heads(tree).isel(time=-1)
    with look():
        figure, axes = sheet(2, 2, 10, max(3.4, 1.6 + 0.5 * heads.sizes["layer"]), sharex=True, sharey=True)
        for row, (variable, words) in enumerate((("frobenius_norm", "Frobenius norm"), ("stable_rank", "stable rank"))):
            for column, product in enumerate(PRODUCT):
                part = heads[variable].sel(product=product).transpose("layer", "head")
                axis = axes[row, column]
                drawn = axis.imshow(part, cmap=HEAT, aspect="auto", origin="lower", interpolation="none")
                figure.colorbar(drawn, ax=axis, label=words)
                axis.set(
                    title=f"{WORDS[product]}: {words}", xlabel="head" if row else "", ylabel="" if column else "layer"
                )
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
                axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def matrices(tree: xr.DataTree, count: int = 24) -> Figure:
    """Plain matrices: energy rank at 90 % over training, and how far each moved, the most moved first."""
    modules = tree["modules"].to_dataset()
    if not modules.data_vars:
        raise SaddlesError("This result holds no matrices. Inspect or record with modules=True.")
    known = modules.isel(time=np.flatnonzero(modules["frobenius_norm"].notnull().any("module")))
    if not known.sizes["time"]:
        raise SaddlesError("No matrix of this result has a number in any row: the weights were NaN throughout.")
    last = known["frobenius_norm"].isel(time=-1).fillna(0.0)
    order = np.argsort(-last.values, kind="stable")[:count]
    order = order[last.values[order] > 0] if last.max() > 0 else order
    kept, last = known.isel(module=order), last.isel(module=order)
    names = [str(name).removesuffix(".weight") for name in kept["module"].values]
    steps = [str(step) for step in kept["step"].values]
    with look():
        figure, ((left, right),) = sheet(1, 2, 12, 1.6 + 0.24 * len(names), width_ratios=(3, 2), sharey=True)
        ranks = kept["energy_rank_90"].transpose("module", "time").values
        drawn = left.imshow(
            ranks, cmap=HEAT, aspect="auto", interpolation="none", norm=LogNorm(1, np.nanmax(ranks, initial=2))
        )
        figure.colorbar(drawn, ax=left, label="rank that holds 90 % of energy", location="top", shrink=0.6)
        left.set_yticks(range(len(names)), names, fontsize=8)
        shown = np.unique(np.linspace(0, len(steps) - 1, min(8, len(steps))).round().astype(int))
        left.set_xticks(shown, [steps[i] for i in shown])
        left.set(xlabel="training step")
        right.barh(range(len(names)), last, color=COLOURS[0])
        floor = kept["noise_floor"].isel(time=-1) if "noise_floor" in kept else None
        if floor is not None and float(floor.max()) > 0.01 * float(last.max()):
            right.plot(floor, range(len(names)), linestyle="", marker="|", color=INK, label="σ₁ of rounding alone")
            right.legend(loc="lower right")
        right.set(xlabel="‖ΔW‖ at the last step, Frobenius")
    return figure


def ranks_by_scale(
    trees: Mapping[float, xr.DataTree], layers: tuple[int, ...] = (1, 3, 5), product: str = "KQ"
) -> Figure:
    """Stable rank at the end of training against the scale of the initialisation, some layers (Figure 7)."""
    scales = sorted(trees)
    with look():
        figure, ((axis,),) = sheet(1, 1, 6.4, 4.2)
        width = 0.8 / len(layers)
        for place, layer in enumerate(layers):
            ends = [_heads(trees[s])["stable_rank"].isel(time=-1).sel(layer=layer, product=product) for s in scales]
            at = np.arange(len(scales)) + (place - (len(layers) - 1) / 2) * width
            means, spreads = ([float(getattr(end, how)()) for end in ends] for how in ("mean", "std"))
            bars = {"ecolor": INK, "elinewidth": 1, "capsize": 2}
            axis.bar(at, means, width, yerr=spreads, color=COLOURS[place], label=f"layer {layer}", error_kw=bars)
        axis.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
        axis.set(xlabel="initialisation scale", ylabel=f"stable rank of {WORDS[product]} at the end", ylim=(0, None))
        axis.legend(title="mean and deviation over heads")
    return figure


def most_moved(heads: xr.Dataset) -> list[tuple[int, int]]:
    """(layer, head) of the head that moved most in the first, middle and last layer."""
    layers = heads["layer"].values
    chosen = dict.fromkeys([int(layers[0]), int(layers[len(layers) // 2]), int(layers[-1])])
    norms = heads["frobenius_norm"].isel(time=-1).sum("product")
    return [(layer, int(norms.sel(layer=layer).argmax("head"))) for layer in chosen]


def _heads(tree: xr.DataTree) -> xr.Dataset:
    if "heads" not in tree.children:
        raise SaddlesError("`tree` must have a group `heads`. Give a recording or an inspection of saddles.probe.")
    return tree["heads"].to_dataset()


def used_ranks(tree: xr.DataTree) -> Figure:
    """Ranks that an adapter uses over training, by kind of module: mean over layers, least to most; grey as given."""
    modules = tree["modules"].to_dataset()
    if "used_rank" not in modules:
        raise SaddlesError("The recording has no used ranks: only models that PEFT trains have them.")
    kinds: dict[str, list[int]] = {}
    for at, name in enumerate(modules["module"].values):
        kinds.setdefault(str(name).removesuffix(".weight").rpartition(".")[2], []).append(at)
    steps = modules["step"].values
    with look():
        figure, axes = sheet(1, 1, 6.4, 3.6)
        axis = axes.flat[0]
        for place, (kind, rows) in enumerate(kinds.items()):
            used, colour = modules["used_rank"].isel(module=rows), COLOURS[place % len(COLOURS)]
            few: dict[str, Any] = {"marker": "o", "markersize": 4} if len(steps) < FEW_STEPS else {}
            axis.plot(steps, used.mean("module"), color=colour, label=kind, **MEASURED | few)
            axis.fill_between(steps, used.min("module"), used.max("module"), color=colour, alpha=0.2, linewidth=0)
        for place, given in enumerate(np.unique(modules["given_rank"].values)):
            axis.axhline(given, color=GREY, linewidth=1, label=None if place else "given")
        axis.set(xlabel="training step", ylabel="rank used (99 % of ‖ΔW‖²)", ylim=(0, None))
        _step_axis(axis, modules)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return figure


def _band(axis: Axes, heads: xr.Dataset, values: xr.DataArray, colour: str, label: str) -> None:
    steps, mean, spread = heads["step"].values, values.mean("head"), values.std("head")
    style: dict[str, Any] = MEASURED | ({"marker": "o", "markersize": 4} if len(steps) < FEW_STEPS else {})
    axis.plot(steps, mean, color=colour, label=label, **style)
    axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, linewidth=0)


def _step_axis(axis: Axes, heads: xr.Dataset) -> None:
    steps = heads["step"].values
    if len(steps) > 2 and steps[0] > 0 and steps[-1] / steps[0] > LOG_RATIO:
        axis.set_xscale("log")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
