"""Descents of a loss curve, counted with a stated prominence, and the rises between them."""

import numpy as np
import xarray as xr


def descents(loss: xr.DataArray, prominence: float = 0.01) -> xr.Dataset:
    """Count the descents of a loss along `time`.

    A descent is a fall of more than `prominence` × the first value that begins the curve or follows
    a rise of more than that. Smaller wiggles are ignored, so a monotone curve has one descent and a
    curve that never falls by that much has none.

    Args:
        loss: any axes, one of them `time`; positive at the first instant.
        prominence: fraction of the first value.

    Returns:
        Over the other axes, `count`, the number of descents; `depth`, the largest rise between two
        descents, as a fraction of the first value (0 where there is at most one), which is how deep
        transient memorisation went; `rises`, the number of rises, whether or not a fall follows.
    """
    values = loss.transpose("time", ...)
    dims = values.dims[1:]
    y = np.asarray(values.values, dtype=float).reshape(values.sizes["time"], -1)
    count, depth, rises = zigzag(y / y[0], prominence)
    shape = values.shape[1:]
    return xr.Dataset(
        {
            "count": (dims, count.reshape(shape)),
            "depth": (dims, depth.reshape(shape)),
            "rises": (dims, rises.reshape(shape)),
        },
        coords={name: loss.coords[name] for name in dims if name in loss.coords},
        attrs={"prominence": prominence},
    )


def zigzag(y: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Descents, deepest rise between two, and rises of the columns of y (time, curve), side by side.

    While falling `low` is the lowest point since the turn, while rising `high` the highest.
    """
    low, high, bottom, depth = y[0].copy(), y[0].copy(), y[0].copy(), np.zeros(y.shape[1])
    way, count, rises = (np.zeros(y.shape[1], dtype=int) for _ in range(3))
    for row in y[1:]:
        low, high = np.minimum(low, row), np.maximum(high, row)
        falls = (way >= 0) & (high - row > threshold)
        # Before the first turn (`way` 0) both may hold at once; then it is a fall.
        climbs = (way <= 0) & (row - low > threshold) & ~falls
        depth = np.where(falls & (count > 0), np.maximum(depth, high - bottom), depth)
        bottom = np.where(climbs, low, bottom)
        count, rises = count + falls, rises + climbs
        low, high = np.where(falls, row, low), np.where(climbs, row, high)
        way = np.where(falls, -1, np.where(climbs, 1, way))
    return count, depth, rises


def turning_points(loss: xr.DataArray, prominence: float = 0.01) -> xr.Dataset:
    """The falls and rises of one loss curve: where each begins and ends.

    Returns, along `segment` in order of time: start and end (times), first and last (indices along
    `time`), change (relative to the first value) and kind ("descent" or "ascent"). Segments share
    their ends: they run from one extreme to the next.
    """
    y = np.asarray(loss.values, dtype=float) / float(loss.values[0])
    turns, way, low, high = [0], 0, 0, 0
    for i, value in enumerate(y):
        low, high = (i if value < y[low] else low), (i if value > y[high] else high)
        if way >= 0 and y[high] - value > prominence:
            turns = [*turns, high] if way else [high]
            way, low = -1, i
        elif way <= 0 and value - y[low] > prominence:
            turns = [*turns, low] if way else [low]
            way, high = 1, i
    ends = [*turns[1:], low if way < 0 else high] if way else []
    starts = turns[: len(ends)]
    clock = loss["time"].values
    kinds = ["descent" if y[b] < y[a] else "ascent" for a, b in zip(starts, ends, strict=True)]
    return xr.Dataset(
        {
            "start": ("segment", clock[starts]),
            "end": ("segment", clock[ends]),
            "first": ("segment", np.asarray(starts, dtype=int)),
            "last": ("segment", np.asarray(ends, dtype=int)),
            "change": ("segment", y[ends] - y[starts]),
            "kind": ("segment", np.asarray(kinds, dtype=str)),
        },
        attrs={"prominence": prominence},
    )
