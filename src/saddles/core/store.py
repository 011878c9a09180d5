"""Trajectories on disk: Zarr folders, and single files for export.

Stored as Zarr format 2, which holds text coordinates without a warning (format 3 has no settled text type yet), so
that `xarray.open_zarr` reads it where this package is not installed.
"""

import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.codecs import check_store
from saddles.core.trajectory import SCHEMA, instead
from saddles.errors import SaddlesError, first_line, shown
from saddles.runtime.checksums import damaged, seal
from saddles.runtime.files import (
    as_path,
    explained,
    new_file,
    new_folder,
    new_path,
    refuse_existing,
    refuse_links,
    write_json,
)  # fmt: skip
from saddles.runtime.progress import bar

BLOCK = 20_000
"""Rows of a table that are written between two looks at the progress, in less than a second."""
MARKS = (".zgroup", ".zmetadata", "zarr.json")
"""Files of which a Zarr folder has at least one."""


def save(trajectory: xr.Dataset | xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Write a trajectory to a Zarr folder that does not exist yet, all or nothing."""
    if not isinstance(trajectory, xr.Dataset | xr.DataTree):
        raise SaddlesError.must_be("trajectory", "an xarray.Dataset or DataTree", trajectory, instead(trajectory))
    target = as_path(path)
    with explained(target):
        refuse_existing(target, "Saving never overwrites: choose another name, or remove it first")
    write_zarr(trajectory, target)
    return target


def write_zarr(trajectory: xr.Dataset | xr.DataTree, target: Path, *, replace: bool = False) -> None:
    """Write a Zarr folder, all or nothing; `replace` puts it in the place of an older one."""
    with explained(target), new_folder(target, replace=replace) as draft:
        try:
            trajectory.to_zarr(draft, zarr_format=2, mode="w")
        except TypeError as error:  # the cause names the type that JSON does not have
            what, why = first_line(error).removesuffix("."), first_line(error.__cause__ or error)
            raise SaddlesError(
                f"{target} cannot be written: {what} ({why}). Attributes must be text, numbers or lists of them."
            ) from error
        seal(draft)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a stored trajectory: a Zarr folder, a run's folder, or a NetCDF file.

    Returns a Dataset, or a DataTree where the store has groups (heads, modules).
    """
    source = as_path(path)
    if os.path.isdir(source / "trajectory.zarr"):  # unlike the methods of Path, false for a name that is too long
        source = source / "trajectory.zarr"
    if not os.path.exists(source):
        raise SaddlesError(f"{path} does not exist. Give a run's folder or a .zarr folder; finished runs are in runs/.")
    try:
        if source.is_file():
            _refuse_outside(source)
            stored = xr.load_datatree(source, engine="h5netcdf", phony_dims="access")
            if any(str(axis).startswith("phony_dim_") for node in stored.subtree for axis in node.dims):
                raise SaddlesError(f"{path} cannot be read as a stored trajectory (some of its axes have no name).")
        else:
            if not any((source / mark).is_file() for mark in MARKS):
                raise SaddlesError(f"{path} holds no stored trajectory. Give a run's folder or a .zarr folder.")
            refuse_links(source)
            _refuse_damage(source)
            listed = check_store(source)
            with xr.open_datatree(source, engine="zarr", chunks=None, consolidated=listed) as tree:
                stored = _whole_cells(tree) if "cell_done" in tree else tree.load()
                _refuse_broken_text(stored)
        found = stored if stored.children else stored.to_dataset()
    except SaddlesError:
        raise
    except Exception as error:  # decoders of damaged bytes raise whatever they like, even SystemError
        raise SaddlesError(f"{path} cannot be read as a stored trajectory ({first_line(error)}).") from error
    schema = stored.attrs.get("schema", SCHEMA)
    if not isinstance(schema, int | np.integer):
        raise SaddlesError(f"{path} cannot be read: its layout version must be a whole number; got {shown(schema)}.")
    if schema > SCHEMA:
        raise SaddlesError(
            f"{path} has layout version {stored.attrs['schema']}, and this saddles reads up to {SCHEMA}. "
            "Install a newer saddles."
        )
    return found


def _refuse_damage(source: Path) -> None:
    bad = damaged(source)
    if not bad:
        return
    home = source.parent
    if (home / "sweep.json").exists():
        again = f"Compute the cells in it again: saddles sweep --resume {shlex.quote(str(home))} --retry"
    elif (home / "run.json").exists():
        again = "Restore it from a copy, or compute the run again with --fresh"
    elif home.name == "parts":
        again = f"Remove {source}: the resumed run computes this part again, and keeps the others"
    else:
        again = "Restore it from a copy, or compute it again"
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise SaddlesError(f"{source} is damaged: {bad[0]}{others} differs from its checksum or is missing. {again}.")


def _refuse_outside(file: Path) -> None:
    """Refuse a NetCDF file that would read others, by links or stored arrays, and one whose groups never end."""
    import h5py

    with h5py.File(file, "r") as whole:
        todo: list[h5py.Group] = [whole]
        seen, soft, again = set(), [], False
        while todo:
            group = todo.pop()
            if group.id in seen:  # a group may hold itself
                again = True
                continue
            seen.add(group.id)
            for name in group:
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    raise _outside(file, str(name))
                if isinstance(link, h5py.SoftLink):  # leads to what is met by its own name, or nowhere
                    soft.append((group, name))
                    continue
                thing = group[name]
                if isinstance(thing, h5py.Group):
                    todo.append(thing)
                elif isinstance(thing, h5py.Dataset) and (thing.external or thing.is_virtual):
                    raise _outside(file, str(name))
        if again or any(isinstance(group.get(name), h5py.Group) for group, name in soft):
            raise SaddlesError(f"{file} cannot be read as a stored trajectory (it has a group in two places).")


def _outside(file: Path, name: str) -> SaddlesError:
    return SaddlesError(
        f"{file} keeps {shown(name)} in another file, and is not read. Copy the data into one file, for instance with "
        "`saddles export`."
    )


def _refuse_broken_text(stored: xr.DataTree) -> None:
    """Refuse text with numbers beyond Unicode: whatever copies it later would end in an error of Python itself."""
    for node in stored.subtree:
        for name, given in node.variables.items():
            if given.dtype.kind == "U" and given.size and given.dtype.itemsize:
                letters = np.ascontiguousarray(given.values).view(np.dtype("u4").newbyteorder(given.dtype.byteorder))
                if letters.max() > sys.maxunicode:
                    raise ValueError(f"{name} holds what is not text")


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
    target = as_path(path)
    if to not in ("csv", "netcdf"):
        raise SaddlesError.must_be("to", "'csv' or 'netcdf'", to)
    with explained(target, "Choose another --out, or make room"):
        if to == "netcdf":
            refuse_existing(target)
            with new_path(target) as draft:
                _in_netcdf_types(trajectory).to_netcdf(draft, engine="h5netcdf")
            return [target]
        return _write_tables(_groups(trajectory), target)


def _write_tables(groups: dict[tuple[str, ...], xr.Dataset], target: Path) -> list[Path]:
    plans: dict[Path, xr.Dataset] = {}
    for prefix, data in groups.items():
        shapes: dict[tuple[Any, ...], list[Any]] = {}
        for name, variable in data.data_vars.items():
            shapes.setdefault(variable.dims, []).append(name)
        for dims, names in shapes.items():
            suffix = re.sub(r"[/\\\0]", "_", "-".join([*prefix, *(str(d) for d in dims)])) or "scalars"
            # A group `a` with the axis `b` and the axes `a`, `b` of the root would have one name.
            numbered = (f"-{k}" if k > 1 else "" for k in itertools.count(1))
            files = (target.with_name(f"{target.stem}-{suffix}{number}.csv") for number in numbered)
            plans[next(file for file in files if file not in plans)] = data[names]
    notes = target.with_name(f"{target.stem}-attributes.json")
    for file in [notes, *plans]:
        refuse_existing(file)
    with bar(f"{target.name}, rows", sum(math.prod(data.sizes.values()) for data in plans.values())) as progress:
        for file, data in plans.items():
            _write_table(data, file, progress.advance)
    write_json(notes, {"/".join(k) or "/": {n: _plain(v) for n, v in g.attrs.items()} for k, g in groups.items()})
    return [*plans, notes]


def _plain(value: object) -> object:
    """An attribute without NumPy, whose types NetCDF gives back and JSON does not know."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _in_netcdf_types(trajectory: Any) -> Any:
    """A copy that has as JSON each attribute for which NetCDF has no type: true, nothing, records, mixed lists."""
    if isinstance(trajectory, xr.DataTree):
        nodes = {node.path: _in_netcdf_types(node.to_dataset(inherit=False)) for node in trajectory.subtree}
        return xr.DataTree.from_dict(nodes, name=trajectory.name)
    copy = trajectory.copy()
    for part in (copy, *copy.variables.values()):
        part.attrs = {name: _in_netcdf_type(value) for name, value in part.attrs.items()}
    return copy


def _in_netcdf_type(value: object) -> object:
    plain = _plain(value)
    members = plain if isinstance(plain, list | tuple) else [plain]
    text = all(isinstance(member, str | bytes) for member in members)
    number = not any(isinstance(member, str | bytes | bool | list | tuple) for member in members)
    if text or (number and np.asarray(plain).dtype.kind in "iufc"):
        return value
    return json.dumps(plain, default=str)


def _write_table(data: xr.Dataset, file: Path, count: Callable[[float], None]) -> None:
    frame = (data.to_dataframe() if data.sizes else data.expand_dims("row").to_dataframe()).reset_index()
    for name in frame.columns:
        if frame[name].dtype.kind not in "fiubcmM":
            frame[name] = frame[name].map(_harmless)
    frame.columns = [_harmless(name) for name in frame.columns]
    with new_file(file) as stream:
        for start in range(0, max(1, len(frame)), BLOCK):  # a table without rows has a heading
            block = frame.iloc[start : start + BLOCK]
            block.to_csv(stream, index=False, header=start == 0)
            count(len(block))


def _harmless(cell: object) -> object:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _groups(trajectory: Any) -> dict[tuple[str, ...], xr.Dataset]:
    if isinstance(trajectory, xr.Dataset):
        return {(): trajectory}
    return {
        tuple(part for part in node.path.split("/") if part): node.to_dataset()
        for node in trajectory.subtree
        if node.data_vars
    }
