"""Worker processes on this machine, one for each core or each GPU.

A worker is a fresh Python (`python -m saddles.sweeps.worker`), not a fork, which JAX does not survive, and not a
child that would import the caller's script again. Tasks and outcomes go through its pipes. A worker that dies is
replaced, and only the task it was at is lost.
"""

import itertools
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from saddles.sweeps.cells import ONE_THREAD, Outcome, Refusal, Task
from saddles.sweeps.engine import Engine, EngineError, WorkerLostError, cores

CLOSED = (EOFError, BrokenPipeError, ConnectionError, pickle.UnpicklingError)


class Embedded(Engine):
    """A pool of worker processes; each thread of this process talks to one of them."""

    def __init__(self, workers: int | None = None) -> None:
        self._gpus = gpus()
        self.slots = workers or len(self._gpus) or cores()
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="sweep")
        self._mine = threading.local()
        self._processes: set[Any] = set()
        self._numbers = itertools.count()
        self._closed = False

    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Give a task to the next worker that is free."""
        return self._threads.submit(self._compute, task)

    def close(self) -> None:
        """Kill the workers."""
        self._closed = True
        for process in list(self._processes):
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in list(self._processes):
            self._bury(process)

    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [process.pid for process in list(self._processes)]

    def _compute(self, task: Task) -> list[Outcome]:
        process = getattr(self._mine, "process", None)
        if process is None:
            process = self._mine.process = self._start()
        try:
            pickle.dump(task, process.stdin, protocol=5)
            process.stdin.flush()
            made = pickle.load(process.stdout)
        except CLOSED as error:
            self._mine.process = None
            raise WorkerLostError(f"its process ended with code {self._bury(process)}") from error
        if isinstance(made, Refusal):
            raise EngineError(f"the worker, {made.worker}, is refused: {made.reason}.")
        return made

    def _start(self) -> Any:
        number = next(self._numbers)
        process = subprocess.Popen(
            [sys.executable, "-m", "saddles.sweeps.worker", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment(number),
        )  # fmt: skip
        self._processes.add(process)
        if self._closed:
            process.kill()
        assert process.stdout is not None
        try:
            pickle.load(process.stdout)  # it says that it is ready
        except CLOSED as error:
            code = self._bury(process)
            raise EngineError.about(
                f"a worker process ended with code {code} before it was ready",
                "saddles must be importable in a fresh Python",
                "see its words above",
            ) from error
        return process

    def _bury(self, process: Any) -> int:
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            try:
                pipe.close()
            except OSError:
                continue  # what was left in it cannot be delivered any more
        self._processes.discard(process)
        return code

    def _environment(self, number: int) -> dict[str, str]:
        """One thread, one GPU if there are any, this process's import path, and a folder of compiled programs."""
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        found = {
            "JAX_COMPILATION_CACHE_DIR": str(Path(home) / "saddles" / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
            **os.environ,
            **ONE_THREAD,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        return found | ({"CUDA_VISIBLE_DEVICES": self._gpus[number % len(self._gpus)]} if self._gpus else {})


def gpus() -> list[str]:
    """NVIDIA GPUs that this process may use, unless JAX is told to compute on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k in range(len(list(driver.iterdir())))] if driver.is_dir() else []
