"""Worker processes on this machine, one for each core or each GPU.

A worker that dies is replaced, and only the task it was computing is lost.
"""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from saddles.runtime.workers import Worker, WorkerError, WorkerLostError
from saddles.sweeps.cells import ONE_THREAD, Outcome, Refusal, Task, compute
from saddles.sweeps.engine import Engine, EngineError, TaskLostError, cores

CellWorker = Worker[Task, list[Outcome] | Refusal]


STARTS = 3
"""Workers that may end before they are ready, one after another, until the sweep is stopped: something is wrong."""


class Embedded(Engine):
    """A pool of worker processes; each thread of this process talks to one of them."""

    def __init__(self, workers: int | None = None) -> None:
        self._gpus = gpus()
        self.slots = workers or len(self._gpus) or cores()
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="sweep")
        self._mine = threading.local()
        self._workers: set[CellWorker] = set()
        self._numbers = itertools.count()
        self._closed = False

    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Give a task to the next worker that is free."""
        return self._threads.submit(self._compute, task)

    def close(self) -> None:
        """Kill the workers."""
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

    def _compute(self, task: Task) -> list[Outcome]:
        worker = self._ready()
        try:
            result = worker.call(task)
        except WorkerLostError as error:
            self._forget(worker)
            raise TaskLostError(f"its process ended with code {error.code}") from error
        except WorkerError as error:
            raise EngineError(f"A worker process failed: {error}") from error
        if isinstance(result, Refusal):
            raise EngineError(f"A worker process cannot compute the cells: {result.reason}.")
        return result

    def _ready(self) -> CellWorker:
        """Get the worker of this thread; one that is killed before it is ready is replaced, up to `STARTS` times."""
        for attempt in range(1, STARTS + 1):
            worker: CellWorker | None = getattr(self._mine, "worker", None)
            if worker is None:
                worker = self._mine.worker = self._start()
            try:
                worker.ready()
                return worker
            except WorkerLostError as error:
                self._forget(worker)
                if error.started:
                    raise TaskLostError(f"its process ended with code {error.code}") from error
                if attempt == STARTS or self._closed:
                    raise EngineError(str(error)) from error
            except WorkerError as error:
                raise EngineError(f"A worker process failed: {error}") from error
        raise AssertionError("unreachable")

    def _forget(self, worker: CellWorker) -> None:
        self._mine.worker = None
        self._workers.discard(worker)

    def _start(self) -> CellWorker:
        worker: CellWorker = Worker(cell_computer, None, environment=self._environment(next(self._numbers)))
        self._workers.add(worker)
        if self._closed:  # `close` ran meanwhile and has not seen this worker
            worker.kill()
        return worker

    def _environment(self, number: int) -> dict[str, str]:
        """One thread, one GPU if there are any, and a folder of compiled programs."""
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        compiled = {
            "JAX_COMPILATION_CACHE_DIR": str(Path(home) / "saddles" / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",  # what compiles faster is not worth a file
        }
        gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[number % len(self._gpus)]} if self._gpus else {}
        return {name: os.environ.get(name, value) for name, value in compiled.items()} | ONE_THREAD | gpu


def cell_computer(nothing: None) -> Callable[[Task], list[Outcome] | Refusal]:
    """What a worker process answers tasks with."""
    return compute


def gpus() -> list[str]:
    """NVIDIA GPUs that this process may use; none where JAX is told to compute on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k in range(len(list(driver.iterdir())))] if driver.is_dir() else []
