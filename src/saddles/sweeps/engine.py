"""What an engine is: something that takes tasks and gives futures."""

import math
import os
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass

from saddles.errors import SaddlesError
from saddles.sweeps.cells import Outcome, Task


class TaskLostError(Exception):
    """The process that computed a task has died, and the task's results with it; the text says how it died."""


class TaskOverrunError(TaskLostError):
    """The task took longer than it may, and would again."""


class EngineError(SaddlesError):
    """The engine cannot continue."""


@dataclass(frozen=True)
class Limits:
    """What a cell may take.

    Args:
        timeout: seconds, with the compilation of its programs; None is no limit.
        memory: gigabytes (10⁹ bytes) of its process; None is no limit.
    """

    timeout: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        for name, unit in (("timeout", "seconds"), ("memory", "gigabytes")):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SaddlesError.must_be(name, f"a positive number of {unit}", value)


class Engine(ABC):
    """Computes tasks somewhere.

    A task whose process dies gives a `TaskLostError` in its future; anything worse gives an `EngineError`.
    """

    slots: int
    """How many tasks it computes at a time."""

    @abstractmethod
    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Accept a task without waiting for it."""

    def check(self) -> None:  # noqa: B027, most engines have nobody else
        """Look whether anybody still computes; called now and then while tasks are under way.

        Raises:
            EngineError: nobody does.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop at once and leave no process behind."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
