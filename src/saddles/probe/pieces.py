"""Pieces of an inspection on other processes: on the engines of sweeps, and what they will cost.

A task is some pieces of one checkpoint. It carries names, shapes and places in files, not numbers: a worker reads the
checkpoints itself, under the same paths.
"""

import pickle
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from saddles.core.engines.cluster import Cluster
from saddles.core.engines.embedded import Embedded
from saddles.core.engines.engine import Engine, Refusal, Task, TaskLostError, on_one_thread
from saddles.core.provenance import differences, versions
from saddles.errors import SaddlesError
from saddles.probe.measuring import Row
from saddles.runtime.progress import Bar

TASK_EFFORT = 20.0
"""Billions of operations of a task, about: a second or two of one core, so that sending it costs little."""

DEATHS = 3
"""Workers that a task may kill before the inspection is given up."""

CHECK_SECONDS = 1.0
"""Time between looks at whether anybody still computes."""


@runtime_checkable
class Make(Protocol):
    """Makes a piece, on a device."""

    def __call__(self, *, device: str = "cpu") -> Row: ...


@dataclass(frozen=True)
class Piece:
    """A unit of work.

    Args:
        name: under which it is kept.
        effort: billions of operations, about.
        make: does it; travels as a pickle.
        group: pieces of one group (a checkpoint) may travel together.
        shape: pieces of one shape cost the same.
    """

    name: str
    effort: float
    make: Make
    group: int
    shape: str


@dataclass(frozen=True)
class Made:
    """A piece that is made, or why not; processor seconds, and the peak memory of its process so far in bytes."""

    name: str
    row: Row
    seconds: float
    peak: int
    error: str = ""


@dataclass(frozen=True)
class Pieces(Task[Made]):
    """Some pieces of one checkpoint for one worker."""

    work: tuple[Piece, ...]
    wanted: Mapping[str, str] | None = None
    """Versions that the worker must have; None accepts any."""

    @property
    def parts(self) -> int:
        """How many pieces."""
        return len(self.work)

    def empty(self) -> "Pieces":
        """The same without pieces."""
        return replace(self, work=())

    def compute(self) -> list[Made] | Refusal:
        """Make the pieces, on the GPU where this process has one."""
        differ = differences(self.wanted, versions()) if self.wanted is not None else None
        if differ:
            return Refusal("a process", f"it has {differ[1]} and not {differ[0]}")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with on_one_thread():
            return [made(piece, device) for piece in self.work]


def made(piece: Piece, device: str = "cpu") -> Made:
    """Make a piece and measure what it took; a refusal is part of the result."""
    began = time.process_time()  # other work on the machine must not count
    try:
        row, error = piece.make(device=device), ""
    except SaddlesError as problem:
        row, error = {}, str(problem)
    return Made(piece.name, row, time.process_time() - began, _peak(), error)


def _peak() -> int:
    """The largest memory of this process so far, in bytes; 0 where the system does not tell."""
    try:  # Linux: `getrusage` there counts that of the parent before this program began
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        if sys.platform == "win32":
            return 0  # not known there
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def opened(on: str, workers: int | None, kept: str) -> Iterator[Engine[Made]]:
    """The engine at an address: "embedded" (worker processes here) or a Dask scheduler.

    Args:
        kept: a sentence for whoever loses the cluster: what is kept, and how to resume.
    """
    if workers is not None and workers < 1:
        raise SaddlesError.must_be("workers", "at least 1", workers)
    if on != "embedded" and "://" not in on:
        raise SaddlesError.must_be("on", "'embedded' or a scheduler's address such as tcp://HOST:8786", on)
    engine: Engine[Made] = Embedded(workers) if on == "embedded" else Cluster(on, versions(), warnings.warn, kept)
    try:
        yield engine
    finally:
        engine.close()


def carry_out(engine: Engine[Made], pieces: Sequence[Piece], keep: Callable[[Made], None], progress: Bar) -> None:
    """Have all pieces made, in order as far as workers allow, and keep each as it arrives."""
    waiting, running = deque(_tasks(pieces)), dict[Future[list[Made]], Pieces]()
    deaths: Counter[str] = Counter()
    _check_travels(waiting[0] if waiting else None)
    while waiting or running:
        while waiting and len(running) < 2 * engine.slots:  # the next one is there when a worker has finished
            task = waiting.popleft()
            running[engine.submit(task)] = task
        done, _ = wait(running, timeout=CHECK_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            try:
                results = future.result()
            except TaskLostError as error:
                deaths[task.work[0].name] += 1
                if deaths[task.work[0].name] >= DEATHS:
                    raise SaddlesError(
                        f"{task.work[0].name} killed {DEATHS} workers ({error}). Is there enough memory for two copies "
                        "of its tensors?"
                    ) from error
                # In front: a result has checkpoints up to the first gap, which would hold back all that come after.
                waiting.appendleft(task)
                continue
            for piece, one in zip(task.work, results, strict=True):
                if one.error:
                    raise SaddlesError(one.error)
                keep(one)
                progress.advance(piece.effort)
        engine.check()


def _tasks(pieces: Sequence[Piece]) -> Iterator[Pieces]:
    """Pieces in order, those of one checkpoint together up to `TASK_EFFORT`."""
    group: list[Piece] = []
    for piece in pieces:
        full = sum(one.effort for one in group) + piece.effort > TASK_EFFORT
        if group and (full or piece.group != group[0].group):
            yield Pieces(tuple(group), versions())
            group = []
        group.append(piece)
    if group:
        yield Pieces(tuple(group), versions())


def _check_travels(task: Pieces | None) -> None:
    try:
        pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SaddlesError(
            "These checkpoints cannot be sent to other processes: they must be files whose names agree. Leave `on` out."
        ) from error


@dataclass(frozen=True)
class Cost:
    """What an inspection takes, from timed pieces.

    Attributes:
        pieces: how many there are.
        seconds: of one core for all of them.
        longest: seconds of the longest piece.
        peak: bytes of a process, with Python and the libraries.
        timed: shape of a piece -> (how many, seconds of the one that was timed).
    """

    pieces: int
    seconds: float
    longest: float
    peak: int
    timed: Mapping[str, tuple[int, float]]

    def __str__(self) -> str:
        """Sentences for a person."""
        rows = [f"{shape}: {count} pieces of {seconds:.3g} s" for shape, (count, seconds) in self.timed.items()]
        return "\n".join(
            [
                f"{self.pieces} pieces, {self.seconds / 3600:.3g} hours of one core; a process takes up to "
                f"{self.peak / 2**20:.0f} MiB, a piece up to {self.longest:.3g} s.",
                *rows,
            ]
        )


def estimate(pieces: Sequence[Piece], done: Callable[[str], bool]) -> Cost:
    """Time one piece of each shape that is not made yet, and multiply.

    Args:
        done: whether a piece is made already.
    """
    by_shape: dict[str, list[Piece]] = {}
    for piece in pieces:
        if not done(piece.name):
            by_shape.setdefault(piece.shape, []).append(piece)
    timed, peak = {}, 0
    for shape, rows in by_shape.items():
        with on_one_thread():
            one = made(rows[-1])  # of the last checkpoint: what has not moved yet costs less
        if one.error:
            raise SaddlesError(one.error)
        timed[shape], peak = (len(rows), one.seconds), max(peak, one.peak)
    total = sum(count * seconds for count, seconds in timed.values())
    longest = max((seconds for _, seconds in timed.values()), default=0.0)
    return Cost(sum(count for count, _ in timed.values()), total, longest, peak, timed)
