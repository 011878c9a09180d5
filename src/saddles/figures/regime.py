"""The figure of `saddles regime`: every head of a model after a fine-tune."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from saddles.figures.maps import edges
from saddles.figures.style import GREY, HEAT, look, sheet

NONE = "#e6e6e6"
"""Colour of heads that do not have a number."""


def of_heads(heads: xr.Dataset, whole: xr.Dataset | None = None) -> Figure:
    """Quadratic share, share outside the spans and drift of the invariant for every head of a model.

    Args:
        heads: as `saddles.networks.closure` and `invariants` give them.
        whole: the numbers of the whole model, as `saddles.networks.regime` gives them, for the line above.
    """
    panels = [
        ("linearity", "Quadratic share", "of the head's change; 0: linear"),
        ("outside", "Outside the start's spans", "share of the head's change"),
        ("drift", "Drift of the invariant", "‖C − C₀‖ / ‖C₀‖; 0 under gradient flow"),
    ]
    lawful = xr.ones_like(heads["drift"], dtype=bool) & heads.get("applies", True)
    shown = heads.assign(drift=heads["drift"].where(lawful))
    layers, places = heads["layer"].values, heads["head"].values
    with look():
        figure, axes = sheet(2, 3, 12, 6.8, sharex=True, sharey=True)
        figure.set_layout_engine("constrained", w_pad=0.1)  # between a bar's label and the next map
        for column, (name, title, unit) in zip(axes.T, panels, strict=True):
            top = float(shown[name].max())
            drawn = None
            for axis, product in zip(column, ("KQ", "VO"), strict=True):
                values = shown[name].sel(product=product).transpose("head", "layer").values
                axis.set_facecolor(NONE)
                limits = {"vmin": 0, "vmax": top if top > 0 else 1}
                drawn = axis.pcolormesh(edges(layers), edges(places), values, cmap=HEAT, **limits)
                if name == "drift":
                    _hatch(axis, layers, places, ~lawful.sel(product=product).transpose("head", "layer").values)
                axis.set(title=f"{title}, {product}")
                axis.set_xticks(_some(layers))
                axis.set_yticks(_some(places))
            figure.colorbar(drawn, ax=list(column), label=unit, shrink=0.9)  # pyright: ignore[reportArgumentType]
            column[-1].set_xlabel("layer")
        for axis in axes[:, 0]:
            axis.set_ylabel("head")
        words = [] if whole is None else [_sentence(whole)]
        words.append("Colours: one range for each column, from 0 to its largest value.")
        figure.suptitle("\n".join(words), fontsize=11)
        if not bool(lawful.all()):
            figure.legend(
                handles=[Patch(facecolor="white", edgecolor=GREY, hatch="////")],
                labels=["no invariant: a norm or a gate stands between the two matrices of the product"],
                loc="outside lower center",
            )
    return figure


def _sentence(whole: xr.Dataset) -> str:
    """e and the drift of the kernel, where it was measured, in a line."""
    e = float(whole["linearity"])
    if np.isnan(e):
        return "The outputs did not change, so that e is undefined"
    words = f"e = {e:.3g}, share of the outputs' change beyond the linear part (0: lazy, about 1: active)"
    floor = float(whole.get("linearity_floor", 0.0))
    if floor > 0.05 * e:  # not far below what is measured
        words += f"; rounding alone gives {floor:.1g}"
    if "kernel_drift" in whole:
        error = float(whole["kernel_drift_error"]) if "kernel_drift_error" in whole else float("nan")
        words += f"; kernel drift {float(whole['kernel_drift']):.3g}" + (f" ± {error:.1g}" if error > 0 else "")
    return words


def _hatch(axis: Axes, layers: np.ndarray, places: np.ndarray, where: np.ndarray) -> None:
    """Hatch cells."""
    if where.any():
        cells = np.ma.masked_array(np.zeros(where.shape), ~where)
        # The lowest colour of Greys is white.
        drawn = axis.pcolor(edges(layers), edges(places), cells, cmap="Greys", vmin=0, vmax=1)
        drawn.set(hatch="////", edgecolor=GREY, linewidth=0)


def _some(values: np.ndarray, most: int = 8) -> np.ndarray:
    """At most so many of them, evenly spaced, the first among them."""
    return values[:: -(-len(values) // most)]
