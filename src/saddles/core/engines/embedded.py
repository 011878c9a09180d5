"""Worker processes on this machine, one for each core or each GPU.

A worker that dies is replaced, and only the task it was computing is lost. One that has computed many cells, or whose
memory has grown, is replaced too: compiled programs and leaks of libraries add up.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from saddles.core.engines.engine import (
    ONE_THREAD,
    Answer,
    Engine,
    EngineError,
    Limits,
    Refusal,
    Task,
    TaskLostError,
    TaskOverrunError,
    cores,
)
from saddles.errors import SaddlesError
from saddles.runtime.programs import keep_compiled_programs
from saddles.runtime.workers import Worker, WorkerError, WorkerLostError, WorkerStoppedError

STARTS = 3
"""Workers that may end before they are ready, one after another, until the sweep is stopped: something is wrong."""


MOST_CELLS = 10_000
"""Cells that a worker computes before it is replaced, which takes some seconds."""

MOST_GROWTH = 2 * 10**9
"""Bytes that a worker's memory may have grown since its first task, before it is replaced."""


class Embedded(Engine[Answer]):
    """A pool of worker processes; each thread of this process talks to one of them.

    Args:
        workers: how many; None is one for each core or GPU.
        limits: what a cell may take.
    """

    def __init__(self, workers: int | None = None, limits: Limits = Limits()) -> None:  # noqa: B008
        if limits.memory is not None and memory_of(os.getpid()) is None:
            raise SaddlesError("A limit on memory needs /proc, as on Linux. Leave it out on this system.")
        self._limits = limits
        self._gpus = gpus()
        self.slots = workers or len(self._gpus) or cores()
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="sweep")
        self._mine = threading.local()
        self._workers: set[Worker[Task[Answer], list[Answer] | Refusal]] = set()
        self._numbers = itertools.count()
        self._closed = False

    def submit(self, task: Task[Answer]) -> "Future[list[Answer]]":
        """Give a task to the next worker that is free."""
        return self._threads.submit(self._compute, task)

    def close(self) -> None:
        """Kill the workers."""
        # First of all: a thread that is starting a worker just now sees it and kills that worker itself (`_start`).
        self._closed = True
        for worker in list(self._workers):
            worker.kill()
        # Threads end once their workers are dead; only then may nobody be reading from a channel that is closed.
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.pid for worker in list(self._workers)]

    def _compute(self, task: Task[Answer]) -> list[Answer]:
        worker = self._ready()
        try:
            if self._limits.timeout is not None and not hasattr(self._mine, "first"):
                worker.call(task.empty())  # loads the experiment, which is not the cell's time
            result = worker.call(task, self._watch(task, worker.pid))
        except WorkerStoppedError as error:
            self._forget(worker)
            raise (TaskOverrunError if "timeout" in str(error) else TaskLostError)(str(error)) from error
        except WorkerLostError as error:
            self._forget(worker)
            raise TaskLostError(f"its process ended with code {error.code}") from error
        except WorkerError as error:
            raise EngineError(f"A worker process failed: {error}") from error
        if isinstance(result, Refusal):
            raise EngineError(f"A worker process cannot compute the cells: {result.reason}.")
        self._count(worker, task.parts)
        return result

    def _watch(self, task: Task[Answer], pid: int) -> Callable[[], str] | None:
        """A function that says why a task must not go on; None where nothing is limited."""
        timeout, memory = self._limits.timeout, self._limits.memory
        if timeout is None and memory is None:
            return None
        # A block is meant to be short: one that overruns is sent again cell by cell, each with its own time. Cells that
        # share a program have theirs together.
        seconds = (timeout or 0.0) * (task.parts if task.together else 1)
        began = time.monotonic()

        def watch() -> str:
            if timeout is not None and time.monotonic() - began > seconds:
                return f"it took longer than the timeout of {timeout:g} s"
            if memory is not None and (memory_of(pid) or 0) > 1e9 * memory:
                return f"it took more than {memory:g} GB of memory"
            return ""

        return watch

    def _count(self, worker: Worker[Task[Answer], list[Answer] | Refusal], cells: int) -> None:
        """Replace a worker that has computed enough."""
        size = memory_of(worker.pid) or 0
        if not hasattr(self._mine, "first"):
            self._mine.first, self._mine.cells = size, 0
        self._mine.cells += cells
        if self._mine.cells >= MOST_CELLS or size - self._mine.first > MOST_GROWTH:
            worker.close()
            self._forget(worker)

    def _ready(self) -> Worker[Task[Answer], list[Answer] | Refusal]:
        """Get the worker of this thread; one that is killed before it is ready is replaced, up to `STARTS` times."""
        for attempt in range(1, STARTS + 1):
            worker: Worker[Task[Answer], list[Answer] | Refusal] | None = getattr(self._mine, "worker", None)
            if worker is None:
                worker = self._mine.worker = self._start()
            try:
                worker.ready()
                return worker
            except WorkerLostError as error:
                self._forget(worker)
                # Ready once and dead now: the task is lost, and may be sent again. Dead before it was ready: the next
                # one may start.
                if error.started:
                    raise TaskLostError(f"its process ended with code {error.code}") from error
                if attempt == STARTS or self._closed:
                    raise EngineError(str(error)) from error
            except WorkerError as error:
                raise EngineError(f"A worker process failed: {error}") from error
        raise AssertionError("unreachable")

    def _forget(self, worker: Worker[Task[Answer], list[Answer] | Refusal]) -> None:
        # Of this thread alone: the next task starts a new worker, and its memory and cells are counted from the
        # beginning. The thread keeps its number, or two workers might share a GPU while another one idles.
        for name in ("worker", "first", "cells"):
            self._mine.__dict__.pop(name, None)
        self._workers.discard(worker)

    def _start(self) -> Worker[Task[Answer], list[Answer] | Refusal]:
        if not hasattr(self._mine, "number"):
            self._mine.number = next(self._numbers)
        worker: Worker[Task[Answer], list[Answer] | Refusal] = Worker(
            task_computer, None, environment=self._environment(self._mine.number)
        )
        self._workers.add(worker)
        if self._closed:  # `close` ran meanwhile and has not seen this worker
            worker.kill()
        return worker

    def _environment(self, number: int) -> dict[str, str]:
        """One thread, and one GPU if there are any."""
        gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[number % len(self._gpus)]} if self._gpus else {}
        return ONE_THREAD | gpu


def memory_of(pid: int) -> int | None:
    """Bytes of memory that a process occupies; None where that cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def task_computer(nothing: None) -> Callable[[Task[Answer]], list[Answer] | Refusal]:
    """What a worker process answers tasks with."""
    keep_compiled_programs()
    return lambda task: task.compute()


def gpus() -> list[str]:
    """NVIDIA GPUs that this process may use; none where JAX is told to compute on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    # Asked of the system's files: no library is loaded for it, and no GPU gets a context of this process.
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k in range(len(list(driver.iterdir())))] if driver.is_dir() else []
