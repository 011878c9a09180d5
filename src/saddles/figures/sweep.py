"""Figures of a sweep: a number over one or two axes of its grid."""

import json
import textwrap

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import BoundaryNorm, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saddles.errors import SaddlesError
from saddles.figures.maps import edges
from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, look, sheet

MOST = 6
"""Claims that one figure shows."""

DECADES = 100
"""Positive numbers whose largest is more than this times the smallest are drawn on a logarithmic scale."""

EQUAL = 1e-9
"""Numbers that differ by less, relative, have one colour: the flows of most labs are solved to about that."""

NO_VERDICT = "no verdict: does not apply, or is no evidence"

TITLE = (58, 3)
"""Characters of a line and lines of a panel's title."""


def over_grid(
    values: xr.DataArray, x: str | None = None, y: str | None = None, *, title: str = "", label: str = ""
) -> Figure:
    """Draw one number per cell: a heat map over two axes of the grid, or a line over one.

    Args:
        values: a number over axes of the grid, for instance `sweep.trajectory["claim_value"].sel(claim=…)`.
        x, y: axes; None takes the last two except `seed`. The median over all other axes is drawn.
        title, label: text above it and beside the colour bar.
    """
    with look():
        figure, ((axis,),) = sheet(1, 1, 6.4, 4.8)
        _draw(figure, axis, values, x, y, label)
        axis.set_title(title)
    return figure


def claims_over_grid(trajectory: xr.Dataset, x: str | None = None, y: str | None = None) -> Figure:
    """A panel for each claim: its number over the grid; cells in which it fails are marked."""
    count = min(trajectory.sizes["claim"], MOST)
    columns = min(count, 3)
    rows = -(-count // columns)
    with look():
        figure, axes = sheet(rows, columns, 4.9 * columns, 4.4 * rows + 0.4)
        for k, axis in enumerate(axes.flat):
            if k >= count:
                axis.set_axis_off()
                continue
            one = trajectory.isel(claim=k)
            _draw(figure, axis, one["claim_value"], x, y, "number of the claim", one)
            axis.set_title(_title(trajectory, k), fontsize=8, fontweight="normal")
        seeds = json.loads(trajectory.attrs.get("grid", "{}")).get("seeds") or []
        drawn_over_seeds = {str(dim) for dim in trajectory["claim_value"].dims} <= {"claim", "seed"}
        told = f", median of {len(seeds)} seeds" if len(seeds) > 1 and not drawn_over_seeds else ""
        told += f", the first {MOST} of {trajectory.sizes['claim']} claims" if trajectory.sizes["claim"] > MOST else ""
        figure.suptitle(f"{trajectory.attrs.get('experiment', '')}, size {trajectory.attrs.get('size', '')}{told}")
    return figure


MEASURES = ("best_test_error", "test_error", "test_loss", "train_error", "loss", "train_loss")
"""What a sweep's figure shows, the first of these that its cells have."""


def measure_over_grid(trajectory: xr.Dataset) -> Figure | None:
    """The error or loss at the end of every cell's run; None where the cells have none of `MEASURES`.

    Of an axis with names, such as descent and its theory, the first is drawn: they are not of one kind. Of one with
    numbers the median is.
    """
    grid = json.loads(trajectory.attrs.get("grid", "{}"))
    axes = {*grid.get("grid", {}), "seed", "point"}
    name = next((name for name in MEASURES if name in trajectory and set(trajectory[name].dims) & axes), None)
    if name is None:
        return None
    values = trajectory[name]
    if "time" in values.dims:
        # Cells that are shorter than the longest have nothing after their own end.
        values = values.isel(time=values.notnull().cumsum("time").argmax("time"))
    rest = [dim for dim in values.dims if dim not in axes]
    named = [dim for dim in rest if dim in values.coords and values[dim].dtype.kind in "UOT"]
    of = "".join(f", {values[dim].values[0]}" for dim in named)
    values, rest = values.isel(dict.fromkeys(named, 0), drop=True), [dim for dim in rest if dim not in named]
    size = f"{trajectory.attrs.get('experiment', '')}, size {trajectory.attrs.get('size', '')}"
    words = name.replace("_", " ")
    return over_grid(values.median(rest) if rest else values, title=size, label=f"{words} at the end{of}")


def claim_text(trajectory: xr.Dataset, k: int) -> str:
    """The sentence of a sweep's claim, or its number where cells had different claims."""
    return str(trajectory["claim"].values[k]) if "claim" in trajectory.coords else f"claim {k + 1}"


def _title(trajectory: xr.Dataset, k: int) -> str:
    width, most = TITLE
    lines = textwrap.wrap(claim_text(trajectory, k), width)
    cut = [*lines[:most], *(["…"] if len(lines) > most else [])]
    applies = trajectory["claim_holds"].isel(claim=k).notnull().any()
    return "\n".join([*cut, *([] if applies else [f"({NO_VERDICT})"])])


def _draw(
    figure: Figure, axis: Axes, values: xr.DataArray, x: str | None, y: str | None, label: str,
    claim: xr.Dataset | None = None,
) -> None:  # fmt: skip
    names = [str(dim) for dim in values.dims]
    for name in (x, y):
        if name is not None and name not in names:
            raise SaddlesError.unknown("axis of the grid", name, names)
    free = [name for name in names if name != "seed" and name not in (x, y)] or names[:1]
    x = x or free.pop()
    y = y or next((name for name in reversed(free) if name != x), None)
    for name in [name for name in (x, y) if name is not None and name in values.coords]:
        if values[name].dtype.kind in "iuf":  # a grid may be written in any order
            values, claim = values.sortby(name), None if claim is None else claim.sortby(name)
    if y is None:
        _line(axis, values, x, label, claim)
    else:
        _map(figure, axis, values, x, y, label, claim)


def _median(values: xr.DataArray, keep: list[str]) -> xr.DataArray:
    rest = [dim for dim in values.dims if dim not in keep]
    if not rest:
        return values
    known = values.notnull().any(rest)
    return values.where(known, 0.0).median(rest).where(known)  # NumPy warns about the median of nothing


def _line(axis: Axes, values: xr.DataArray, x: str, label: str, claim: xr.Dataset | None) -> None:
    places, ticks = _places(values, x)
    rest = [dim for dim in values.dims if dim != x]
    middle = _median(values, [x]).values
    if rest:
        low, high = (getattr(values, end)(rest).values for end in ("min", "max"))
        axis.fill_between(
            places,
            low,
            high,
            color=COLOURS[0],
            alpha=0.2,
            linewidth=0,
            label=f"range over {' and '.join(map(str, rest))}",
        )
    (drawn,) = axis.plot(
        places, middle, color=COLOURS[0], marker="o", markersize=4, label="median" if rest else None, **MEASURED
    )
    if x == "seed":  # nothing lies between two seeds
        drawn.set_linestyle("")
    if claim is not None:
        axis.axhline(float(claim["claim_threshold"].median()), color=INK, linestyle=":", linewidth=1, label="threshold")
    _ticks(axis.xaxis, places, ticks, values, x)
    if ticks is None and _is_log(places):
        axis.set_xscale("log")
    if _spans_decades(middle[np.isfinite(middle)]):
        axis.set_yscale("log")
    axis.set(xlabel=x, ylabel=label)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()


def _map(
    figure: Figure, axis: Axes, values: xr.DataArray, x: str, y: str, label: str, claim: xr.Dataset | None
) -> None:
    shown = _median(values, [x, y]).transpose(y, x)
    numbers = np.ma.masked_invalid(shown.values)
    across, across_ticks = _places(values, x)
    up, up_ticks = _places(values, y)
    finite = numbers.compressed()
    norm = LogNorm() if _spans_decades(finite) else Normalize()
    same = len(finite) > 0 and bool(np.isclose(finite.min(), finite.max(), rtol=EQUAL, atol=0))
    if same:  # one colour for all, of which a colour bar needs an interval
        norm = BoundaryNorm([finite[0] - 0.5, finite[0] + 0.5], 256)
    axis.set_facecolor("#e4e4e4")
    drawn = axis.pcolormesh(_edges(across), _edges(up), numbers, cmap=HEAT, norm=norm, linewidth=0)
    only = {"ticks": finite[:1], "format": "%.6g"} if same else {}
    figure.colorbar(drawn, ax=axis, label=label, shrink=0.9, **only)
    _ticks(axis.xaxis, across, across_ticks, values, x)
    _ticks(axis.yaxis, up, up_ticks, values, y)
    if across_ticks is None and _is_log(across):
        axis.set_xscale("log")
    if up_ticks is None and _is_log(up):
        axis.set_yscale("log")
    axis.set(xlabel=x, ylabel=y)
    if claim is not None:
        holds = _median(claim["claim_holds"], [x, y]).transpose(y, x).values
        rows, columns = np.nonzero(holds < 0.5)
        axis.plot(across[columns], up[rows], linestyle="", marker="x", color="white", markersize=5, markeredgewidth=2.4)
        axis.plot(across[columns], up[rows], linestyle="", marker="x", color=INK, markersize=5, label="fails")
        if len(rows):
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), labelcolor=INK)
    if numbers.mask.any():
        axis.annotate("grey: no number", (1, 1.01), xycoords="axes fraction", ha="right", fontsize=7, color=GREY)


def _places(values: xr.DataArray, name: str) -> tuple[np.ndarray, list[str] | None]:
    """Where the cells of an axis are drawn; text and truth values are numbered and labelled."""
    labels = values[name].values if name in values.coords else np.arange(values.sizes[name])
    if labels.dtype.kind in "iuf":
        return labels.astype(float), None
    return np.arange(len(labels), dtype=float), [str(label) for label in labels]


def _spans_decades(numbers: np.ndarray) -> bool:
    return len(numbers) > 0 and bool((numbers > 0).all()) and bool(numbers.max() > DECADES * numbers.min())


def _ticks(which: Axis, places: np.ndarray, ticks: list[str] | None, values: xr.DataArray, name: str) -> None:
    if ticks is not None:
        which.set_ticks(places, ticks)
    elif name not in values.coords or values[name].dtype.kind in "iu":  # no width of 2.5 between 2 and 3
        which.set_major_locator(MaxNLocator(integer=True))


def _is_log(places: np.ndarray) -> bool:
    """Whether positive places are equally spaced in the logarithm, to 5 %: whole numbers are rounded."""
    if len(places) < 3 or (places <= 0).any():
        return False
    steps = np.diff(np.log(places))
    return bool(np.allclose(steps, steps[0], rtol=0.05)) and not np.allclose(np.diff(places), places[1] - places[0])


def _edges(places: np.ndarray) -> np.ndarray:
    """Borders between cells, halfway; in the logarithm where they are equally spaced in it."""
    return np.exp(edges(np.log(places))) if _is_log(places) else edges(places)
