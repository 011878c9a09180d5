"""What an engine is: something that takes tasks and gives futures."""

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future

from saddles.errors import SaddlesError
from saddles.sweeps.cells import Outcome, Task


class WorkerLostError(Exception):
    """The process that computed a task is gone, and its cells with it."""


class EngineError(SaddlesError):
    """The engine cannot go on."""


class Engine(ABC):
    """Computes tasks somewhere. A lost process is a `WorkerLostError` of the future; a worse one an `EngineError`."""

    slots: int
    """How many tasks it computes at a time."""

    @abstractmethod
    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Take a task; do not wait."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once and leave nothing behind."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
