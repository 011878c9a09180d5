"""The folders named on the command line: which runs are stored in them, and nothing outside of them."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from saddles.core.codecs import check_store
from saddles.core.store import load
from saddles.errors import SaddlesError

DEEPEST = 8
"""Folders below a named one that are looked into."""
MOST_FOUND = 500
"""Runs that are listed."""
MOST_FILES = 50_000
"""Files of one store."""
MOST_BYTES = 400_000_000
"""Numbers of one run that are read, uncompressed."""
QUOTED = 60
"""Characters of a wrong name that a message repeats."""


@dataclass(frozen=True)
class StoredRun:
    """A run on disk: its name in links, what it is, and words for a list."""

    name: str
    kind: str
    words: str


class RunFolders:
    """Named folders. A run's name is the number of its folder and the path below it, "0/linear/figure-1/ab12"."""

    def __init__(self, folders: Sequence[str | os.PathLike[str]] = ()) -> None:
        for folder in folders:
            if not Path(folder).is_dir():
                raise SaddlesError(f"{folder} must be a folder that exists. Name the folder of your runs.")
        self.roots = [Path(folder).resolve() for folder in folders]

    def list(self) -> list[StoredRun]:
        """Runs, recordings and stored trajectories, newest first."""
        found = []
        for number, root in enumerate(self.roots):
            for place, kind in _walk(root):
                if len(found) < MOST_FOUND:
                    name = f"{number}/{place.relative_to(root).as_posix()}".removesuffix("/.")
                    found.append((_changed(place), StoredRun(name, kind, _words(place, root, kind))))
        return [run for _, run in sorted(found, key=lambda pair: (-pair[0], pair[1].name))]

    def _root(self, name: str) -> Path:
        number = name.partition("/")[0]
        if number.isascii() and number.isdecimal() and int(number) < len(self.roots):
            return self.roots[int(number)]
        raise _outside(name)

    def place(self, name: str) -> Path:
        """The folder or file of a run; refused if it is not inside a named folder, links included."""
        root, rest = self._root(name), name.partition("/")[2]
        if "\0" in rest or Path(rest).is_absolute():
            raise _outside(name)
        place = (root / rest).resolve()
        if not place.is_relative_to(root) or not place.exists():
            raise _outside(name)
        return place

    def open(self, name: str) -> dict[str, xr.Dataset]:
        """The trajectories of a run by group ("" for the only one); of a recording at work, what it has so far."""
        place = self.place(name)
        _check_inside(place, self._root(name))
        kind = _kind(place)
        if kind is None:
            raise SaddlesError(f"{name[:QUOTED]!r} holds no stored trajectory. Choose a run from the list.")
        if kind == "recording at work":
            from saddles.probe.recording.journal import recorded

            return groups(recorded(place))
        _check_size(place)
        return groups(load(place))

    def stamp(self, name: str) -> tuple[int, ...]:
        """Something that changes whenever the run does."""
        place = self.place(name)
        parts = ("", "rows", "trajectory.zarr", "trajectory.zarr/.zmetadata", "cells.jsonl")
        return tuple(_stamp(place / part) for part in parts)


def _outside(name: str) -> SaddlesError:
    return SaddlesError(
        f"The run {name[:QUOTED]!r} is in none of the folders named on the command line. Choose one from the list."
    )


def groups(data: xr.Dataset | xr.DataTree) -> dict[str, xr.Dataset]:
    """The datasets of a trajectory or a tree, by their paths without the first slash."""
    if isinstance(data, xr.Dataset):
        return {"": data}
    return {node.path.strip("/"): node.to_dataset() for node in data.subtree if node.data_vars}


def _walk(root: Path) -> list[tuple[Path, str]]:
    found = []
    for folder, below, files in os.walk(root, followlinks=False):
        place = Path(folder)
        kind = _kind(place)
        if kind is not None:
            found.append((place, kind))
        deep = len(place.relative_to(root).parts) >= DEEPEST
        stop = deep or len(found) >= MOST_FOUND or (kind is not None and place.suffix == ".zarr")
        keep = [
            name for name in sorted(below) if not name.startswith(".") and name not in ("rows", "superseded", "parts")
        ]
        below[:] = [] if stop else [name for name in keep if not (kind and name == "trajectory.zarr")]
        found += [(place / name, "trajectory") for name in sorted(files) if name.endswith(".nc") and not kind]
    return found


def _kind(place: Path) -> str | None:
    """What a folder holds, if anything."""
    whole = (place / "trajectory.zarr").is_dir()
    if (place / "layout.json").is_file() and (place / "rows").is_dir():
        return "recording" if whole else "recording at work"
    if whole:
        return "sweep" if (place / "sweep.json").is_file() else "run"
    if place.is_file():
        return "trajectory" if place.suffix == ".nc" else None
    marks = (".zgroup", ".zmetadata", "zarr.json")
    return "trajectory" if any((place / mark).is_file() for mark in marks) else None


def _words(place: Path, root: Path, kind: str) -> str:
    path = place.relative_to(root).as_posix()
    head = f"{root.name}/{path}" if path != "." else root.name
    record = place / ("sweep.json" if kind == "sweep" else "run.json")
    if record.is_file() and not record.is_symlink():
        try:
            facts = json.loads(record.read_text("utf-8"))
            part = f"sweep of {facts['cells']} cells" if kind == "sweep" else f"seed {facts['seed']}"
            return f"{facts['experiment']}, {facts['size']}, {part}, {facts['status']} · {head}"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
    return f"{head} · {kind}"


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _changed(place: Path) -> int:
    return max(_stamp(place), _stamp(place / "rows"), _stamp(place / "trajectory.zarr"))


def _check_inside(place: Path, root: Path) -> None:
    """Refuse a store with links that lead out, or with more files than a page reads."""
    count = 0
    for folder, below, files in os.walk(place, followlinks=False):
        count += len(files)
        if count > MOST_FILES:
            raise SaddlesError(
                f"A page reads up to {MOST_FILES} files; {place.name} has more. Open it in Python with saddles.load."
            )
        for name in [*below, *files]:
            path = Path(folder) / name
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise SaddlesError(
                    f"{place.name} holds the link {name!r}, which leads out of the named folders and is not followed. "
                    "Name the folder it leads to."
                )
        for name in files:
            if not (Path(folder) / name).is_file() and (Path(folder) / name).exists():  # reading a pipe may never end
                raise SaddlesError(f"{name!r} in {place.name} is not a file, and is not read. Remove it.")


def _check_size(place: Path) -> None:
    """Refuse more numbers than a page reads, before any is read."""
    store = place / "trajectory.zarr" if (place / "trajectory.zarr").is_dir() else place
    try:
        engine, how = ("zarr", {"consolidated": check_store(store)}) if store.is_dir() else ("h5netcdf", {})
        # Without indexes, because making one reads its whole coordinate.
        with xr.open_datatree(
            store, engine=engine, chunks=None, create_default_indexes=False, backend_kwargs=how
        ) as tree:
            parts = [node.to_dataset(inherit=False) for node in tree.subtree]
            size = sum(_bytes(values) for part in parts for values in part.variables.values())
    except SaddlesError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise SaddlesError(f"{place.name} cannot be read as a stored trajectory ({error}).") from error
    if size > MOST_BYTES:
        raise SaddlesError(
            f"A page reads up to {MOST_BYTES / 1e6:.0f} MB of numbers; {place.name} holds {size / 1e6:.0f} MB. "
            "Open it in Python with saddles.load."
        )


def _bytes(values: xr.Variable) -> int:
    """Bytes of a variable once it is read. A chunk is read whole, also where it is larger than its array."""
    chunk = values.encoding.get("chunks") or values.encoding.get("chunksizes") or ()
    return max(values.nbytes, math.prod(chunk) * values.dtype.itemsize)
