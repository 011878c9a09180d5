"""Where progress is shown: a terminal, a notebook, or the log of a batch system."""

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

BEFORE = "starting …"
"""What is said before the first unit of work is done."""


@dataclass(frozen=True)
class State:
    """How far some work is.

    Args:
        total: a whole number counts things ("3/40, 1.2/s"); any other is an amount of work, of which a share is told.
        seconds: since it began.
        note: words behind the rate.
        before: what an earlier run had done already; it says nothing about the pace.
    """

    title: str
    done: float
    total: float
    seconds: float
    note: str
    before: float = 0.0

    @property
    def amount(self) -> str:
        """How much is done, in words."""
        if isinstance(self.total, int):
            return f"{int(self.done):,}/{self.total:,}"
        return f"{100 * min(self.done / self.total, 1.0) if self.total else 100:.0f} %"

    @property
    def pace(self) -> str:
        """The rate of what can be counted, and the note."""
        mine = self.done - self.before
        if mine <= 0:
            return BEFORE
        rate = f"{mine / self.seconds:.3g}/s" if isinstance(self.total, int) and self.seconds else ""
        return ", ".join(part for part in (rate, self.note) if part)

    @property
    def ends(self) -> str:
        """The time that is left at the pace so far."""
        left, mine = self.total - min(self.done, self.total), self.done - self.before
        return f"ends in {_clock(left / mine * self.seconds)}" if mine > 0 else ""

    @property
    def line(self) -> str:
        """All of it in one line, with the time that is left."""
        return ", ".join(part for part in (f"{self.title}: {self.amount}", self.pace, self.ends) if part)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@runtime_checkable
class Display(Protocol):
    """Shows one state after another: the first after `first` seconds, the next ones each `every` seconds."""

    first: float
    every: float

    def show(self, state: State) -> None:
        """Show how far the work is."""

    def print(self, text: str) -> bool:
        """Write a line beside it; False where that is left to the caller."""
        ...

    def close(self) -> None:
        """Take it away."""


class Terminal:
    """A bar at the foot of a terminal, which goes when the work is done."""

    first, every = 0.5, 0.1

    def __init__(self) -> None:
        self._shown: tuple[Progress, TaskID] | None = None

    def show(self, state: State) -> None:
        """Draw the bar."""
        if self._shown is None:
            self._shown = self._start(state)
        progress, task = self._shown
        done = min(state.done, state.total)
        progress.update(task, completed=done, amount=state.amount, pace=state.pace, ends=state.ends, refresh=True)

    @staticmethod
    def _start(state: State) -> tuple[Progress, TaskID]:
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TextColumn("{task.fields[pace]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[ends]}"),  # rich's own estimate takes what was skipped for work
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=_on_screen(),
        )
        task = progress.add_task(state.title, total=state.total, amount="", pace="", ends="")
        progress.start()
        return progress, task

    def print(self, text: str) -> bool:
        """Write a line above the bar; what stdout takes to a file is left to the caller."""
        if self._shown is None or not _on_screen():
            return False
        self._shown[0].console.print(text, markup=False, highlight=False, soft_wrap=True)
        return True

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None


def _on_screen() -> bool:
    """Whether stdout is a terminal, whose lines a bar must not mix with; in a file or a pipe they belong there."""
    return _is_terminal(sys.stdout)


def _is_terminal(stream: object) -> bool:
    """Also of objects with `write` alone, which scripts put in the place of Python's streams."""
    ask = getattr(stream, "isatty", None)
    return ask is not None and not getattr(stream, "closed", False) and bool(ask())


class Notebook:
    """A line below the cell of a notebook, written anew in its place, and empty in the end."""

    first, every = 2.0, 0.5

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, state: State) -> None:
        """Write the line."""
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self._line(state.line), raw=True, display_id=True)
        else:
            self._handle.update(self._line(state.line), raw=True)

    @staticmethod
    def _line(text: str) -> dict[str, str]:
        return {"text/plain": text}

    def print(self, text: str) -> bool:
        """Lines of a notebook are printed as ever."""
        return False

    def close(self) -> None:
        """Empty the line."""
        if self._handle is not None:
            self._handle.update(self._line(""), raw=True)


class Log:
    """A line a minute on stderr, whichever bar is open by then."""

    first, every = 1.0, 1.0
    minute = 60.0
    _last = time.monotonic()

    def show(self, state: State) -> None:
        """Write a line where the last one is a minute old."""
        if time.monotonic() - Log._last < self.minute:
            return
        Log._last = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more: the work goes on
            print(state.line, file=sys.stderr, flush=True)

    def print(self, text: str) -> bool:
        """Lines of a log are printed as ever."""
        return False

    def close(self) -> None:
        """What is written stays."""


def display_here() -> Display | None:
    """What this process shows progress on; None in workers, which others speak for, and where there is no stderr."""
    rank = os.environ.get("RANK", "0") if "WORLD_SIZE" in os.environ else "0"
    gone = sys.stderr is None or getattr(sys.stderr, "closed", False)
    if gone or rank != "0" or os.environ.get("SADDLES_PROGRESS") == "off":
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        return Notebook()
    return Terminal() if _is_terminal(sys.stderr) else Log()
