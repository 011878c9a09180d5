"""What an engine is: something that takes tasks and gives futures."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from threadpoolctl import threadpool_limits

from saddles.errors import SaddlesError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC")
ONE_THREAD = dict.fromkeys(_THREADS, "1")
"""Variables that make BLAS, torch and XLA (NPROC) use one thread, if set before they are loaded."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Refusal:
    """A worker that must not compute, and why."""

    worker: str
    reason: str


class Task(ABC, Generic[Answer]):
    """Work for one worker; it travels there as a pickle."""

    @property
    @abstractmethod
    def parts(self) -> int:
        """How many results it gives."""

    @property
    def together(self) -> bool:
        """Whether the parts share their time; else each has its own."""
        return False

    @abstractmethod
    def empty(self) -> "Task[Answer]":
        """The same without parts: what it takes to be ready."""

    @abstractmethod
    def compute(self) -> list[Answer] | Refusal:
        """Compute all parts, in the worker."""


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


class Engine(ABC, Generic[Answer]):
    """Computes tasks somewhere.

    A task whose process dies gives a `TaskLostError` in its future; anything worse gives an `EngineError`.
    """

    slots: int
    """How many tasks it computes at a time."""

    @abstractmethod
    def submit(self, task: Task[Answer]) -> "Future[list[Answer]]":
        """Accept a task without waiting for it."""

    def check(self) -> None:
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


@contextmanager
def on_one_thread() -> Iterator[None]:
    """One thread for what is loaded already (BLAS, OpenMP) and for what will be (the environment)."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    with threadpool_limits(1):
        yield


def describe(error: BaseException) -> str:
    """An error in one line: a message of ours as it is, any other with its type."""
    if isinstance(error, SaddlesError):
        return whole_text(str(error))
    return whole_text(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def whole_text(text: str) -> str:
    """Text that can be written and shown: halves of a character, which UTF-8 cannot hold, by their numbers."""
    return text.encode("utf-8", "backslashreplace").decode()
