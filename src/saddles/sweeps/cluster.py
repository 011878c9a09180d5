"""Cells on a Dask cluster that is running: `--on tcp://HOST:PORT`.

Only this process writes; workers send arrays back and need no shared disk. Where workers offer the resource GPU
(`dask worker --resources GPU=1`), each task takes one, so that a GPU has one cell at a time.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from saddles.core import provenance
from saddles.errors import SaddlesError
from saddles.sweeps.cells import Outcome, Refusal, Task, compute
from saddles.sweeps.engine import Engine, EngineError, WorkerLostError
from saddles.sweeps.plan import differences

ANSWER_SECONDS = 10.0
"""How long a scheduler may take to answer."""

WORKERS_SECONDS = 120.0
"""How long the first worker may take to come."""

GPU = {"GPU": 1.0}


class Cluster(Engine):
    """Sends tasks to the workers of a scheduler.

    Args:
        address: of the scheduler, such as tcp://10.0.0.1:8786.
        versions: what every worker must have; None takes any.
        say: gets a line when a worker is waited for or left out.
    """

    def __init__(self, address: str, versions: Mapping[str, str] | None, say: Callable[[str], None]) -> None:
        self._address, self._say = address, say
        self._client = _connected(address)
        self._refused: set[str] = set()
        self._counter = itertools.count()
        try:
            workers = self._first_workers()
            if versions is not None:
                _refuse_versions(self._client.run(provenance.versions, on_error="return"), versions)
            offers = [worker.get("resources", {}) for worker in workers.values()]
        except BaseException:
            self._client.close()
            raise
        self._resources = GPU if any(offer.get("GPU", 0) >= 1 for offer in offers) else {}
        self._looked, self._slots = 0.0, 1
        self._arrived: queue.SimpleQueue[tuple[Any, Task, Future[list[Outcome]]]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver_all, daemon=True).start()

    @property
    def slots(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Cores of all workers, or their GPUs; looked up now and then, because workers come and go."""
        if time.monotonic() - self._looked > 2.0:
            workers = self._workers().values()
            if self._resources:
                self._slots = max(1, int(sum(worker.get("resources", {}).get("GPU", 0) for worker in workers)))
            else:
                self._slots = max(1, sum(worker["nthreads"] for worker in workers))
            self._looked = time.monotonic()
        return self._slots

    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Send a task; what comes back arrives in an ordinary future."""
        answer: Future[list[Outcome]] = Future()
        self._send_for(task, answer)
        return answer

    def close(self) -> None:
        """Take back what is not done, and leave the cluster running."""
        self._client.close()

    def _send_for(self, task: Task, answer: "Future[list[Outcome]]") -> None:
        self._send(task).add_done_callback(lambda done: self._arrived.put((done, task, answer)))

    def _deliver_all(self) -> None:
        """Fetch results in a thread that nobody waits for: a fetch may hang where the cluster is being left."""
        while True:
            self._deliver(*self._arrived.get())

    def _send(self, task: Task) -> Any:
        good = [address for address in self._workers() if address not in self._refused] if self._refused else None
        if good == []:
            raise EngineError(f"no worker of {self._address} is left that has the versions of this process.")
        return self._client.submit(
            _compute_there, task, key=f"saddles-{id(self)}-{next(self._counter)}", pure=False,
            resources=self._resources or None, workers=good, allow_other_workers=False if good else None,
        )  # fmt: skip

    def _deliver(self, done: Any, task: Task, answer: "Future[list[Outcome]]") -> None:
        from distributed import KilledWorker

        try:
            made = done.result()
            if isinstance(made, Refusal):
                if made.worker not in self._refused:
                    self._refused.add(made.worker)
                    self._say(f"the worker {made.worker} is left out: {made.reason}")
                self._send_for(task, answer)
                return
            answer.set_result(made)
        except KilledWorker as error:
            answer.set_exception(WorkerLostError(f"Dask lost {error.last_worker.address}"))
        except BaseException as error:
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            answer.set_exception(
                error if isinstance(error, EngineError) else EngineError(
                    f"the cluster at {self._address} gave up ({words}); finished cells are kept, go on with --resume."
                )
            )  # fmt: skip

    def _workers(self) -> dict[str, Any]:
        return dict(self._client.scheduler_info(n_workers=-1)["workers"])

    def _first_workers(self) -> dict[str, Any]:
        if not self._workers():
            self._say(f"{self._address} has no worker yet; waiting {WORKERS_SECONDS:.0f} s for the first")
            try:
                self._client.wait_for_workers(1, timeout=WORKERS_SECONDS)
            except TimeoutError as error:
                raise EngineError.about(
                    f"{self._address} has no worker", "cells need one", f"start `dask worker {self._address}`"
                ) from error
        return self._workers()


def _compute_there(task: Task) -> list[Outcome] | Refusal:
    """What a Dask worker runs; it names itself where it must refuse."""
    from distributed import get_worker

    made = compute(task)
    return Refusal(get_worker().address, made.reason) if isinstance(made, Refusal) else made


def _connected(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise SaddlesError.about(
            f"--on {address} came", "Dask is not installed", "install the extra: pip install 'saddles[sweep]'"
        ) from error
    try:
        with ThreadPoolExecutor(1) as aside:  # a notebook's own loop may run in this thread
            aside.submit(asyncio.run, _asked(address)).result()
        return Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise EngineError.about(
            f"the scheduler {address} did not answer within {ANSWER_SECONDS:.0f} s",
            "one must be running there",
            "start it with `dask scheduler`, or leave --on out to compute on this machine",
        ) from error


async def _asked(address: str) -> None:
    """Ask the scheduler who it is; a `Client` would wait for ever for one that accepts and says nothing."""
    from distributed.comm.core import connect

    async def ask() -> None:
        comm: Any = await connect(address, timeout=ANSWER_SECONDS)
        try:
            await comm.write({"op": "identity", "reply": True})
            await comm.read()
        finally:
            comm.abort()

    await asyncio.wait_for(ask(), ANSWER_SECONDS)


def _refuse_versions(found: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    for address, there in found.items():
        if not isinstance(there, dict):
            raise EngineError.about(
                f"the worker {address} is refused: it cannot import saddles ({there})",
                "every worker needs it",
                "install it there",
            )
        differ = differences(wanted, there)
        if differ:
            raise EngineError.about(
                f"the worker {address} is refused: it has {differ[1]}",
                f"this process has {differ[0]}",
                "install the same versions there, or use --accept-changes",
            )
