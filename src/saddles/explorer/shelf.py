"""The folders named on the command line, what is stored in them, and no way out of them."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

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


@dataclass(frozen=True)
class Found:
    """A run on disk: its name in links, what it is, and words for a list."""

    name: str
    kind: str
    words: str


class Shelf:
    """Named folders. A run's name is the number of its folder and the path below it, "0/linear/figure-1/ab12"."""

    def __init__(self, folders: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.roots = []
        for folder in folders:
            place = Path(folder)
            if not place.is_dir():
                raise SaddlesError.about(
                    f"{folder} came", "a folder that exists is needed", "name the folder of your runs"
                )
            self.roots.append(place.resolve())

    def list(self) -> list[Found]:
        """Runs, recordings and stored trajectories, newest first."""
        found = []
        for number, root in enumerate(self.roots):
            for place, kind in _walk(root):
                if len(found) < MOST_FOUND:
                    name = f"{number}/{place.relative_to(root).as_posix()}".removesuffix("/.")
                    found.append((_changed(place), Found(name, kind, _words(place, root, kind))))
        return [one for _, one in sorted(found, key=lambda pair: (-pair[0], pair[1].name))]

    def place(self, name: str) -> Path:
        """The folder or file of a run; refused if it is not inside a named folder, links included."""
        number, _, rest = name.partition("/")
        if not (number.isascii() and number.isdecimal()) or int(number) >= len(self.roots) or "\0" in rest:
            raise SaddlesError.about(
                f"the run {name[:60]!r} came", "it is in none of the folders named on the command line",
                "choose one of the list",
            )  # fmt: skip
        root = self.roots[int(number)]
        place = (root / rest).resolve()
        if Path(rest).is_absolute() or not place.is_relative_to(root) or not place.exists():
            raise SaddlesError.about(
                f"the run {name[:60]!r} came", "it does not lie in the folders named on the command line",
                "choose one of the list",
            )  # fmt: skip
        return place

    def open(self, name: str) -> dict[str, xr.Dataset]:
        """The trajectories of a run by group ("" for the only one); of a recording at work, what it has so far."""
        place = self.place(name)
        root = self.roots[int(name.partition("/")[0])]
        _check_inside(place, root)
        kind = _kind(place)
        if kind is None:
            raise SaddlesError.about(
                f"{name[:60]!r} holds no run", "a stored trajectory is needed", "choose one of the list"
            )
        if kind == "recording at work":
            from saddles.probe.recording.journal import recorded

            data: Any = recorded(place)
        else:
            _check_size(place)
            data = load(place)
        return groups(data)

    def stamp(self, name: str) -> tuple[int, ...]:
        """Something that changes whenever the run does."""
        place = self.place(name)
        parts = ("", "rows", "trajectory.zarr", "trajectory.zarr/.zmetadata", "cells.jsonl")
        return tuple(_stamp(place / part) for part in parts)


def groups(data: Any) -> dict[str, xr.Dataset]:
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
        except (OSError, ValueError, KeyError, TypeError):
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
            raise SaddlesError.about(
                f"{place.name} has more than {count} files", f"a page reads up to {MOST_FILES}", "use Python"
            )
        for name in [*below, *files]:
            path = Path(folder) / name
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise SaddlesError.about(
                    f"{place.name} holds the link {name!r}", "links out of the named folders are not followed",
                    "name the folder it leads to",
                )  # fmt: skip


def _check_size(place: Path) -> None:
    store = place / "trajectory.zarr" if (place / "trajectory.zarr").is_dir() else place
    if store.is_file():
        size = store.stat().st_size
    else:
        size = sum(_bytes(file) for name in (".zarray", "zarr.json") for file in store.rglob(name))
    if size > MOST_BYTES:
        raise SaddlesError.about(
            f"{place.name} holds {size / 1e6:.0f} MB of numbers", f"a page reads up to {MOST_BYTES / 1e6:.0f} MB",
            "open it in Python with saddles.load",
        )  # fmt: skip


def _bytes(file: Path) -> int:
    """Bytes of one stored array, uncompressed, from its description."""
    try:
        facts = json.loads(file.read_text("utf-8"))
        if "shape" not in facts:
            return 0
        kind = facts.get("dtype", facts.get("data_type"))
        size = np.dtype(kind).itemsize if isinstance(kind, str) else 8
        return math.prod(int(length) for length in facts["shape"]) * max(size, 1)
    except (OSError, ValueError, TypeError):
        return 0
