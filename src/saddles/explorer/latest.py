"""Background work of one page: one job at a time, and of those that arrive meanwhile only the last."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Latest:
    """Runs jobs in a pool and delivers their results in order; a job that is overtaken before it begins is dropped.

    Args:
        pool: where jobs run; None is the event loop's own threads.
    """

    def __init__(self, pool: Executor | None = None) -> None:
        self._pool, self._busy = pool, False
        self._next: Callable[[], Awaitable[None]] | None = None
        self.dropped = 0

    async def ask(self, job: Callable[[], T], deliver: Callable[[T], None], fail: Callable[[Exception], None]) -> None:
        """Run a job now, or as the next one, and hand its result to `deliver`, or what went wrong to `fail`."""
        if self._next is not None:
            self.dropped += 1
        self._next = partial(self._run, job, deliver, fail)
        if self._busy:
            return
        self._busy = True
        try:
            while self._next is not None:
                work, self._next = self._next, None
                await work()
        finally:
            self._busy = False

    async def _run(self, job: Callable[[], T], deliver: Callable[[T], None], fail: Callable[[Exception], None]) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, job)
        except Exception as error:
            fail(error)
        else:
            deliver(result)
