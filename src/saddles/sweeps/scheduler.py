"""Keep an engine busy, put what comes back on disk, and report progress.

Cells are sent in blocks of at least a tenth of a second, so that sending them costs little, and what comes back is
committed every half second. A block whose worker dies is sent again cell by cell; a cell whose worker dies three
times has failed.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from saddles.core.engines.engine import Engine, TaskLostError, TaskOverrunError
from saddles.core.status import Ending
from saddles.errors import SaddlesError
from saddles.runtime.progress import Bar
from saddles.sweeps.cells import Job, Outcome, Task, group_key
from saddles.sweeps.store import Store

BLOCK_SECONDS = 0.2
"""What a block should take; Dask costs about 2 ms for each."""

MOST_CELLS = 500
"""Cells of one block at most."""

GROUP = 32
"""Cells of one compiled program at most."""

COMMIT_SECONDS = 0.5
"""Time between commits: what a crash may cost."""

COMMIT_BYTES = 2**26
"""Bytes that wait in memory before they are committed early."""

DEATHS = 3
"""Workers that a cell may kill before it has failed."""

SHORTEST = 1e-6
"""Seconds that a cell takes at least, so that a pace is never zero."""


class JobQueue:
    """Cells that wait, cut into blocks as their pace becomes known."""

    def __init__(self, task: Task, slots: int) -> None:
        self._task = task
        # Groups are no wider than an equal share, so that every slot gets work.
        self._width = max(1, min(GROUP, -(-len(task.jobs) // slots)))
        keys = {job.number: group_key(task.experiment, job) for job in task.jobs} if task.experiment.together else {}
        # Backwards, so that the smallest number of each group is the one that stays: groups are sorted by it.
        first = {key: number for number, key in reversed(keys.items())}
        self._jobs = deque(sorted(task.jobs, key=lambda job: (first.get(keys.get(job.number, ""), 0), job.number)))
        self._keys, self._alone, self._pace = keys, deque[Job](), 0.0

    def __bool__(self) -> bool:
        return bool(self._jobs or self._alone)

    def take(self, slots: int) -> Task:
        """The next block."""
        if self._alone:
            return self._block([self._alone.popleft()])
        if self._keys:
            return self._block(self._group())
        # Near the end blocks shrink to half an equal share, so that no slot is left with a long last one.
        fair = -(-len(self._jobs) // (2 * slots))
        size = max(1, min(int(BLOCK_SECONDS / self._pace) if self._pace else 1, fair, MOST_CELLS))
        return self._block([self._jobs.popleft() for _ in range(min(size, len(self._jobs)))])

    def note_pace(self, outcomes: Sequence[Outcome]) -> None:
        """Take the pace of the latest block for the next ones."""
        self._pace = max(sum(o.seconds for o in outcomes) / len(outcomes), SHORTEST)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Queue cells again, one by one."""
        self._alone.extend(jobs)

    def _group(self) -> list[Job]:
        key, jobs = self._keys[self._jobs[0].number], []
        while self._jobs and len(jobs) < self._width and self._keys[self._jobs[0].number] == key:
            jobs.append(self._jobs.popleft())
        return jobs

    def _block(self, jobs: Sequence[Job]) -> Task:
        return Task(self._task.experiment, self._task.size, tuple(jobs), self._task.versions)


class Scheduler:
    """One pass over the cells of a task."""

    def __init__(self, store: Store, task: Task, engine: Engine[Outcome], bar: Bar) -> None:
        self._store, self._engine, self._bar = store, engine, bar
        self._queue = JobQueue(task, engine.slots)
        self._running: dict[Future[list[Outcome]], Task] = {}
        self._arrived: list[Outcome] = []
        self._deaths: Counter[int] = Counter()
        self._committed = time.monotonic()
        self._done = self._failed = 0
        self._warned: set[str] = set()

    def run(self) -> None:
        """Compute and commit everything; Ctrl-C commits what has arrived."""
        try:
            while self._queue or self._running:
                # Two blocks per slot: the next one is there when a worker has finished.
                while self._queue and len(self._running) < 2 * self._engine.slots:
                    task = self._queue.take(self._engine.slots)
                    self._running[self._engine.submit(task)] = task
                    if self._due():  # an engine in this process computes inside `submit`
                        break
                done, _ = wait(self._running, timeout=COMMIT_SECONDS, return_when=FIRST_COMPLETED)
                for future in [future for future in self._running if future in done]:
                    self._collect(future)
                if self._due():
                    self._commit()
                self._engine.check()
        except BaseException as error:
            self._save_what_arrived(error)
            raise
        self._commit()

    def _collect(self, future: "Future[list[Outcome]]") -> None:
        task = self._running.pop(future)
        try:
            outcomes = future.result()
        except TaskLostError as error:
            self._retry(task, error)
            return
        self._queue.note_pace(outcomes)
        self._arrived += outcomes

    def _retry(self, task: Task, reason: TaskLostError) -> None:
        job, *others = task.jobs
        if others:  # which of the cells killed the worker is not known: each is sent alone
            self._queue.put_back(task.jobs)
            return
        self._deaths[job.number] += 1
        # It would overrun again, so it is not tried again.
        if isinstance(reason, TaskOverrunError):
            self._arrived.append(Outcome(job.number, 0.0, error=str(reason)))
        elif self._deaths[job.number] < DEATHS:
            self._queue.put_back([job])
        else:
            text = f"its worker died {DEATHS} times, the last time: {reason}"
            self._arrived.append(Outcome(job.number, 0.0, error=text))

    def _due(self) -> bool:
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            return True
        return sum(o.packed.nbytes for o in self._arrived if o.packed is not None) > COMMIT_BYTES

    def _commit(self) -> None:
        arrived, self._arrived = self._arrived, []
        rows = self._store.commit(arrived)
        self._committed = time.monotonic()
        self._done += len(rows)
        self._failed += sum(row["status"] == Ending.FAILED for row in rows)
        self._bar.say(f"{self._failed} failed" if self._failed else "")
        self._bar.reach(float(self._done))
        self._warn({o.shared_error for o in arrived if o.shared_error} - self._warned)

    def _warn(self, errors: set[str]) -> None:
        self._warned |= errors
        for error in sorted(errors):
            warnings.warn(f"Cells that could share a program were computed one by one: {error}", stacklevel=2)

    def _save_what_arrived(self, error: BaseException) -> None:
        """Commit what was computed before something stopped the sweep; the first error is the one to show."""
        for future in [future for future in self._running if future.done() and not future.cancelled()]:
            if future.exception() is None:
                self._arrived += future.result()
        try:
            self._commit()
        except SaddlesError:
            # Ctrl-C needs no explanation; a disk that takes no more does.
            if isinstance(error, KeyboardInterrupt):
                raise
