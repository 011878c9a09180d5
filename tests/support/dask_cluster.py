"""A Dask scheduler and two workers, started as a user starts them, and both there."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed

Process = subprocess.Popen[bytes]


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@contextmanager
def dask_cluster(home: Path, **variables: str) -> Iterator[tuple[str, Callable[..., Process], list[Process]]]:
    """The address, a way to start more workers, and the two workers; logs are written to `home`."""
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    address = f"tcp://127.0.0.1:{_free_port()}"
    processes: list[Process] = []

    def start(*words: str) -> Process:
        command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
        with (home / f"{words[0]}-{len(processes)}.log").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log))
        return processes[-1]

    def worker(*words: str) -> Process:
        return start("worker", address, "--nthreads", "1", "--no-nanny", *words)

    try:
        start("scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2])
        workers = [worker("--name", name) for name in ("one", "two")]
        with distributed.Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(len(workers), timeout=120)
        yield address, worker, workers
    finally:
        for process in processes:
            process.kill()
            process.wait()
