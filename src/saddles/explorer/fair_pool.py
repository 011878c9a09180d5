"""Computations of all open pages in one pool: those that are expected to be quick go first, and none waits for ever."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 5.0
"""How many times its own duration a computation may wait for quicker ones that were asked for later."""


class FairPool:
    """A pool of threads; `share` gives each open page its part of it.

    The next computation is the one with the earliest deadline: when it was asked for, plus `PATIENCE` times what the
    page's last one took. So one visitor with heavy settings does not hold up the others.

    Args:
        workers: computations that run side by side.
    """

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="explorer")
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self.seconds: dict[str, float] = {}
        """Kind of page -> what its last computation took, for pages that have not computed yet."""

    def share(self, kind: str) -> "Share":
        """The part of one open page."""
        return Share(self, kind)

    def put(self, deadline: float, work: Callable[[], None]) -> None:
        """Queue work."""
        with self._lock:
            heapq.heappush(self._waiting, (deadline, next(self._numbers), work))
        self._threads.submit(self._next)

    def _next(self) -> None:
        with self._lock:
            _, _, work = heapq.heappop(self._waiting)
        work()

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Share(Executor):
    """One page's part of a `FairPool`."""

    def __init__(self, pool: FairPool, kind: str) -> None:
        self._pool, self._kind = pool, kind
        self._seconds: float | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Queue a computation."""
        answer: Future[T] = Future()
        expected = self._seconds if self._seconds is not None else self._pool.seconds.get(self._kind, 0.0)
        self._pool.put(time.monotonic() + PATIENCE * expected, partial(self._run, answer, partial(fn, *args, **kwargs)))
        return answer

    def _run(self, answer: "Future[T]", job: Callable[[], T]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        began = time.monotonic()
        try:
            answer.set_result(job())
        except BaseException as error:
            answer.set_exception(error)
        self._seconds = self._pool.seconds[self._kind] = time.monotonic() - began
