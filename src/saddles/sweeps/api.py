"""Begin a sweep, or go on with one."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddles.core import provenance
from saddles.core.data import require_data
from saddles.core.experiment import Experiment, find
from saddles.core.store import load
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar
from saddles.sweeps.cells import Job, Task
from saddles.sweeps.engine import Engine
from saddles.sweeps.grid import Cell, checked_grid
from saddles.sweeps.plan import Plan, make_plan, refuse_changes, refuse_other_plan
from saddles.sweeps.scheduler import Drive
from saddles.sweeps.store import FAILED, FINISHED, Store, create, read_facts, read_rows

Say = Callable[[str], None]
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder and what is in it."""

    folder: Path
    facts: Mapping[str, Any]
    """What sweep.json holds: the plan, versions, status, counts."""
    rows: Mapping[int, Mapping[str, Any]]
    """What cells.jsonl holds: cell -> settings, seed, seconds, status or error."""

    @property
    def trajectory(self) -> Trajectory:
        """Every finished cell on the axes of the grid."""
        return load(self.folder)

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """Lines of the cells that failed, with their errors."""
        return [row for row in self.rows.values() if row["status"] == FAILED]

    @property
    def missing(self) -> int:
        """How many cells have not been computed."""
        return self.facts["cells"] - len(self.rows)

    @property
    def errors(self) -> list[tuple[str, int]]:
        """Errors and how many cells have each, the most frequent first."""
        return Counter(row["error"] for row in self.failed).most_common()


def sweep(
    experiment: Experiment | str | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    zipped: bool = False,
    size: str | None = None,
    changes: Mapping[str, Any] | None = None,
    out: Folder | None = None,
    on: str = "embedded",
    workers: int | None = None,
    resume: Folder | None = None,
    retry: bool = False,
    accept_changes: bool = False,
    say: Say = lambda text: None,
) -> Sweep:
    """Run an experiment at every point of a grid; a finished cell is never computed again.

    Args:
        experiment: its name or row; None goes on with `resume` as it was begun.
        grid: setting -> values; `saddles.sweeps.spaced(0.1, 1, 10)` makes them.
        seeds: how many (0, 1, …) or which; None is seed 0 without an axis.
        zipped: the values of all settings side by side instead of their product.
        size: one of the experiment's sizes; None is its default.
        changes: settings that differ from the size's in every cell.
        out: folder to write, which must not exist; None is runs/LAB/NAME/sweep-HASH, where the same sweep goes on.
        on: "embedded" (worker processes here), "serial" (this process) or a Dask scheduler, "tcp://HOST:PORT".
        workers: how many worker processes; None is one for each core, or each GPU.
        resume: folder of a sweep to go on with.
        retry: compute failed cells again.
        accept_changes: go on although the experiment's settings or the versions of packages changed.
        say: gets a line now and then where no progress bar is shown.

    Returns the `Sweep`, with failed cells recorded and not raised. Ctrl-C keeps every finished cell.
    """
    row = find(experiment) if isinstance(experiment, str) else experiment
    asked = None
    if row is not None and (grid is not None or seeds is not None or resume is None):
        size = size or row.default
        asked = make_plan(row, size, changes or {}, checked_grid(row, size, grid or {}, zipped, seeds))
    elif row is None and resume is None:
        raise SaddlesError.about(
            "neither an experiment nor a folder to resume came", "one of them is needed", "see `saddles list`"
        )
    return carry_out(asked, row, folder=resume, out=out, on=on, workers=workers, retry=retry,
                     accept_changes=accept_changes, say=say)  # fmt: skip


def carry_out(
    asked: Plan | None,
    row: Experiment | None = None,
    *,
    folder: Folder | None = None,
    out: Folder | None = None,
    on: str = "embedded",
    workers: int | None = None,
    retry: bool = False,
    accept_changes: bool = False,
    say: Say = lambda text: None,
) -> Sweep:
    """Compute what is missing of a plan, or of a sweep that was begun in `folder`."""
    place = planned_folder(asked, folder, out)
    if asked is not None:
        for settings in {str(cell.changes): asked.cell_settings(cell) for cell in asked.grid.cells()}.values():
            require_data(asked.row.data(settings))
    if folder is None and out is None and (place / "sweep.json").exists():
        folder = place
    stored = Store(Path(folder), row) if folder is not None else None
    if stored is not None:
        if asked is not None:
            refuse_other_plan(asked, stored.plan, place)
        if not accept_changes:
            refuse_changes(stored.plan, place)
    if stored is None or stored.unfinished(retry):
        _compute(stored, asked, place, on, workers, retry, accept_changes, say)
    return read_sweep(place)


def planned_folder(asked: Plan | None, folder: Folder | None, out: Folder | None) -> Path:
    """Where a sweep is or will be."""
    if folder is not None:
        return Path(folder)
    assert asked is not None
    return Path(out) if out is not None else asked.folder


def read_sweep(folder: Folder) -> Sweep:
    """A sweep as it stands, finished or not."""
    place = Path(folder)
    return Sweep(place, read_facts(place), read_rows(place))


def _compute(
    stored: Store | None, asked: Plan | None, place: Path, on: str, workers: int | None, retry: bool,
    accept_changes: bool, say: Say,
) -> None:  # fmt: skip
    """The engine first: where it does not answer, no folder is made."""
    versions = None if accept_changes else provenance.versions()
    with _engine(on, workers, versions, say) as engine:
        if stored is None:
            assert asked is not None
            create(asked, place)
            stored = Store(place, asked.row)
        with stored as store:
            cells = store.pending(retry)
            task = Task(store.plan.row, store.plan.size, tuple(_job(store.plan, cell) for cell in cells), versions)
            began, status = time.perf_counter(), "stopped"
            try:
                with terminated_like_ctrl_c(), bar(f"{store.plan.row.name}, cells", len(cells)) as shown:
                    Drive(store, task, engine, shown, say).run()
                status = FINISHED
            except KeyboardInterrupt:
                status = "stopped: interrupted"
                raise
            finally:
                with suppress(SaddlesError):
                    store.close_with(status, time.perf_counter() - began)


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Take the SIGTERM with which a batch system warns for a Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _job(plan: Plan, cell: Cell) -> Job:
    return Job(cell.number, plan.cell_settings(cell), cell.seed)


@contextmanager
def _engine(on: str, workers: int | None, versions: Mapping[str, str] | None, say: Say) -> Iterator[Engine]:
    if workers is not None and workers < 1:
        raise SaddlesError.about(f"{workers} workers came", "at least one is needed", "leave it out")
    if on == "embedded":
        from saddles.sweeps.embedded import Embedded

        engine: Engine = Embedded(workers)
    elif on == "serial":
        from saddles.sweeps.serial import Serial

        engine = Serial()
    elif "://" in on:
        from saddles.sweeps.cluster import Cluster

        engine = Cluster(on, versions, say)
    else:
        raise SaddlesError.about(
            f"--on {on} came", "embedded, serial or a scheduler's address is meant", "write --on tcp://HOST:8786"
        )
    try:
        yield engine
    finally:
        engine.close()
