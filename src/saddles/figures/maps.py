"""Maps: numbers over two coordinates, as coloured cells that end at the frame."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.figures.style import HEAT


def edges(centres: np.ndarray) -> np.ndarray:
    """Ends of cells: half-way between centres, which need not be evenly spaced, and as far beyond the outer ones."""
    at = np.asarray(centres, dtype=float)
    if len(at) == 1:
        return at[0] + np.array([-0.5, 0.5])
    middle = (at[1:] + at[:-1]) / 2
    return np.concatenate([[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]])


def coloured(
    figure: Figure,
    axis: Axes,
    across: np.ndarray,
    up: np.ndarray,
    values: np.ndarray,
    unit: str,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Cells around their coordinates, and a bar with an arrow where values lie above its last colour.

    Args:
        across, up: coordinates of columns and rows.
        values: rows of cells.
        unit: label of the bar.
        low, high: ends of the colours; by default those of the values.
    """
    ends = edges(across), edges(up)
    drawn = axis.pcolormesh(*ends, values, cmap=HEAT, rasterized=True, vmin=low, vmax=high)
    beyond = high is not None and bool((values > high * (1 + 1e-6)).any())  # rounding is no excess
    figure.colorbar(drawn, ax=axis, label=unit, extend="max" if beyond else "neither")
    axis.set(xlim=ends[0][[0, -1]], ylim=ends[1][[0, -1]])
