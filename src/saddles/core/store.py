"""Trajectories on disk: Zarr folders, and single files for export.

Stored as Zarr format 2, which holds text coordinates without a warning (format 3 has no settled text type yet), so
that `xarray.open_zarr` reads it where this package is not installed.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.codecs import check_store, refuse_links
from saddles.core.trajectory import SCHEMA
from saddles.errors import SaddlesError, shown
from saddles.runtime.checksums import damaged, seal
from saddles.runtime.files import explained, new_folder, refuse_existing


def save(trajectory: xr.Dataset | xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Write a trajectory to a Zarr folder that does not exist yet, all or nothing."""
    target = Path(path)
    refuse_existing(target, "Saving never overwrites: choose another name, or remove it first")
    write_zarr(trajectory, target)
    return target


def write_zarr(trajectory: xr.Dataset | xr.DataTree, target: Path, *, replace: bool = False) -> None:
    """Write a Zarr folder, all or nothing; `replace` puts it in the place of an older one."""
    with explained(target), new_folder(target, replace=replace) as draft:
        trajectory.to_zarr(draft, zarr_format=2, mode="w")
        seal(draft)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a stored trajectory: a Zarr folder, a run's folder, or a NetCDF file.

    Returns a Dataset, or a DataTree where the store has groups (heads, modules).
    """
    source = Path(path)
    if (source / "trajectory.zarr").is_dir():
        source = source / "trajectory.zarr"
    if not source.exists():
        raise SaddlesError(f"{path} does not exist. Give a run's folder or a .zarr folder; finished runs are in runs/.")
    try:
        if source.is_file():
            stored = xr.DataTree(xr.load_dataset(source, engine="h5netcdf"))
        else:
            refuse_links(source)
            _refuse_damage(source)
            listed = check_store(source)
            with xr.open_datatree(source, engine="zarr", chunks=None, consolidated=listed) as tree:
                stored = _whole_cells(tree) if "cell_done" in tree else tree.load()
    except SaddlesError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        raise SaddlesError(f"{path} cannot be read as a stored trajectory ({_first_line(error)}).") from error
    schema = stored.attrs.get("schema", SCHEMA)
    if not isinstance(schema, int | np.integer):
        raise SaddlesError(f"{path} cannot be read: its layout version must be a whole number; got {shown(schema)}.")
    if schema > SCHEMA:
        raise SaddlesError(
            f"{path} has layout version {stored.attrs['schema']}, and this saddles reads up to {SCHEMA}. "
            "Install a newer saddles."
        )
    return stored if stored.children else stored.to_dataset()


def _refuse_damage(source: Path) -> None:
    bad = damaged(source)
    if not bad:
        return
    home = source.parent
    if (home / "sweep.json").exists():
        again = f"Compute the cells in it again: saddles sweep --resume {home} --retry"
    elif (home / "run.json").exists():
        again = "Restore it from a copy, or compute the run again with --fresh"
    elif home.name == "parts":
        again = f"Remove {source}: the resumed run computes this part again, and keeps the others"
    else:
        again = "Restore it from a copy, or compute it again"
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise SaddlesError(f"{source} is damaged: {bad[0]}{others} differs from its checksum or is missing. {again}.")


def _first_line(error: BaseException) -> str:
    return shown(next(iter(str(error).splitlines()), "") or type(error).__name__).strip("'\"")


def _whole_cells(tree: xr.DataTree) -> xr.DataTree:
    """A sweep that may still be growing: the cells that were whole when it was opened, NaN elsewhere."""
    whole = tree["cell_done"].load() == 1
    stored = tree.to_dataset().load()
    masked: dict[str, xr.DataArray] = {}
    for name, values in stored.variables.items():
        own = not values.attrs.get("grid") and not str(name).startswith("cell_")
        if own and set(whole.dims) <= set(values.dims):
            text = values.dtype.kind in "OTU"
            plain = stored[name].astype(object if text else float)
            masked[str(name)] = plain.where(whole, "" if text else np.nan).transpose(*values.dims)
            if text:
                masked[str(name)] = masked[str(name)].astype(str)
    labels = {name: masked.pop(name) for name in list(masked) if name in stored.coords}
    if "own_time" in labels and "time" not in stored.coords:
        rows, unit = np.arange(stored.sizes["time"], dtype=float), "row; the clock of each cell is own_time"
        labels["time"] = xr.DataArray(rows, dims="time", attrs={"unit": unit})
    return xr.DataTree(stored.assign(masked).assign_coords(labels))


def export(trajectory: Any, path: str | os.PathLike[str], to: str) -> list[Path]:
    """Write a trajectory as one NetCDF file, or as one CSV table for each set of dimensions.

    Args:
        path: the file to make; for CSV the dimensions are put into the name, and the
            attributes go into a `.json` beside it.
        to: "netcdf" or "csv".
    """
    target = Path(path)
    if to not in ("csv", "netcdf"):
        raise SaddlesError.must_be("to", "'csv' or 'netcdf'", to)
    target.parent.mkdir(parents=True, exist_ok=True)
    if to == "netcdf":
        refuse_existing(target)
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
        refuse_existing(file)
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
