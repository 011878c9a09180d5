"""How a point in concept space moves to its target: order, times, slowing down, hierarchy.

Everything here sees points over time and nothing of the network that made them.
"""

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures.lines import fit_line


def learning_times(
    output: xr.DataArray, target: xr.DataArray, level: float = 0.9, for_good: bool = False
) -> xr.Dataset:
    """When each coordinate first reaches a fraction of its target, linear between instants.

    Args:
        output: (time, ..., coordinate).
        target: (..., coordinate); coordinates with target 0 are left out.
        level: the fraction.
        for_good: when it is reached and never left again instead; a coordinate that ends below is not reached.

    Returns `learned_at` (NaN where not reached) and `reached`, over the axes of `output` without time.
    """
    there = (target != 0).any([d for d in target.dims if d != "coordinate"])
    chosen = output.isel(coordinate=np.flatnonzero(there.values))
    share = (chosen / target.isel(coordinate=np.flatnonzero(there.values))).transpose("time", ...)
    y, clock = share.values, share["time"].values
    up = y >= level
    if for_good:
        # From the end backwards: true from where the level is never left again.
        up = np.flip(np.logical_and.accumulate(np.flip(up, 0)), 0)
    reached = up.any(axis=0)
    first = np.argmax(up, axis=0)
    before = np.maximum(first - 1, 0)
    late, early = np.take_along_axis(y, first[None], 0)[0], np.take_along_axis(y, before[None], 0)[0]
    # What is reached at the first instant has nothing before it to interpolate from.
    gap = np.where(first > 0, late - early, 1.0)
    part = np.where(first > 0, (level - early) / np.where(gap == 0, 1.0, gap), 0.0)
    when = clock[before] + part * (clock[first] - clock[before])
    dims = share.dims[1:]
    coords = {name: share.coords[name] for name in dims if name in share.coords}
    return xr.Dataset(
        {"learned_at": (dims, np.where(reached, when, np.nan)), "reached": (dims, reached)},
        coords=coords,
        attrs={"level": level},
    )


def learning_order(output: xr.DataArray, target: xr.DataArray, level: float = 0.9) -> xr.DataArray:
    """Rank of each coordinate in the order of learning, 1 first; those not reached come last, tied.

    Arguments as for `learning_times`.
    """
    when = learning_times(output, target, level)["learned_at"]
    values = when.transpose(..., "coordinate").values
    late = np.where(np.isnan(values), np.inf, values)
    rank = 1 + (late[..., None, :] < late[..., :, None]).sum(axis=-1)
    return when.transpose(..., "coordinate").copy(data=rank).rename("rank")


def speed(output: xr.DataArray) -> xr.DataArray:
    """|dC/dt|, the norm over coordinates of the derivative in time (central differences)."""
    moved = output.differentiate("time")
    return ((moved**2).sum("coordinate") ** 0.5).rename("speed")


def smoothed(values: xr.DataArray, instants: float) -> xr.DataArray:
    """A Gaussian mean along `time` that counts instants, whatever lies between them; 0 leaves values as they are.

    The public plots of Yang et al. (2025) smooth paths by 2 evaluations and speeds by 1.5, cut at six widths.
    """
    if instants == 0:
        return values
    from scipy.ndimage import gaussian_filter1d  # only the fits of Figure 6 need it

    return values.copy(data=gaussian_filter1d(values.values, instants, axis=values.get_axis_num("time"), truncate=6.0))


def slow_down(output: xr.DataArray, after: float = 0.5, floor: float = 1e-8) -> xr.Dataset:
    """Fit speed = c e^{−rate t} to the end of a run (section 3.2: convergence slows exponentially).

    Args:
        output: (time, ..., coordinate), time equally spaced.
        after: the tail begins at this fraction of the time span.
        floor: instants slower than floor × the top speed are left out, for they are rounding.

    Returns `rate` and `fit` (R² of log speed against time) over the other axes; NaN where fewer
    than three instants are left.
    """
    pace = speed(output).transpose("time", ...)
    clock = pace["time"].values
    tail = clock >= clock[0] + after * (clock[-1] - clock[0])
    y = pace.values.reshape(len(clock), -1)
    rates, fits = np.full(y.shape[1], np.nan), np.full(y.shape[1], np.nan)
    for k in range(y.shape[1]):
        used = tail & (y[:, k] > floor * y[:, k].max())
        if used.sum() < 3:
            continue
        logs = np.log(y[used, k])
        slope, start = np.polyfit(clock[used], logs, 1)
        rates[k] = -slope
        spread = np.sum((logs - logs.mean()) ** 2)
        fits[k] = 1 - np.sum((logs - start - slope * clock[used]) ** 2) / spread if spread > 0 else 1.0
    dims, shape = pace.dims[1:], pace.shape[1:]
    coords = {name: pace.coords[name] for name in dims if name in pace.coords}
    return xr.Dataset({"rate": (dims, rates.reshape(shape)), "fit": (dims, fits.reshape(shape))}, coords=coords)


def exponential_tail(output: xr.DataArray, target: xr.DataArray, near: float = 0.05, smooth: float = 0.0) -> xr.Dataset:
    """Fit speed = c e^{−rate t} from the top speed on, and say how sure the rate is.

    The tail ends where the distance to the target first falls to `near` of what it was at the top speed: beyond that a
    measured speed is the scatter of what was measured. Instants at which nothing moved are left out.

    Args:
        output: (time, ..., coordinate), times may be spaced at will.
        target: (..., coordinate).
        smooth: the speed is smoothed by so many instants first (see `smoothed`).

    Returns, over the other axes, `rate`, `low` and `high` (its 95 % interval by Student's t), `fit` (R² of log speed
    against time), `instants` (how many were used); NaN where fewer than four are left.
    """
    pace = smoothed(speed(output).transpose("time", ...), smooth)
    away = ((output - target) ** 2).sum("coordinate") ** 0.5
    gap = away.transpose(*pace.dims).values.reshape(pace.sizes["time"], -1)
    clock, y = pace["time"].values, pace.values.reshape(pace.sizes["time"], -1)
    names = ("rate", "low", "high", "fit", "instants")
    table = np.full((len(names), y.shape[1]), np.nan)
    for k in range(y.shape[1]):
        if np.isfinite(y[:, k]).any():
            table[:, k] = _tail(clock, y[:, k], gap[:, k], near)
    dims, shape = pace.dims[1:], pace.shape[1:]
    coords = {name: pace.coords[name] for name in dims if name in pace.coords}
    return xr.Dataset({name: (dims, row.reshape(shape)) for name, row in zip(names, table, strict=True)}, coords=coords)


def _tail(clock: np.ndarray, pace: np.ndarray, gap: np.ndarray, near: float) -> list[float]:
    top = int(np.nanargmax(pace))
    close = np.flatnonzero(gap[top:] <= near * gap[top])
    end = top + int(close[0]) + 1 if len(close) else len(pace)
    used = top + np.flatnonzero(np.nan_to_num(pace[top:end]) > 0)
    if len(used) < 4:
        return [np.nan] * 4 + [float(len(used))]
    line = fit_line(clock[used], np.log(pace[used]))
    return [-line.slope, -line.high, -line.low, line.fit, float(len(used))]


def order_homomorphism(loss: xr.DataArray) -> xr.DataArray:
    """Fraction of pairs u < v of test points with ℓ(u) ≤ ℓ(v), over time (equation B.2).

    Args:
        loss: (time, ..., point), the coordinate `point` names each by its bits, such as "0110";
            u < v where no bit of u exceeds that of v and one is smaller.
    """
    names = [str(name) for name in loss["point"].values]
    if len({len(name) for name in names}) != 1 or set("".join(names)) - {"0", "1"}:
        raise SaddlesError.must_be("point", "named by bits of one length, such as '0110'", names[:3])
    bits = np.array([[int(bit) for bit in name] for name in names])
    below = (bits[:, None] <= bits[None, :]).all(axis=-1) & (bits[:, None] != bits[None, :]).any(axis=-1)
    u, v = np.nonzero(below)
    if not len(u):
        raise SaddlesError(
            f"Two of the points must be comparable, such as '01' and '11'; got {', '.join(names)}. Add the whole cube."
        )
    ordered = loss.transpose(..., "point").values
    share = (ordered[..., u] <= ordered[..., v]).mean(axis=-1)
    return (
        loss.isel(point=0, drop=True)
        .transpose(*(d for d in loss.transpose(..., "point").dims if d != "point"))
        .copy(data=share)
        .rename("order_kept")
    )
