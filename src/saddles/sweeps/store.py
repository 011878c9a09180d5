"""The folder of a sweep.

DIR/sweep.json        the plan: experiment, settings, grid, versions; status and counts
DIR/cells.jsonl       one line per cell, added when it is done: settings, seed, seconds, status or error, digest
DIR/trajectory.zarr   every cell on the axes of the grid

A cell counts once its arrays and then its line are on disk; a line that was cut off by a crash does not count.
`cell_done` in the Zarr folder is set after that: 1 where a cell is whole, 0 where it failed, NaN where it is missing.
One process writes; any number may read.
"""

import json
import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import xarray as xr

import saddles
from saddles.core.experiment import Experiment
from saddles.core.provenance import machine
from saddles.core.status import FINISHED, Ending, Status
from saddles.core.store import save
from saddles.core.trajectory import SCHEMA
from saddles.errors import SaddlesError, shown
from saddles.runtime.checksums import NAME as CHECKSUMS
from saddles.runtime.checksums import damaged, seal
from saddles.runtime.files import explained, hold, new_folder, refuse_existing, refuse_links
from saddles.runtime.records import Types, check_types, parse_record, read_record, with_check, write_record
from saddles.sweeps.arrays import DONE, SECONDS, Arrays, Place, Sizes
from saddles.sweeps.cells import Outcome
from saddles.sweeps.grid import Cell
from saddles.sweeps.plan import Plan, read_plan

DAMAGED = "what was stored of this cell has been damaged"
"""Error of a cell whose chunk differed from its checksum when the sweep was resumed."""


class CellRow(TypedDict):
    """A line of cells.jsonl."""

    cell: int
    status: str
    """`finished` or `failed`."""
    error: NotRequired[str]
    changes: dict[str, Any]
    seed: int
    seconds: float
    digest: str
    sizes: dict[str, int]
    """Length of each axis of the cell's own arrays."""
    version: str
    trajectory_status: NotRequired[str]
    """Where the trajectory did not finish as planned."""
    claims_not_judged: NotRequired[str]
    computed_apart: NotRequired[str]
    """Error of the program that this cell was to share with others."""
    trace: NotRequired[str]


def create(plan: Plan, folder: Path) -> None:
    """Make the folder of a new sweep, all or nothing; one that exists is refused unless it is empty."""
    refuse_existing(folder, "A sweep never overwrites: choose another --out, or resume it with --resume")
    facts = {
        **plan.facts,
        "schema": SCHEMA,
        "title": plan.experiment.title,
        "paper": plan.experiment.paper,
        "versions": dict(plan.versions),
        "machine": machine(),
        "status": str(Ending.RUNNING),
        "cells": len(plan.grid.cells()),
        "wall_time_s": 0.0,
    }
    with explained(folder, "Choose another --out"), new_folder(folder) as draft:
        save(_empty(plan), draft / "trajectory.zarr")
        write_record(draft / "sweep.json", facts, durable=True)
        (draft / "cells.jsonl").touch()


def _empty(plan: Plan) -> xr.Dataset:
    coords = {name: (axis, labels, {"grid": 1}) for name, (axis, labels) in plan.grid.coordinates.items()}
    facts = plan.facts
    return xr.Dataset(
        coords=coords,
        attrs={
            "schema": SCHEMA,
            "status": str(Ending.RUNNING),
            "kind": "sweep",
            "experiment": plan.experiment.name,
            "size": plan.size,
            "settings": json.dumps(facts["settings"]),
            "grid": json.dumps({name: facts[name] for name in ("grid", "zipped", "seeds")}),
            "versions": json.dumps(dict(plan.versions)),
        },
    )


FACTS: Types = {
    "experiment": str, "size": str, "settings": dict, "changes": dict, "grid": dict, "zipped": bool,
    "seeds": (list, type(None)), "versions": dict, "status": str, "cells": int, "wall_time_s": (int, float),
}  # fmt: skip
ROW: Types = {
    "cell": int, "status": str, "changes": dict, "seed": int, "seconds": (int, float), "digest": str, "sizes": dict,
}  # fmt: skip


def read_facts(folder: Path) -> dict[str, Any]:
    """What sweep.json says."""
    try:
        hint = "Restore it from a copy, or start the sweep again with another --out"
        return read_record(folder / "sweep.json", FACTS, hint)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SaddlesError(f"{folder} holds no sweep.json. Give the folder of a sweep.") from error


def read_rows(folder: Path, cells: int) -> dict[int, CellRow]:
    """The latest whole line of each of the cells in cells.jsonl."""
    file = folder / "cells.jsonl"
    hint = "Remove that line: the sweep computes its cell again when it is resumed"
    try:
        text = file.read_bytes()
    except OSError as error:
        raise SaddlesError(f"{file} cannot be read ({error.strerror}). Restore it from a copy.") from error
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    rows = [parse_record(line, f"{file}, line {k}", ROW, hint) for k, line in enumerate(lines, start=1)]
    for k, row in enumerate(rows, start=1):
        check_types(row["sizes"], dict.fromkeys(row["sizes"], int), f"{file}, line {k}", hint)
        if not 0 <= row["cell"] < cells or row["status"] not in (Ending.FINISHED, Ending.FAILED):
            raise SaddlesError(f"{file}, line {k} does not belong to a cell of this sweep. {hint}.")
    return {row["cell"]: cast(CellRow, row) for row in rows}


class Store:
    """The folder of a sweep, opened by the one process that writes it; use as a context manager."""

    def __init__(self, folder: Path, experiment: Experiment | None = None) -> None:
        self.folder = folder
        self.facts = read_facts(folder)
        self.plan = read_plan(self.facts, experiment)
        self.cells: list[Cell] = self.plan.grid.cells()
        if self.facts["cells"] != len(self.cells):
            raise SaddlesError(
                f"`cells` in {folder / 'sweep.json'} must be {len(self.cells)}, as its grid has them; got "
                f"{self.facts['cells']}. Restore it from a copy, or start the sweep again with another --out."
            )

    def __enter__(self) -> "Store":
        refuse_links(self.folder, "the folder of a sweep")
        with ExitStack() as undo, self._writing():
            undo.enter_context(hold(self.folder))
            # Before the lines are read: a torn last line would be joined to the next one that is added.
            _cut_torn_line(self.folder / "cells.jsonl")
            self.rows = read_rows(self.folder, len(self.cells))
            store = self.folder / "trajectory.zarr"
            if not (store / CHECKSUMS).exists():  # a sweep of an older version: as it is now
                seal(store)
            # Looked at before the arrays are opened for writing, while checksums and files are those of the last
            # process.
            bad = damaged(store)
            self._arrays = self._open(store, bad)
            undo.callback(self._arrays.close)
            self._forget(bad)
            shape = tuple(self.plan.grid.axes.values())
            self._done, self._seconds = np.full(shape, np.nan), np.full(shape, np.nan)
            for row in self.rows.values():
                self._count(row)
            # A crash may have come between a cell's line and its mark: all marks are written again.
            self._publish([self.cells[number] for number in self.rows] or self.cells[:1])
            self._held = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._writing():
            self._held.close()

    def _open(self, folder: Path, bad: Sequence[str]) -> Arrays:
        """Open the arrays; damage to anything but chunks of cells cannot be mended."""
        try:
            arrays = Arrays(folder, self.plan.grid.axes)
        except OSError:
            raise
        except Exception as error:  # decoders of damaged bytes raise whatever they like
            if isinstance(error, SaddlesError) and not bad:
                raise
            if not bad:
                raise SaddlesError(f"{folder} cannot be read as the arrays of a sweep ({shown(error)}).") from error
            raise self._lost(bad[0]) from error
        for file in bad:
            if arrays.cells_in(file) is None:
                arrays.close()
                raise self._lost(file)
        return arrays

    def _lost(self, file: str) -> SaddlesError:
        return SaddlesError(
            f"{self.folder} is damaged: trajectory.zarr/{file} differs from its checksum or is missing, and all cells "
            "depend on it. Restore it from a copy, or start the sweep again with another --out."
        )

    def _forget(self, bad: Sequence[str]) -> None:
        """Count cells in damaged chunks as failed, so that `--retry` computes them again."""
        here = np.zeros(tuple(self.plan.grid.axes.values()), dtype=bool)
        for file in [file for file in bad if file.rpartition("/")[0] not in (DONE, SECONDS)]:  # written again below
            here[tuple(self._arrays.cells_in(file) or ())] = True
        lost: list[CellRow] = [
            {**self.rows[cell.number], "status": str(Ending.FAILED), "error": DAMAGED, "digest": "", "sizes": {}}
            for cell in self.cells
            if here[cell.place] and self._ending(cell.number) == Ending.FINISHED
        ]
        _append(self.folder / "cells.jsonl", lost)
        self.rows = read_rows(self.folder, len(self.cells))
        for file in bad:
            self._arrays.forget(file)

    def _writing(self) -> AbstractContextManager[None]:
        command = f"saddles sweep --resume {shlex.quote(str(self.folder))}"
        return explained(self.folder, f"Finished cells are kept: make room, then resume with `{command}`")

    def unfinished(self, retry: bool = False) -> bool:
        """Whether anything is to be computed; only reads."""
        self.rows = read_rows(self.folder, len(self.cells))
        whole = not damaged(self.folder / "trajectory.zarr")
        return not whole or bool(self.pending(retry)) or not Status.parse(self.facts["status"]).ok

    def pending(self, retry: bool = False) -> list[Cell]:
        """Cells that are to be computed: the missing ones, and with `retry` the failed ones."""
        skip = {Ending.FINISHED} if retry else {Ending.FINISHED, Ending.FAILED}
        return [cell for cell in self.cells if self._ending(cell.number) not in skip]

    def _ending(self, number: int) -> str | None:
        return self.rows[number]["status"] if number in self.rows else None

    def counts(self) -> dict[str, int]:
        """How many cells are finished, failed and missing."""
        endings = [row["status"] for row in self.rows.values()]
        known = {str(ending): endings.count(ending) for ending in (Ending.FINISHED, Ending.FAILED)}
        return known | {"missing": len(self.cells) - len(endings)}

    def commit(self, outcomes: Sequence[Outcome]) -> list[CellRow]:
        """Put cells on disk: arrays, then their lines, then the marks that readers look at; returns the lines."""
        fresh = {o.number: o for o in outcomes if self._ending(o.number) != Ending.FINISHED}
        if not fresh:
            return []
        with self._writing():
            packed = {self.cells[n].place: o.packed for n, o in fresh.items() if o.packed is not None}
            misfits = self._arrays.write(packed, self._sizes_done)
            rows = [self._row(o, misfits.get(self.cells[n].place, "")) for n, o in fresh.items()]
            _append(self.folder / "cells.jsonl", rows)
            for row in rows:
                self.rows[row["cell"]] = row
                self._count(row)
            self._publish([self.cells[row["cell"]] for row in rows])
        return rows

    def close_with(self, status: Status, seconds: float) -> None:
        """Record how this pass over the cells ended."""
        self.facts |= {"status": str(status), **self.counts()}
        self.facts["wall_time_s"] = round(self.facts["wall_time_s"] + seconds, 3)
        with self._writing():
            self._arrays.describe({"status": str(status), "wall_time_s": self.facts["wall_time_s"]})
            write_record(self.folder / "sweep.json", self.facts, durable=True)

    def _sizes_done(self) -> dict[Place, Sizes]:
        return {self.cells[n].place: r["sizes"] for n, r in self.rows.items() if r["status"] == Ending.FINISHED}

    def _row(self, outcome: Outcome, misfit: str) -> CellRow:
        cell, error = self.cells[outcome.number], misfit or outcome.error
        notes = {
            "error": error,
            "trajectory_status": "" if outcome.status == FINISHED else str(outcome.status),
            "claims_not_judged": outcome.claims_error,
            "computed_apart": outcome.shared_error,
            "trace": outcome.trace,
        }
        return {
            "cell": cell.number,
            "status": str(Ending.FAILED if error else Ending.FINISHED),
            "changes": dict(cell.changes),
            "seed": cell.seed,
            "seconds": round(outcome.seconds, 6),
            "digest": outcome.digest,
            "sizes": outcome.packed.sizes if outcome.packed else {},
            "version": saddles.__version__,
            **{name: text for name, text in notes.items() if text},
        }  # type: ignore[return-value]  # the notes that are there are those of a CellRow

    def _count(self, row: CellRow) -> None:
        place = self.cells[row["cell"]].place
        self._done[place] = 1.0 if row["status"] == Ending.FINISHED else 0.0
        self._seconds[place] = row["seconds"]

    def _publish(self, cells: Sequence[Cell]) -> None:
        places = [cell.place for cell in cells]
        self._arrays.mark(SECONDS, self._seconds, places)
        # `cell_done` last: where a reader sees it, everything else of the cell is there.
        self._arrays.mark(DONE, self._done, places)


def _append(file: Path, rows: Sequence[CellRow]) -> None:
    """Add lines, all or none of them."""
    text = "".join(json.dumps(with_check(row)) + "\n" for row in rows).encode()
    before = file.stat().st_size
    try:
        with file.open("ab") as lines:
            lines.write(text)
            lines.flush()
            os.fsync(lines.fileno())
    except OSError:
        # A part of a line must not stay, or the next lines would be joined to it.
        os.truncate(file, before)
        raise


def _cut_torn_line(file: Path) -> None:
    text = file.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(file, whole)
