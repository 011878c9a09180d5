"""The folder of a sweep.

DIR/sweep.json        the plan: experiment, settings, grid, versions; status and counts
DIR/cells.jsonl       one line a cell, added when it is done: settings, seed, seconds, status or error, digest
DIR/trajectory.zarr   every cell on the axes of the grid

A cell counts once its arrays and then its line are on disk; a line that was cut off by a crash does not count.
`cell_done` in the Zarr folder is set after that: 1 where a cell is whole, 0 where it failed, NaN where it is missing.
One process writes, the readers may be many.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import saddles
from saddles.core.experiment import Experiment
from saddles.core.provenance import machine
from saddles.core.store import save
from saddles.core.trajectory import SCHEMA
from saddles.errors import SaddlesError
from saddles.sweeps.arrays import DONE, SECONDS, Arrays, Place, Sizes, put_on_disk
from saddles.sweeps.cells import Outcome
from saddles.sweeps.grid import Cell
from saddles.sweeps.plan import Plan, read_plan

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None

RUNNING, FINISHED, FAILED = "running", "finished", "failed"


def create(plan: Plan, folder: Path) -> None:
    """Make the folder of a new sweep, all or nothing; one that exists is refused unless it is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SaddlesError.about(
            f"{folder} exists already", "a sweep never overwrites", "choose another --out, or go on with --resume"
        )
    facts = {
        **plan.facts,
        "schema": SCHEMA,
        "title": plan.row.title,
        "paper": plan.row.paper,
        "versions": dict(plan.versions),
        "machine": machine(),
        "status": RUNNING,
        "cells": len(plan.grid.cells()),
        "wall_time_s": 0.0,
    }
    with _written(folder, "choose another --out"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            draft.chmod(0o755)
            save(_empty(plan), draft / "trajectory.zarr")
            _write_json(draft / "sweep.json", facts)
            (draft / "cells.jsonl").touch()
            os.replace(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _empty(plan: Plan) -> xr.Dataset:
    coords = {name: (axis, labels, {"grid": 1}) for name, (axis, labels) in plan.grid.coordinates.items()}
    facts = plan.facts
    return xr.Dataset(
        coords=coords,
        attrs={
            "schema": SCHEMA,
            "status": RUNNING,
            "kind": "sweep",
            "experiment": plan.row.name,
            "size": plan.size,
            "settings": json.dumps(facts["settings"]),
            "grid": json.dumps({name: facts[name] for name in ("grid", "zipped", "seeds")}),
            "versions": json.dumps(dict(plan.versions)),
        },
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """What sweep.json says."""
    try:
        return json.loads((folder / "sweep.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SaddlesError.about(f"{folder} came", "it holds no sweep.json", "give the folder of a sweep") from error
    except (OSError, ValueError) as error:
        raise SaddlesError.about(f"{folder / 'sweep.json'} cannot be read", "it must be JSON", "begin anew") from error


def read_rows(folder: Path) -> dict[int, dict[str, Any]]:
    """The latest whole line of each cell in cells.jsonl."""
    text = (folder / "cells.jsonl").read_bytes()
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["cell"]: row for row in rows}


class Store:
    """The folder of a sweep, opened by the one process that writes it; use as a context manager."""

    def __init__(self, folder: Path, row: Experiment | None = None) -> None:
        self.folder = folder
        self.facts = read_facts(folder)
        self.plan = read_plan(self.facts, row)
        self.cells: list[Cell] = self.plan.grid.cells()
        self._lock: Any = None

    def __enter__(self) -> "Store":
        with _written(self.folder):
            self._lock = _locked(self.folder)
            _cut_torn_line(self.folder / "cells.jsonl")
            self.rows = read_rows(self.folder)
            self._arrays = Arrays(self.folder / "trajectory.zarr", self.plan.grid.axes)
            shape = tuple(self.plan.grid.axes.values())
            self._done, self._seconds = np.full(shape, np.nan), np.full(shape, np.nan)
            for row in self.rows.values():
                self._count(row)
            self._publish([self.cells[number] for number in self.rows] or self.cells[:1])
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def unfinished(self, retry: bool = False) -> bool:
        """Whether anything is to be computed; only reads."""
        self.rows = read_rows(self.folder)
        return bool(self.pending(retry)) or self.facts["status"] != FINISHED

    def pending(self, retry: bool = False) -> list[Cell]:
        """Cells that are to be computed: the missing ones, and the failed ones if asked for."""
        skip = (FINISHED,) if retry else (FINISHED, FAILED)
        return [cell for cell in self.cells if self.rows.get(cell.number, {}).get("status") not in skip]

    def counts(self) -> dict[str, int]:
        """How many cells are finished, failed and missing."""
        states = [row["status"] for row in self.rows.values()]
        found = {name: states.count(name) for name in (FINISHED, FAILED)}
        return found | {"missing": len(self.cells) - len(states)}

    def commit(self, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
        """Put cells on disk: arrays, then their lines, then the marks that readers look at; returns the lines."""
        fresh = {o.number: o for o in outcomes if self.rows.get(o.number, {}).get("status") != FINISHED}
        if not fresh:
            return []
        with _written(self.folder):
            packed = {self.cells[n].place: o.packed for n, o in fresh.items() if o.packed is not None}
            misfits = self._arrays.write(packed, self._places_done)
            rows = [self._row(o, misfits.get(self.cells[n].place, "")) for n, o in fresh.items()]
            _append(self.folder / "cells.jsonl", rows)
            for row in rows:
                self.rows[row["cell"]] = row
                self._count(row)
            self._publish([self.cells[row["cell"]] for row in rows])
        return rows

    def close_with(self, status: str, seconds: float) -> None:
        """Write down how it ended, or where it stands."""
        self.facts |= {"status": status, **self.counts()}
        self.facts["wall_time_s"] = round(self.facts["wall_time_s"] + seconds, 3)
        with _written(self.folder):
            self._arrays.describe({"status": status, "wall_time_s": self.facts["wall_time_s"]})
            _write_json(self.folder / "sweep.json", self.facts)

    def _places_done(self) -> dict[Place, Sizes]:
        return {self.cells[n].place: row["sizes"] for n, row in self.rows.items() if row["status"] == FINISHED}

    def _row(self, outcome: Outcome, misfit: str) -> dict[str, Any]:
        cell = self.cells[outcome.number]
        row: dict[str, Any] = {
            "cell": cell.number,
            "status": FAILED if outcome.error or misfit else FINISHED,
            **({"error": misfit or outcome.error} if outcome.error or misfit else {}),
            "changes": dict(cell.changes),
            "seed": cell.seed,
            "seconds": round(outcome.seconds, 6),
            "digest": outcome.digest,
            "sizes": outcome.packed.sizes if outcome.packed else {},
            "version": saddles.__version__,
        }
        if outcome.status not in ("", FINISHED):
            row["trajectory_status"] = outcome.status
        if outcome.apart:
            row["computed_apart"] = outcome.apart
        return row | ({"trace": outcome.trace} if outcome.trace else {})

    def _count(self, row: Mapping[str, Any]) -> None:
        place = self.cells[row["cell"]].place
        self._done[place] = 1.0 if row["status"] == FINISHED else 0.0
        self._seconds[place] = row["seconds"]

    def _publish(self, cells: Sequence[Cell]) -> None:
        places = [cell.place for cell in cells]
        self._arrays.mark(SECONDS, self._seconds, places)
        self._arrays.mark(DONE, self._done, places)


def _append(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add lines, all or none of them."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    before = file.stat().st_size
    try:
        with file.open("ab") as lines:
            lines.write(text)
            lines.flush()
            os.fsync(lines.fileno())
    except OSError:
        os.truncate(file, before)
        raise


def _cut_torn_line(file: Path) -> None:
    text = file.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(file, whole)


def _write_json(file: Path, facts: Mapping[str, Any]) -> None:
    draft = file.with_name(f".{file.name}")
    try:
        draft.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")
        put_on_disk(draft)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _locked(folder: Path) -> Any:
    """Hold the folder for this process; the system lets go of it whatever way the process ends."""
    handle = (folder / ".lock").open("w")
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.close()
            raise SaddlesError.about(
                f"{folder} came", "another process is writing it", "wait for it, or stop it first"
            ) from error
        except OSError:
            return handle  # a file system without locks
    return handle


@contextlib.contextmanager
def _written(folder: Path, hint: str = "") -> Iterator[None]:
    """Tell a full disk or a place that cannot be written in one sentence; what is committed stays."""
    try:
        yield
    except OSError as error:
        raise SaddlesError.about(
            f"{folder} cannot be written ({error.strerror or error})",
            "room and permission are needed" if hint else "room and permission are needed, and finished cells are kept",
            hint or f"then go on with `saddles sweep --resume {folder}`",
        ) from error
