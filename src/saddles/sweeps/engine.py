"""What an engine is: something that takes tasks and gives futures."""

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future

from saddles.errors import SaddlesError
from saddles.sweeps.cells import Outcome, Task


class TaskLostError(Exception):
    """The process that computed a task has died, and the task's results with it; the text says how it died."""


class EngineError(SaddlesError):
    """The engine cannot continue."""


class Engine(ABC):
    """Computes tasks somewhere.

    A task whose process dies gives a `TaskLostError` in its future; anything worse gives an `EngineError`.
    """

    slots: int
    """How many tasks it computes at a time."""

    @abstractmethod
    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Accept a task without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once and leave no process behind."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
