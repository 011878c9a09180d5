"""Stages of learning, read off a trajectory alone: what became active, when, and the plateaus between."""

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError

THRESHOLD = 1e-5
"""Where a coordinate counts as active (Boix-Adserà et al., appendix A)."""

UNIT = 0.25
"""|β| at |u+v| = 1, to which an activation's exponential growth is extrapolated."""

CANDIDATES = ("beta", "singular_value")


def clock_of(trajectory: xr.Dataset) -> np.ndarray:
    """The clock on which stages are counted: `time`, or `rescaled_time` in results of version 0.1 that have it."""
    return trajectory[_clock_name(trajectory)].values


def _clock_name(trajectory: xr.Dataset) -> str:
    return "rescaled_time" if "rescaled_time" in trajectory.coords else "time"


def stages(trajectory: xr.Dataset, threshold: float = THRESHOLD, variable: str | None = None) -> xr.Dataset:
    """Detect activations: a coordinate's size rises through `threshold`.

    Between saved instants log|x| is taken as linear, which is exact while a coordinate grows
    exponentially. A coordinate that falls below the threshold and rises again is active twice; one that is
    above it at the start has no activation.

    Args:
        trajectory: any with a variable over (time, something): β of a flow, singular values of a recorded
            training run. Several runs on one axis are measured one by one.
        threshold: size that counts as active.
        variable: its name; default `beta`, else `singular_value`.

    Returns:
        one row per activation, in order of time:
        `stage_time`, `stage_coordinate` (counted from 0), `stage_sign`, `support_size` just after,
        `unit_time` (when |x| would have reached ¼, that is |u+v| = 1, had it grown on as it did at the
        threshold), and `stage_loss` (the loss half-way to the next activation) where there is a `loss`;
        and for each coordinate and time `active`.
    """
    clock, sizes, signs = _rows(trajectory, threshold, variable)
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(sizes, 1e-300))
    above = sizes > threshold
    rises = np.argwhere(~above[:-1] & above[1:])
    level = np.log(threshold)
    rows: list[tuple[float, int, int, float, int]] = []
    for row, coordinate in rises:
        low, high = logs[row, coordinate], logs[row + 1, coordinate]
        pace = (high - low) / (clock[row + 1] - clock[row])
        when = clock[row] + (level - low) / pace
        two = slice(row, row + 2)
        support = _active_count(when, clock[two], logs[two], above[two], level)
        unit = when + (np.log(UNIT) - level) / pace
        rows.append((when, int(coordinate), int(signs[row + 1, coordinate]), unit, support))
    rows.sort(key=lambda one: one[0])
    times = np.array([one[0] for one in rows])
    variables: dict[str, tuple[str | tuple[str, ...], np.ndarray]] = {
        "stage_time": ("stage", times),
        "stage_coordinate": ("stage", np.array([one[1] for one in rows], dtype=int)),
        "stage_sign": ("stage", np.array([one[2] for one in rows], dtype=int)),
        "unit_time": ("stage", np.array([one[3] for one in rows])),
        "support_size": ("stage", np.array([one[4] for one in rows], dtype=int)),
        "active": (("time", "coordinate"), above),
    }
    if "loss" in trajectory and trajectory["loss"].dims == ("time",) and len(times):
        middle = (times + np.append(times[1:], clock[-1])) / 2
        variables["stage_loss"] = ("stage", np.interp(middle, clock, trajectory["loss"].values))
    return xr.Dataset(
        variables,
        coords={"stage": np.arange(len(rows)), "time": trajectory["time"].values},
        attrs={"threshold": threshold, "clock": _clock_name(trajectory)},
    )


def _active_count(when: float, clock: np.ndarray, logs: np.ndarray, above: np.ndarray, level: float) -> int:
    """How many are active at `when`, between two saved instants, where several may rise or fall one after the other."""
    before, after = above
    with np.errstate(divide="ignore", invalid="ignore"):  # those that stay on one side cross at no time
        crossed = clock[0] + (level - logs[0]) / ((logs[1] - logs[0]) / (clock[1] - clock[0]))
    return int(np.where(before == after, after, np.where(after, crossed <= when, crossed > when)).sum())


def _rows(trajectory: xr.Dataset, threshold: float, variable: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not 0 < threshold < np.inf:
        raise SaddlesError.must_be("threshold", "a positive size", threshold)
    name = variable or next((known for known in CANDIDATES if known in trajectory), None)
    if name is None or name not in trajectory:
        raise SaddlesError(
            f"The trajectory must have {variable or ' or '.join(CANDIDATES)} over time; it has "
            f"{', '.join(map(str, trajectory.data_vars))}. Name a `variable`."
        )
    values = trajectory[name]
    if values.ndim != 2 or values.dims[0] != "time":
        raise SaddlesError(
            f"{name} must have the dimensions (time, something); it has {values.dims}. Choose one run with .isel(...)."
        )
    return clock_of(trajectory), np.abs(values.values), np.sign(values.values)


def plateaus(trajectory: xr.Dataset, fall: float = 0.01) -> xr.Dataset:
    """Stretches of time on which the loss stays within `fall` of its whole range.

    Greedy from the start: a plateau lasts while the loss is within `fall`·(max − min) of where it began.
    Only those longer than a hundredth of the trajectory are kept.

    Returns `plateau_start`, `plateau_end`, `plateau_loss` (plateau), on the clock of `stages`.
    """
    if "loss" not in trajectory or trajectory["loss"].dims != ("time",):
        raise SaddlesError("The trajectory must have a `loss` over time alone. Choose one run with .isel(...).")
    clock, loss = clock_of(trajectory), trajectory["loss"].values
    band, rows, first = fall * float(np.ptp(loss)), [], 0
    for now in range(1, len(loss) + 1):
        if now == len(loss) or abs(loss[now] - loss[first]) > band:
            if clock[now - 1] - clock[first] > 0.01 * (clock[-1] - clock[0]):
                rows.append((clock[first], clock[now - 1], float(np.median(loss[first:now]))))
            first = now
    table = np.array(rows).reshape(-1, 3)
    return xr.Dataset(
        {name: ("plateau", table[:, i]) for i, name in enumerate(("plateau_start", "plateau_end", "plateau_loss"))},
        attrs={"clock": _clock_name(trajectory)},
    )
