"""The labelled result that everything in saddles makes and reads.

A trajectory is a plain `xarray.Dataset`: the first dimension is `time`, axes have
names, and where it came from is in its attributes. It is stored as Zarr format 2,
which holds text coordinates without a warning (format 3 has no settled text type
yet), and opens with `xarray.open_zarr` where this package is not installed.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.codecs import check_codecs
from saddles.core.provenance import describe, versions
from saddles.errors import SaddlesError

SCHEMA = 1
"""Version of the layout below; a reader refuses a newer one."""

Trajectory = xr.Dataset
"""What `simulate` and `predict` return."""

FINISHED = "finished"
DIVERGED = "stopped: diverged"


def make_trajectory(
    variables: Mapping[str, tuple[tuple[str, ...], Any]],
    times: Any,
    *,
    unit: str,
    coords: Mapping[str, Any] | None = None,
    status: str = FINISHED,
    wall_time: float = 0.0,
    gradient_evaluations: int = 0,
    **provenance: Any,
) -> Trajectory:
    """Label arrays as a trajectory.

    Args:
        variables: name -> (dimension names, array); those over time have `time` first.
        times: the clock, shape (time,).
        unit: what one unit of the clock is, for instance "gradient time".
        coords: further coordinates, name -> array along the dimension of that name,
            or (dimension, array).
        status: `finished` or `stopped: reason`.
        provenance: model, task, method or theory, seed, settings: text, numbers, or
            frozen objects, which are written out in words.
    """
    data = xr.Dataset(
        data_vars={name: (dims, np.asarray(values)) for name, (dims, values) in variables.items()},
        coords={"time": np.asarray(times, dtype=float), **(coords or {})},
    )
    data["time"].attrs["unit"] = unit
    data.attrs = {"schema": SCHEMA, "status": status}
    data.attrs |= {key: _plain(value) for key, value in provenance.items() if value is not None}
    data.attrs |= {
        "wall_time_s": float(wall_time),
        "gradient_evaluations": int(gradient_evaluations),
        "versions": json.dumps(versions()),
    }
    return data


def _plain(value: Any) -> str | int | float:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=describe)
    if isinstance(value, np.generic):
        return value.item()
    return describe(value)


def save(trajectory: xr.Dataset | xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Write a trajectory to a Zarr folder that does not exist yet, all or nothing."""
    target = Path(path)
    if target.exists():
        raise SaddlesError.about(
            f"{target} exists already", "saving never overwrites", "choose another name or remove it first"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise SaddlesError.about(
            f"{target.parent} cannot be written ({error.strerror})",
            "a folder with write permission is needed",
            "choose another place",
        ) from error
    try:
        trajectory.to_zarr(draft / "data", zarr_format=2)
        os.replace(draft / "data", target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def load(path: str | os.PathLike[str]) -> Any:
    """Read a stored trajectory: a Zarr folder, a run's folder, or a NetCDF file.

    Returns a Dataset, or a DataTree where the store has groups (heads, modules).
    """
    source = Path(path)
    if (source / "trajectory.zarr").is_dir():
        source = source / "trajectory.zarr"
    if not source.exists():
        raise SaddlesError.about(
            f"{path} does not exist", "a run's folder or a .zarr folder is needed", "see `runs/` for finished runs"
        )
    try:
        if source.is_file():
            found = xr.DataTree(xr.load_dataset(source, engine="h5netcdf"))
        else:
            check_codecs(source)
            with xr.open_datatree(source, engine="zarr", chunks=None) as tree:
                found = _whole_cells(tree) if "cell_done" in tree else tree.load()
    except SaddlesError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise SaddlesError.about(
            f"{path} could not be read ({error})", "a stored trajectory is needed", "was it made by `saddles run`?"
        ) from error
    if int(found.attrs.get("schema", SCHEMA)) > SCHEMA:
        raise SaddlesError.about(
            f"{path} has layout version {found.attrs['schema']}",
            f"this saddles reads up to {SCHEMA}",
            "install a newer saddles",
        )
    return found if found.children else found.to_dataset()


def _whole_cells(tree: xr.DataTree) -> xr.DataTree:
    """A sweep that may still be growing: the cells that were whole when it was opened, NaN elsewhere."""
    whole = tree["cell_done"].load() == 1
    found = tree.to_dataset().load()
    masked: dict[str, xr.DataArray] = {}
    for name, values in found.variables.items():
        own = not values.attrs.get("grid") and not str(name).startswith("cell_")
        if own and set(whole.dims) <= set(values.dims):
            text = values.dtype.kind in "OTU"
            plain = found[name].astype(object if text else float)
            masked[str(name)] = plain.where(whole, "" if text else np.nan).transpose(*values.dims)
            if text:
                masked[str(name)] = masked[str(name)].astype(str)
    labels = {name: masked.pop(name) for name in list(masked) if name in found.coords}
    if "own_time" in labels and "time" not in found.coords:
        rows, unit = np.arange(found.sizes["time"], dtype=float), "row; the clock of each cell is own_time"
        labels["time"] = xr.DataArray(rows, dims="time", attrs={"unit": unit})
    return xr.DataTree(found.assign(masked).assign_coords(labels))


def export(trajectory: Any, path: str | os.PathLike[str], to: str) -> list[Path]:
    """Write a trajectory as one NetCDF file, or as one CSV table for each set of dimensions.

    Args:
        path: the file to make; for CSV the dimensions are put into the name, and the
            attributes go into a `.json` beside it.
        to: "netcdf" or "csv".
    """
    target = Path(path)
    if to not in ("csv", "netcdf"):
        raise SaddlesError.about(f"the format {to!r} came", "csv and netcdf are written", "use --to csv")
    target.parent.mkdir(parents=True, exist_ok=True)
    if to == "netcdf":
        _refuse_existing(target)
        trajectory.to_netcdf(target, engine="h5netcdf")
        return [target]
    groups = _groups(trajectory)
    plans: list[tuple[Path, xr.Dataset, list[Any]]] = []
    for prefix, data in groups.items():
        shapes: dict[tuple[Any, ...], list[Any]] = {}
        for name, variable in data.data_vars.items():
            shapes.setdefault(variable.dims, []).append(name)
        for dims, names in shapes.items():
            suffix = "-".join([*prefix, *(str(d) for d in dims)]) or "scalars"
            plans.append((target.with_name(f"{target.stem}-{suffix}.csv"), data, names))
    notes = target.with_name(f"{target.stem}-attributes.json")
    for file in [notes, *(plan[0] for plan in plans)]:
        _refuse_existing(file)
    for file, data, names in plans:
        _write_table(data[names], file)
    notes.write_text(json.dumps({"/".join(k) or "/": dict(g.attrs) for k, g in groups.items()}, indent=2) + "\n")
    return [*(plan[0] for plan in plans), notes]


def _write_table(data: xr.Dataset, file: Path) -> None:
    frame = data.to_dataframe() if data.sizes else data.expand_dims("row").to_dataframe()
    frame.to_csv(file)


def _groups(trajectory: Any) -> dict[tuple[str, ...], xr.Dataset]:
    if isinstance(trajectory, xr.Dataset):
        return {(): trajectory}
    return {
        tuple(part for part in node.path.split("/") if part): node.to_dataset()
        for node in trajectory.subtree
        if node.data_vars
    }


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise SaddlesError.about(f"{file} exists already", "exporting never overwrites", "choose another name")
