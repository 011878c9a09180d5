"""Figures of a sweep: a number over one or two axes of its grid."""

import json
import textwrap
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import BoundaryNorm, LogNorm, Normalize
from matplotlib.figure import Figure

from saddles.errors import SaddlesError
from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, look, sheet

MOST = 6
"""Claims that one figure shows."""


def over_grid(
    values: xr.DataArray, x: str | None = None, y: str | None = None, *, title: str = "", label: str = ""
) -> Figure:
    """Draw one number a cell: a heat map over two axes of the grid, or a line over one.

    Args:
        values: a number over axes of the grid, for instance `sweep.trajectory["claim_value"].sel(claim=…)`.
        x, y: axes; None takes the last two but `seed`. Over all other axes the median is drawn.
        title, label: words above it and at the colour bar.
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
            axis.set_title(_words(trajectory, k), fontsize=8, fontweight="normal")
        where = json.loads(trajectory.attrs.get("grid", "{}")).get("seeds")
        seeds = f", median of {len(where)} seeds" if where and len(where) > 1 else ""
        figure.suptitle(f"{trajectory.attrs.get('experiment', '')}, size {trajectory.attrs.get('size', '')}{seeds}")
    return figure


def _words(trajectory: xr.Dataset, k: int) -> str:
    text = str(trajectory["claim"].values[k]) if "claim" in trajectory.coords else f"claim {k + 1}"
    lines = textwrap.wrap(text, 46)
    return "\n".join([*lines[:3], *(["…"] if len(lines) > 3 else [])])


def _draw(
    figure: Any, axis: Any, values: xr.DataArray, x: str | None, y: str | None, label: str,
    claim: xr.Dataset | None = None,
) -> None:  # fmt: skip
    names = [str(dim) for dim in values.dims]
    for name in (x, y):
        if name is not None and name not in names:
            raise SaddlesError.about(f"the axis {name!r} came", f"there are {', '.join(names)}", "choose one of them")
    free = [name for name in names if name != "seed" and name not in (x, y)] or names[:1]
    x = x or free.pop()
    y = y or next((name for name in reversed(free) if name != x), None)
    if y is None:
        _line(axis, values, x, label, claim)
    else:
        _map(figure, axis, values, x, y, label, claim)


def _median(values: xr.DataArray, keep: list[str]) -> xr.DataArray:
    rest = [dim for dim in values.dims if dim not in keep]
    filled = values.where(values.notnull().any(rest), 0.0) if rest else values
    median = filled.median(rest) if rest else values
    return median.where(values.notnull().any(rest)) if rest else median


def _line(axis: Any, values: xr.DataArray, x: str, label: str, claim: xr.Dataset | None) -> None:
    places, ticks = _places(values, x)
    rest = [dim for dim in values.dims if dim != x]
    middle = _median(values, [x]).values
    if rest:
        low, high = (getattr(values, end)(rest).values for end in ("min", "max"))
        axis.fill_between(places, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="lowest to highest")
    axis.plot(places, middle, color=COLOURS[0], marker="o", markersize=4, label="median" if rest else None, **MEASURED)
    if claim is not None:
        axis.axhline(float(claim["claim_threshold"].median()), color=INK, linestyle=":", linewidth=1, label="threshold")
    _ticks(axis.xaxis, places, ticks)
    if ticks is None and _is_log(places):
        axis.set_xscale("log")
    finite = middle[np.isfinite(middle)]
    if len(finite) and (finite > 0).all() and finite.max() > 100 * finite.min():
        axis.set_yscale("log")
    axis.set(xlabel=x, ylabel=label)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()


def _map(figure: Any, axis: Any, values: xr.DataArray, x: str, y: str, label: str, claim: xr.Dataset | None) -> None:
    shown = _median(values, [x, y]).transpose(y, x)
    numbers = np.ma.masked_invalid(shown.values)
    across, across_ticks = _places(values, x)
    up, up_ticks = _places(values, y)
    finite = numbers.compressed()
    norm: Any = Normalize()
    if len(finite) and finite.min() == finite.max():
        norm = BoundaryNorm([finite[0] - 0.5, finite[0] + 0.5], 256)
    elif len(finite) and (finite > 0).all() and finite.max() > 100 * finite.min():
        norm = LogNorm()
    axis.set_facecolor("#e4e4e4")
    drawn = axis.pcolormesh(_edges(across), _edges(up), numbers, cmap=HEAT, norm=norm, linewidth=0)
    figure.colorbar(drawn, ax=axis, label=label, shrink=0.9)
    for which, places, ticks in ((axis.xaxis, across, across_ticks), (axis.yaxis, up, up_ticks)):
        _ticks(which, places, ticks)
        if ticks is None and _is_log(places):
            which.axes.set_xscale("log") if which is axis.xaxis else which.axes.set_yscale("log")
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
    """Where the cells of an axis are drawn; text and truth values are counted and get their words."""
    labels = values[name].values if name in values.coords else np.arange(values.sizes[name])
    if labels.dtype.kind in "iuf":
        return labels.astype(float), None
    return np.arange(len(labels), dtype=float), [str(label) for label in labels]


def _ticks(which: Any, places: np.ndarray, ticks: list[str] | None) -> None:
    if ticks is not None:
        which.set_ticks(places, ticks)


def _is_log(places: np.ndarray) -> bool:
    """Whether positive places are equally spaced in the logarithm."""
    if len(places) < 3 or (places <= 0).any():
        return False
    steps = np.diff(np.log(places))
    return bool(np.allclose(steps, steps[0], rtol=0.05)) and not np.allclose(np.diff(places), places[1] - places[0])


def _edges(places: np.ndarray) -> np.ndarray:
    """Borders between cells, in the logarithm where they are spaced so."""
    if _is_log(places):
        return np.exp(_edges(np.log(places)))
    if len(places) == 1:
        return places[0] + np.array([-0.5, 0.5])
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - middle[0]], middle, [2 * places[-1] - middle[-1]]])
