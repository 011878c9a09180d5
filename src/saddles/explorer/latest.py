"""Background work of one page: one job at a time, and of those that come meanwhile only the last."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

Deliver = Callable[[Any, BaseException | None], Awaitable[None] | None]


class Latest:
    """Runs jobs in a pool and delivers their results in order; a job that is overtaken before it begins is dropped.

    Args:
        pool: where jobs run; None is the event loop's own threads.
    """

    def __init__(self, pool: Executor | None = None) -> None:
        self._pool, self._next, self._busy = pool, None, False
        self.done = 0
        self.dropped = 0

    async def ask(self, job: Callable[[], Any], deliver: Deliver) -> None:
        """Run a job now, or as the next one, and hand its result (or what went wrong) to `deliver`."""
        if self._next is not None:
            self.dropped += 1
        self._next = (job, deliver)
        if self._busy:
            return
        self._busy = True
        try:
            while self._next is not None:
                (job, deliver), self._next = self._next, None
                await self._one(job, deliver)
        finally:
            self._busy = False

    async def _one(self, job: Callable[[], Any], deliver: Deliver) -> None:
        result, trouble = None, None
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, job)
        except Exception as error:
            trouble = error
        self.done += 1
        told = deliver(result, trouble)
        if told is not None:
            await told
