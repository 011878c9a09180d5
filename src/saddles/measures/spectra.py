"""Ranks of a spectrum, and the best instant of a run."""

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError


def need(trajectory: xr.Dataset, *names: str) -> None:
    """Refuse a trajectory that lacks variables, and say how to get them."""
    missing = [name for name in names if name not in trajectory]
    if missing:
        raise SaddlesError(f"The trajectory must have {', '.join(missing)}. Ask for it with `keep`.")


def stable_rank(trajectory: xr.Dataset) -> xr.DataArray:
    """‖A‖²_F / ‖A‖²_op from `singular_value`; 0 for the zero matrix, NaN where there are no singular values."""
    need(trajectory, "singular_value")
    values = abs(trajectory["singular_value"])  # those of `Aligned` have a sign
    largest = values.max("mode")
    share = values / largest.where(largest > 0, 1.0)  # before it is squared, or small matrices would underflow to 0
    return (share**2).sum("mode").where(np.isfinite(largest)).rename("stable_rank")


def best(trajectory: xr.Dataset, variable: str = "test_error") -> xr.Dataset:
    """Where a variable is smallest: its value, and the `time` and `step` of it."""
    need(trajectory, variable)
    values = trajectory[variable]
    where = values.argmin("time")
    there = {variable: values.isel(time=where), "time": trajectory["time"].isel(time=where)}
    if "step" in trajectory.coords:
        there["step"] = trajectory["step"].isel(time=where)
    return xr.Dataset({f"best_{name}": (part.dims, np.asarray(part)) for name, part in there.items()})
