"""Runs side by side on a common clock: the norm of the weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.status import FINISHED, Status, status_of
from saddles.core.trajectory import Trajectory, make_trajectory

UNIT = "log10 of the norm of the weights"
PAPER = "sheen2024implicit"


def norm_grid(first: float, last: float, per_decade: int = 4) -> np.ndarray:
    """log10 of norms, equally spaced, both ends included."""
    low, high = np.log10(first), np.log10(last)
    return np.linspace(low, high, round(per_decade * (high - low)) + 1)


def on_norms(run: Trajectory, grid: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Variables of a run, linear in log10 of its norm, where it has grown to each norm of the grid.

    NaN beyond the run's last norm; a norm that dips is read at its last passage.
    """
    norm = np.log10(np.maximum(run["frobenius_norm"].values, 1e-300))
    climb = np.minimum.accumulate(norm[::-1])[::-1]
    inside = grid <= climb[-1] + 1e-6
    return {name: np.where(inside, np.interp(grid, climb, run[name].values), np.nan) for name in names}


def gather(
    rows: Sequence[xr.Dataset], grid: np.ndarray, axis: str, labels: Sequence[Any], **provenance: Any
) -> Trajectory:
    """Lay runs side by side along a new axis behind time; what has no time gets the axis alone."""
    variables: dict[str, Any] = {}
    for name in rows[0].data_vars:
        dims = rows[0][name].dims
        place = 1 if dims[:1] == ("time",) else 0
        stacked = np.stack([row[name].values for row in rows], axis=place)
        variables[str(name)] = ((*dims[:place], axis, *dims[place:]), stacked)
    coords = {axis: list(labels)}
    for name, values in rows[0].coords.items():
        if name != "time" and values.dims == (name,):
            coords[str(name)] = values.values
    broken = sorted({str(status) for status in map(status_of, rows) if not status.ok})
    notes = {"stopped_runs": "; ".join(broken)} if broken else {}
    return make_trajectory(
        variables, grid, unit=UNIT, coords=coords, lab="margin", kind="simulated", **notes, **provenance
    )


def piece(
    values: dict[str, np.ndarray], numbers: dict[str, Any], grid: np.ndarray, status: Status = FINISHED
) -> xr.Dataset:
    """One run on the grid, with numbers that do not depend on it."""
    variables: dict[str, Any] = {name: (("time",), row) for name, row in values.items()}
    variables |= {name: value if isinstance(value, tuple) else ((), value) for name, value in numbers.items()}
    return make_trajectory(variables, grid, unit=UNIT, status=status)


def at(trajectory: Trajectory, name: str, norm: float) -> np.ndarray:
    """A variable where the norm is closest to `norm`."""
    place = int(np.argmin(np.abs(trajectory["time"].values - np.log10(norm))))
    return trajectory[name].isel(time=place).values


def fall_rate(clock: np.ndarray, values: np.ndarray) -> float:
    """The a of values ∝ clock^−a by least squares of logarithms; NaN where fewer than three points are positive."""
    fine = np.isfinite(clock) & np.isfinite(values) & (clock > 0) & (values > 0)
    if fine.sum() < 3:
        return float("nan")
    return float(-np.polyfit(np.log(clock[fine]), np.log(values[fine]), 1)[0])
