"""Keep an engine busy, put what comes back on disk, and tell how it goes.

Cells go out in blocks of at least a tenth of a second, so that sending them costs little, and what comes back is
committed every half second. A block whose worker dies goes out again cell by cell; a cell whose worker dies three
times has failed.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from saddles.errors import SaddlesError
from saddles.runtime.progress import Bar
from saddles.sweeps.cells import Job, Outcome, Task, group_key
from saddles.sweeps.engine import Engine, WorkerLostError
from saddles.sweeps.store import FAILED, Store

BLOCK_SECONDS = 0.2
MOST_CELLS = 500
GROUP = 32
"""Cells of one compiled program at most."""

COMMIT_SECONDS = 0.5
COMMIT_BYTES = 2**26
DEATHS = 3
TOLD_SECONDS = 60.0

Say = Callable[[str], None]


class Blocks:
    """Cells that wait, cut into blocks as their pace becomes known."""

    def __init__(self, task: Task, slots: int) -> None:
        self._task = task
        self._width = max(1, min(GROUP, -(-len(task.jobs) // slots)))
        keys = {job.number: group_key(task.row, job) for job in task.jobs} if task.row.together else {}
        first = {key: number for number, key in reversed(keys.items())}
        self._jobs = deque(sorted(task.jobs, key=lambda job: (first.get(keys.get(job.number, ""), 0), job.number)))
        self._keys, self._alone, self._pace = keys, deque[Job](), 0.0

    def __bool__(self) -> bool:
        return bool(self._jobs or self._alone)

    def take(self, slots: int) -> Task:
        """The next block."""
        if self._alone:
            return self._cut([self._alone.popleft()])
        if self._keys:
            return self._cut(self._group())
        fair = -(-len(self._jobs) // (2 * slots))
        size = max(1, min(int(BLOCK_SECONDS / self._pace) if self._pace else 1, fair, MOST_CELLS))
        return self._cut([self._jobs.popleft() for _ in range(min(size, len(self._jobs)))])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Note the pace of the latest block."""
        self._pace = max(sum(o.seconds for o in outcomes) / len(outcomes), 1e-6)

    def again(self, jobs: Sequence[Job]) -> None:
        """Take cells back; they go out one by one."""
        self._alone.extend(jobs)

    def _group(self) -> list[Job]:
        key, found = self._keys[self._jobs[0].number], []
        while self._jobs and len(found) < self._width and self._keys[self._jobs[0].number] == key:
            found.append(self._jobs.popleft())
        return found

    def _cut(self, jobs: Sequence[Job]) -> Task:
        return Task(self._task.row, self._task.size, tuple(jobs), self._task.versions)


class Drive:
    """One pass over the cells of a task."""

    def __init__(self, store: Store, task: Task, engine: Engine, bar: Bar, say: Say) -> None:
        self._store, self._engine, self._bar, self._say = store, engine, bar, say
        self._blocks, self._total = Blocks(task, engine.slots), len(task.jobs)
        self._out: dict[Future[list[Outcome]], Task] = {}
        self._arrived: list[Outcome] = []
        self._deaths: Counter[int] = Counter()
        self._began = self._committed = self._told = time.monotonic()
        self._done = self._failed = 0
        self._warned: set[str] = set()

    def run(self) -> None:
        """Compute and commit everything; Ctrl-C commits what has arrived."""
        try:
            while self._blocks or self._out:
                while self._blocks and len(self._out) < 2 * self._engine.slots:
                    task = self._blocks.take(self._engine.slots)
                    self._out[self._engine.submit(task)] = task
                    if self._due():
                        break
                done, _ = wait(self._out, timeout=COMMIT_SECONDS, return_when=FIRST_COMPLETED)
                for future in [future for future in self._out if future in done]:
                    self._collect(future)
                if self._due():
                    self._commit()
        except BaseException as error:
            self._save_what_arrived(error)
            raise
        self._commit()

    def _collect(self, future: "Future[list[Outcome]]") -> None:
        task = self._out.pop(future)
        try:
            outcomes = future.result()
        except WorkerLostError as error:
            self._lost(task, str(error))
            return
        self._blocks.learn(outcomes)
        self._arrived += outcomes

    def _lost(self, task: Task, reason: str) -> None:
        job, *others = task.jobs
        if others:
            self._blocks.again(task.jobs)
            return
        self._deaths[job.number] += 1
        if self._deaths[job.number] < DEATHS:
            self._blocks.again([job])
        else:
            words = f"its worker died {DEATHS} times, the last time: {reason}"
            self._arrived.append(Outcome(job.number, 0.0, error=words))

    def _due(self) -> bool:
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            return True
        return sum(o.packed.nbytes for o in self._arrived if o.packed is not None) > COMMIT_BYTES

    def _commit(self) -> None:
        arrived, self._arrived = self._arrived, []
        rows = self._store.commit(arrived)
        self._committed = time.monotonic()
        self._done += len(rows)
        self._failed += sum(row["status"] == FAILED for row in rows)
        self._bar.say(f"{self._failed} failed" if self._failed else "")
        self._bar.reach(float(self._done))
        if self._bar.silent and self._committed - self._told > TOLD_SECONDS:
            self._told = self._committed
            self._say(self._line())
        self._warn({o.apart for o in arrived if o.apart} - self._warned)

    def _warn(self, errors: set[str]) -> None:
        self._warned |= errors
        for error in sorted(errors):
            warnings.warn(f"cells that could share a program were computed one by one: {error}", stacklevel=2)

    def _line(self) -> str:
        spent = time.monotonic() - self._began
        left = (self._total - self._done) * spent / max(self._done, 1)
        words = f"{self._done} of {self._total} cells, {self._failed} failed, {self._done / spent:.3g}/s"
        return f"{words}, ends in {left / 60:.3g} min" if self._done else words

    def _save_what_arrived(self, error: BaseException) -> None:
        """Commit what was computed before something stopped the sweep, unless that was the disk."""
        for future in [future for future in self._out if future.done() and not future.cancelled()]:
            if future.exception() is None:
                self._arrived += future.result()
        try:
            self._commit()
        except SaddlesError:
            if isinstance(error, KeyboardInterrupt):
                raise
