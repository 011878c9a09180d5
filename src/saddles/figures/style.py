"""One look for every figure.

Measurement is solid and coloured (Okabe and Ito's palette, safe for colour-blind readers);
theory is dashed and dark. Text in SVG files stays text, and drawing needs no display.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
INK = "#222222"
GREY = "#9a9a9a"
HEAT = "viridis"
ERROR_HEAT = "viridis_r"
"""Of errors: bright is small, as in the explorer; of all else bright is large."""

THEORY: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.4}
"""Keywords of a theory curve."""

MEASURED: dict[str, Any] = {"linestyle": "-", "linewidth": 2.2}
"""Keywords of a measured curve; give it a colour."""

_LOOK: dict[str, object] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.formatter.useoffset": False,  # a number at the end of an axis that must be added to its ticks is overlooked
    "axes.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "saddles",
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": cycler(color=COLOURS),
}


@contextmanager
def look() -> Iterator[None]:
    """Draw inside this block to get the common look."""
    with mpl.rc_context(cast(Any, _LOOK)):  # matplotlib lists every key in a type of its own
        yield


def sheet(
    rows: int, columns: int, width: float = 10.0, height: float = 4.2, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes, always as a two-dimensional array of them; `options` go to `subplots`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis of any length, in plain numbers: powers of ten alone say little of a short one."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.5 else (1, 3) if decades < 3 else (1,)))
    axis.set_minor_formatter(NullFormatter())
    if decades < 4:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
