"""Start a sweep, or resume one."""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from saddles.core import provenance
from saddles.core.data import require_data
from saddles.core.engines.cluster import Cluster
from saddles.core.engines.embedded import Embedded
from saddles.core.engines.engine import Engine, Limits
from saddles.core.experiment import Experiment, find
from saddles.core.status import FINISHED, Ending, Status
from saddles.core.store import load
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.runtime.files import as_path
from saddles.runtime.interrupts import terminated_like_ctrl_c
from saddles.runtime.progress import bar
from saddles.sweeps.cells import Job, Outcome, Task
from saddles.sweeps.grid import checked_grid
from saddles.sweeps.plan import Plan, make_plan, refuse_changes, refuse_other_plan
from saddles.sweeps.scheduler import Scheduler
from saddles.sweeps.serial import Serial
from saddles.sweeps.store import CellRow, Store, create, read_facts, read_rows

Say = Callable[[str], None]
Folder = str | PathLike[str]


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder and what is in it."""

    folder: Path
    facts: Mapping[str, Any]
    """What sweep.json holds: the plan, versions, status, counts."""
    rows: Mapping[int, CellRow]
    """What cells.jsonl holds: cell -> settings, seed, seconds, status or error."""

    @property
    def trajectory(self) -> Trajectory:
        """Every finished cell on the axes of the grid."""
        return load(self.folder)

    @property
    def status(self) -> Status:
        """How the sweep ended, or that it is running."""
        return Status.parse(self.facts["status"])

    @property
    def failed(self) -> list[CellRow]:
        """Lines of the cells that failed, with their errors."""
        return [row for row in self.rows.values() if row["status"] == Ending.FAILED]

    @property
    def missing(self) -> int:
        """How many cells have not been computed."""
        return self.facts["cells"] - len(self.rows)

    @property
    def errors(self) -> list[tuple[str, int]]:
        """Errors and how many cells have each, the most frequent first."""
        return Counter(row.get("error", "") for row in self.failed).most_common()


def sweep(
    experiment: Experiment | str | None = None,
    grid: Mapping[str, Iterable[object]] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    zipped: bool = False,
    size: str | None = None,
    changes: Mapping[str, object] | None = None,
    out: Folder | None = None,
    on: str = "embedded",
    workers: int | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    resume: Folder | None = None,
    retry: bool = False,
    accept_changes: bool = False,
    say: Say = silent,
) -> Sweep:
    """Run an experiment at every point of a grid; a finished cell is never computed again.

    Args:
        experiment: its name, or the experiment itself; None resumes `resume` as it was started.
        grid: setting -> values; `saddles.sweeps.spaced(0.1, 1, 10)` makes them.
        seeds: how many (0, 1, …) or which; None is seed 0 without an axis.
        zipped: the values of all settings side by side instead of their product.
        size: one of the experiment's sizes; None is its default.
        changes: settings that differ from the size's in every cell.
        out: folder to write, which must not exist; None is runs/LAB/NAME/sweep-HASH, where the same sweep is resumed.
        on: "embedded" (worker processes here), "serial" (this process) or a Dask scheduler, "tcp://HOST:PORT".
        workers: how many worker processes; None is one for each core, or each GPU.
        timeout: seconds after which a cell has failed and its process is ended; only with on="embedded".
        memory: gigabytes that a worker process may take before it is ended; only with on="embedded".
        resume: folder of a sweep to resume.
        retry: compute failed cells again.
        accept_changes: resume although the experiment's settings or the versions of packages have changed.
        say: gets what a cluster has to tell, such as that it waits for workers.

    Returns the `Sweep`; failed cells are recorded, not raised. Ctrl-C keeps every finished cell.
    """
    chosen = None if experiment is None else find(experiment)
    for name, one in (("grid", grid), ("changes", changes)):
        if one is not None and not isinstance(one, Mapping):
            raise SaddlesError.must_be(name, "a dictionary of settings", one)
    plan = None
    if chosen is not None and (grid is not None or seeds is not None or resume is None):
        size = size or chosen.default
        plan = make_plan(chosen, size, changes or {}, checked_grid(chosen, size, grid or {}, zipped, seeds))
    elif chosen is None and resume is None:
        raise SaddlesError("Give an experiment (`saddles list` shows them) or a folder to resume.")
    return run_plan(plan, chosen, folder=resume, out=out, on=on, workers=workers, limits=Limits(timeout, memory),
                    retry=retry, accept_changes=accept_changes, say=say)  # fmt: skip


def run_plan(
    plan: Plan | None,
    experiment: Experiment | None = None,
    *,
    folder: Folder | None = None,
    out: Folder | None = None,
    on: str = "embedded",
    workers: int | None = None,
    limits: Limits = Limits(),  # noqa: B008
    retry: bool = False,
    accept_changes: bool = False,
    say: Say = silent,
) -> Sweep:
    """Compute what is missing of a plan, or of the sweep that was started in `folder`."""
    place = planned_folder(plan, folder, out)
    if plan is not None:
        # Missing data are reported before the first cell, not after hours; each set of settings is checked once, for
        # all of its seeds.
        for settings in {str(cell.changes): plan.cell_settings(cell) for cell in plan.grid.cells()}.values():
            require_data(plan.experiment.data(settings))
    if folder is None and out is None and (place / "sweep.json").exists():
        folder = place
    store = Store(Path(folder), experiment) if folder is not None else None
    if store is not None:
        if plan is not None:
            refuse_other_plan(plan, store.plan, place)
        if not accept_changes:
            refuse_changes(store.plan, place)
    if store is None or store.unfinished(retry):
        versions = None if accept_changes else provenance.versions()
        # The engine first: where it does not answer, no folder is made.
        with _engine(store.plan if store is not None else plan, on, workers, limits, versions, say) as engine:
            if store is None:
                assert plan is not None
                create(plan, place)
                store = Store(place, plan.experiment)
            _compute(store, engine, versions, retry)
    return read_sweep(place)


def planned_folder(plan: Plan | None, folder: Folder | None, out: Folder | None) -> Path:
    """Where a sweep is or will be."""
    if folder is not None:
        return as_path(folder, "resume")
    assert plan is not None
    return as_path(out, "out") if out is not None else plan.folder


def read_sweep(folder: Folder) -> Sweep:
    """A sweep as it stands, finished or not."""
    place = Path(folder)
    facts = read_facts(place)
    return Sweep(place, facts, read_rows(place, facts["cells"]))


def _compute(store: Store, engine: Engine[Outcome], versions: Mapping[str, str] | None, retry: bool) -> None:
    with store:
        plan, cells = store.plan, store.pending(retry)
        jobs = tuple(Job(cell.number, plan.cell_settings(cell), cell.seed) for cell in cells)
        task = Task(plan.experiment, plan.size, jobs, versions)
        began, status = time.perf_counter(), Status(Ending.STOPPED)
        try:
            with terminated_like_ctrl_c(), bar(f"{plan.experiment.name}, cells", len(cells)) as shown:
                Scheduler(store, task, engine, shown).run()
            status = FINISHED
        except KeyboardInterrupt:
            status = Status(Ending.INTERRUPTED)
            raise
        finally:
            with suppress(SaddlesError):  # what stopped the sweep is the error to show
                store.close_with(status, time.perf_counter() - began)


@contextmanager
def _engine(
    plan: Plan | None, on: str, workers: int | None, limits: Limits, versions: Mapping[str, str] | None, say: Say
) -> Iterator[Engine[Outcome]]:
    if workers is not None and workers < 1:
        raise SaddlesError.must_be("workers", "at least 1", workers)
    if limits != Limits() and on != "embedded":
        raise SaddlesError(
            "A timeout or a limit on memory needs on='embedded', whose processes can be ended. On a cluster, limit the "
            "memory of its workers (`dask worker --memory-limit`)."
        )
    if on == "embedded":
        assert plan is not None
        _refuse_unimportable(plan.experiment)
        engine: Engine[Outcome] = Embedded(workers, limits)
    elif on == "serial":
        engine = Serial()
    elif "://" in on:
        engine = Cluster(on, versions, say, "Finished cells are kept: resume with --resume.")
    else:
        raise SaddlesError.must_be("on", "'embedded', 'serial' or a scheduler's address such as tcp://HOST:8786", on)
    try:
        yield engine
    finally:
        engine.close()


def _refuse_unimportable(experiment: Experiment) -> None:
    """Refuse an experiment of a notebook or script, whose functions a fresh Python cannot import."""
    try:
        unknown = b"__main__" in pickle.dumps(experiment)
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, or a function inside another
        unknown = True
    if unknown:
        raise SaddlesError(
            f"Worker processes cannot import {experiment.name}: its functions or settings are not in a module. "
            "Put them in a file that can be imported, or compute in this process with on='serial'."
        )
