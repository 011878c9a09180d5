"""Background work of one page: one job at a time, and of those that arrive meanwhile only the last."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 0.3
"""Seconds without an answer after which the page says that it is waiting; a move of a slider takes less."""


class Latest:
    """Runs jobs in a pool and delivers their results in order; a job that is overtaken before it begins is dropped.

    Args:
        pool: where jobs run; None is the event loop's own threads.
        late: told True when `PATIENCE` seconds pass without an answer, again when they pass after one that was
            overtaken, and False once the last job has been answered.
    """

    def __init__(self, pool: Executor | None = None, late: Callable[[bool], None] = lambda on: None) -> None:
        self._pool, self._busy = pool, False
        self._next: Callable[[], Awaitable[None]] | None = None
        self.dropped = 0
        self._late, self._told = late, False
        self._clock: asyncio.TimerHandle | None = None

    async def ask(
        self,
        job: Callable[[], T],
        deliver: Callable[[T], None],
        fail: Callable[[Exception], None],
        quiet: bool = False,
    ) -> None:
        """Run a job now, or as the next one, and hand its result to `deliver`, or what went wrong to `fail`.

        A quiet one, which nobody has asked for, is not told to be late.
        """
        if self._next is not None:
            self.dropped += 1
        self._next = partial(self._run, job, deliver, fail)
        if not quiet and self._clock is None:
            self._watch()
        if self._busy:
            return
        self._busy = True
        try:
            while self._next is not None:
                work, self._next = self._next, None
                await work()
                if self._clock is not None and self._next is not None:
                    self._watch()
        finally:
            self._busy = False
            self._rest()

    def _watch(self) -> None:
        """Wait for an answer, from now on."""
        if self._clock is not None:
            self._clock.cancel()
        self._clock = asyncio.get_running_loop().call_later(PATIENCE, self._tell)

    def _tell(self) -> None:
        self._told = True
        self._late(True)

    def _rest(self) -> None:
        """Nothing is left to wait for."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if self._told:
            self._told = False
            self._late(False)

    async def _run(self, job: Callable[[], T], deliver: Callable[[T], None], fail: Callable[[Exception], None]) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, job)
        except Exception as error:
            fail(error)
        else:
            deliver(result)
