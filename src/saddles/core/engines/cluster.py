"""Cells on a Dask cluster that is running: `--on tcp://HOST:PORT`.

Only this process writes; workers send arrays back and need no shared disk. Where workers offer the resource GPU
(`dask worker --resources GPU=1`), each task takes one, so that a GPU has one cell at a time.
"""

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypedDict, runtime_checkable

from saddles.core import provenance
from saddles.core.engines.engine import Answer, Engine, EngineError, Refusal, Task, TaskLostError, describe
from saddles.core.provenance import differences
from saddles.errors import SaddlesError

ANSWER_SECONDS = 10.0
"""How long a scheduler may take to answer."""

WORKERS_SECONDS = 120.0
"""How long the first worker may take to join, and another one where the last has left."""

LOOK_SECONDS = 2.0
"""How often the number of workers is looked up."""

GPU = {"GPU": 1.0}


class DaskWorker(TypedDict, total=False):
    """What is read of a worker's description by its scheduler."""

    nthreads: int
    resources: dict[str, float]


@runtime_checkable
class DaskFuture(Protocol):
    """What is used of a `distributed.Future`; Dask is imported only where it is used."""

    def result(self) -> Any:
        """Wait for the task's answer."""
        ...

    def add_done_callback(self, fn: "Callable[[DaskFuture], None]") -> None:
        """Call when the task has ended."""
        ...


class Cluster(Engine[Answer]):
    """Sends tasks to the workers of a scheduler.

    Args:
        address: of the scheduler, such as tcp://10.0.0.1:8786.
        versions: what every worker must have; None takes any.
        say: gets a line while it waits for a worker, and when a worker is left out.
        kept: a sentence for whoever loses the cluster: what is kept, and how to resume.
    """

    def __init__(self, address: str, versions: Mapping[str, str] | None, say: Callable[[str], None], kept: str) -> None:
        self._address, self._say, self._kept = address, say, kept
        self._client = _connect(address)
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
        # One worker that offers GPUs is enough: tasks then wait for such workers and leave the others alone.
        self._resources = GPU if any(offer.get("GPU", 0) >= 1 for offer in offers) else {}
        self._looked, self._slots = 0.0, 1
        self._alone_since: float | None = None
        self._arrived: queue.SimpleQueue[tuple[DaskFuture, Task[Answer], Future[list[Answer]]]] = queue.SimpleQueue()
        # A daemon, because nobody can wake it from a fetch that hangs, and Python must be able to end.
        threading.Thread(target=self._deliver_all, daemon=True).start()

    @property
    def slots(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Cores of all workers, or their GPUs; looked up now and then, because workers come and go."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            workers = self._workers().values()
            if self._resources:
                found = int(sum(worker.get("resources", {}).get("GPU", 0) for worker in workers))
            else:
                found = sum(worker.get("nthreads", 0) for worker in workers)
            self._slots, self._looked = max(1, found), time.monotonic()
            if found:
                self._alone_since = None
            elif self._alone_since is None:
                self._alone_since = self._looked
                self._say(f"{self._address} has no worker left; waiting up to {WORKERS_SECONDS:.0f} s for one.")
        return self._slots

    def check(self) -> None:
        """Give up where no worker has been there for `WORKERS_SECONDS`."""
        try:
            _ = self.slots
        except (OSError, TimeoutError) as error:
            raise EngineError(self._failed(error)) from error
        if self._alone_since is not None and time.monotonic() - self._alone_since > WORKERS_SECONDS:
            raise EngineError(
                f"{self._address} has had no worker for {WORKERS_SECONDS:.0f} s: start one with "
                f"`dask worker {self._address}`. {self._kept}"
            )

    def submit(self, task: Task[Answer]) -> "Future[list[Answer]]":
        """Send a task; its answer arrives in an ordinary future."""
        answer: Future[list[Answer]] = Future()
        self._send_for(task, answer)
        return answer

    def close(self) -> None:
        """Cancel what is not done, and leave the cluster running."""
        self._client.close()

    def _send_for(self, task: Task[Answer], answer: "Future[list[Answer]]") -> None:
        self._send(task).add_done_callback(lambda done: self._arrived.put((done, task, answer)))

    def _deliver_all(self) -> None:
        """Fetch results in a thread that nobody waits for: a fetch may hang while the client is being closed."""
        while True:
            self._deliver(*self._arrived.get())

    def _send(self, task: Task[Answer]) -> DaskFuture:
        # None leaves the choice to Dask; a list also keeps a task from workers that join later, so it is made only
        # where it must be.
        good = [address for address in self._workers() if address not in self._refused] if self._refused else None
        if good == []:
            raise EngineError(f"No worker of {self._address} is left that has the versions of this process.")
        return self._client.submit(
            _compute_there, task, key=f"saddles-{id(self)}-{next(self._counter)}", pure=False,
            resources=self._resources or None, workers=good, allow_other_workers=False if good else None,
        )  # fmt: skip

    def _deliver(self, done: DaskFuture, task: Task[Answer], answer: "Future[list[Answer]]") -> None:
        from distributed import KilledWorker

        try:
            result = done.result()
            if isinstance(result, Refusal):  # a worker that joined later; the task goes to another
                if result.worker not in self._refused:
                    self._refused.add(result.worker)
                    self._say(f"Worker {result.worker} is left out: {result.reason}.")
                self._send_for(task, answer)
                return
            answer.set_result(result)
        except KilledWorker as error:
            answer.set_exception(TaskLostError(f"Dask lost {error.last_worker.address}"))
        except EngineError as error:
            answer.set_exception(error)
        except BaseException as error:
            answer.set_exception(EngineError(self._failed(error)))

    def _failed(self, error: BaseException) -> str:
        return f"The cluster at {self._address} failed ({describe(error).splitlines()[0]}). {self._kept}"

    def _workers(self) -> dict[str, DaskWorker]:
        return dict(self._client.scheduler_info(n_workers=-1)["workers"])

    def _first_workers(self) -> dict[str, DaskWorker]:
        if not self._workers():
            self._say(f"{self._address} has no worker yet; waiting up to {WORKERS_SECONDS:.0f} s for the first.")
            try:
                self._client.wait_for_workers(1, timeout=WORKERS_SECONDS)
            except TimeoutError as error:
                raise EngineError(
                    f"{self._address} has no worker. Start one with `dask worker {self._address}`."
                ) from error
        return self._workers()


def _compute_there(task: Task[Answer]) -> list[Answer] | Refusal:
    """What a Dask worker runs; it names itself where it must refuse."""
    from distributed import get_worker

    result = task.compute()
    return Refusal(get_worker().address, result.reason) if isinstance(result, Refusal) else result


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise SaddlesError(
            f"Work on {address} needs Dask, which is not installed: pip install 'saddles[sweep]'."
        ) from error
    try:
        with ThreadPoolExecutor(1) as aside:  # a notebook's own loop may run in this thread
            aside.submit(asyncio.run, _ask(address)).result()
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # its tracebacks: errors are told here
        return Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise EngineError(
            f"The scheduler {address} did not answer within {ANSWER_SECONDS:.0f} s. Start it with `dask scheduler`, "
            "or leave --on out to compute on this machine."
        ) from error


async def _ask(address: str) -> None:
    """Ask the scheduler who it is; a `Client` would wait for ever for one that accepts and says nothing."""
    from distributed.comm.core import connect

    async with asyncio.timeout(ANSWER_SECONDS):
        comm: Any = await connect(address, timeout=ANSWER_SECONDS)
        try:
            await comm.write({"op": "identity", "reply": True})
            await comm.read()
        finally:
            comm.abort()


def _refuse_versions(answers: Mapping[str, object], wanted: Mapping[str, str]) -> None:
    """Refuse workers that answered with other versions, or with an error."""
    for address, versions in answers.items():
        if not isinstance(versions, dict):
            raise EngineError(f"Worker {address} cannot import saddles ({versions}). Install it there.")
        differ = differences(wanted, versions)
        if differ:
            raise EngineError(
                f"Worker {address} has {differ[1]}; this process has {differ[0]}. Install the same versions there, or "
                "use --accept-changes."
            )
