"""The labelled result that everything in saddles makes and reads.

A trajectory is a plain `xarray.Dataset`: the first dimension is `time`, axes have names, and its origin is in
its attributes. `saddles.core.store` writes and reads it.
"""

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

import saddles
from saddles.core import status as endings
from saddles.core.provenance import describe, versions
from saddles.core.status import Status
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike

SCHEMA = 1
"""Version of the layout below; a reader refuses a newer one."""

Trajectory = xr.Dataset
"""What `simulate` and `predict` return."""

Variable = ArrayLike | tuple[Sequence[str], ArrayLike]
"""Values along `time`, or (dimension names, values)."""


def make_trajectory(
    variables: Mapping[str, Variable],
    times: ArrayLike,
    *,
    unit: str = "gradient time",
    coords: Mapping[str, object] | None = None,
    status: Status | str = endings.FINISHED,
    wall_time: float = 0.0,
    gradient_evaluations: int = 0,
    **provenance: object,
) -> Trajectory:
    """Label arrays as a trajectory; `saddles.trajectory` is this function.

    Args:
        variables: name -> values of shape (time,), or (dimension names, values); those over time have `time` first.
        times: the clock, shape (time,).
        unit: what one unit of the clock is.
        coords: further coordinates, name -> array along the dimension of that name, or (dimension, array).
        status: how the run ended.
        wall_time: seconds it took.
        gradient_evaluations: how many gradients it took.
        provenance: model, task, method or theory, seed, settings: text, numbers, or frozen objects, which are written
            out in words.
    """
    if not hasattr(variables, "items"):  # a DataFrame has them, too
        raise SaddlesError.must_be("variables", "a dictionary of names and values", variables)
    try:
        clock = np.asarray(times, dtype=float)
    except (TypeError, ValueError) as error:
        raise SaddlesError.must_be("times", "numbers", times) from error
    data = xr.Dataset(
        data_vars={name: _variable(name, given, clock) for name, given in variables.items()},
        coords={"time": clock, **(coords or {})},
    )
    data["time"].attrs["unit"] = unit
    data.attrs = {"schema": SCHEMA, "status": str(status)}
    data.attrs |= {key: _plain(value) for key, value in provenance.items() if value is not None}
    data.attrs |= {
        "wall_time_s": float(wall_time),
        "gradient_evaluations": int(gradient_evaluations),
        "versions": json.dumps(versions()),
    }
    return data


trajectory = make_trajectory
"""The public name, `saddles.trajectory`."""


def instead(thing: object) -> str:
    """What to do who gave this in the place of a trajectory; "" where it cannot be told."""
    if isinstance(thing, str | os.PathLike | None):
        return "Read a stored one with saddles.load"
    if hasattr(type(thing), "trajectory"):  # a run, a sweep
        return "Give its attribute `trajectory`"
    if isinstance(thing, xr.DataArray):
        return "Give the Dataset that it is part of"
    return "Give them one by one" if isinstance(thing, list | tuple) else ""


def lost_variables(found: xr.Dataset | xr.DataTree) -> list[str]:
    """Names of the variables of real or complex numbers over time that are NaN everywhere at the last time."""
    parts = [found] if isinstance(found, xr.Dataset) else [node.to_dataset() for node in found.subtree]
    rows = [row for part in parts for row in part.data_vars.items() if row[1].dtype.kind in "fc" and row[1].size]
    return [str(name) for name, values in rows if "time" in values.dims and bool(values[{"time": -1}].isnull().all())]


@xr.register_datatree_accessor("plot")
class Plot:
    """`tree.plot()`: a recording as a figure, by `saddles.plot`."""

    def __init__(self, tree: xr.DataTree) -> None:
        self._tree = tree

    def __call__(self) -> object:
        """A matplotlib figure."""
        return saddles.plot(self._tree)


def _variable(name: str, given: Variable, clock: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    if isinstance(given, tuple) and len(given) == 2 and not np.isscalar(given[0]):
        dims: Sequence[str] = given[0]  # pyright: ignore[reportAssignmentType]  (a tuple of two may be an array, too)
        names = [str(dim) for dim in dims]
        values = np.asarray(given[1])
    else:
        values = np.asarray(given)
        names = ["time"]
    if values.ndim != len(names) or ("time" in names and values.shape[names.index("time")] != len(clock)):
        raise SaddlesError(
            f"The variable {name!r} of shape {values.shape} does not fit the dimensions ({', '.join(names)}) with "
            f"{len(clock)} times. Give (dimension names, values)."
        )
    return tuple(names), values


def _plain(value: object) -> str | int | float:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=describe)
    if isinstance(value, np.generic):
        return value.item()
    return describe(value)
