"""Progress bars with a rate and an end time, shown once work takes half a second."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PATIENCE = 0.5
"""Seconds of silence before a bar appears: shorter work needs none."""
BEFORE = "starting …"
"""What a bar says before the first unit of work is done."""


class Bar:
    """A bar that appears after `PATIENCE` seconds, whether anything is done by then or not."""

    def __init__(self, title: str, total: float, silent: bool = False) -> None:
        self._title, self._total, self._silent = title, total, silent
        self._done, self._began = 0.0, time.monotonic()
        self._progress: Progress | None = None
        self._task = None
        self._note = ""
        self._closed = False
        self._lock = threading.Lock()
        self._timer = None if silent else threading.Timer(PATIENCE, self._open)
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    @property
    def silent(self) -> bool:
        """True where it is never shown: inside another bar, or where nobody watches."""
        return self._silent

    def say(self, note: str) -> None:
        """Words behind the rate, shown with the next advance."""
        self._note = note

    def advance(self, amount: float = 1.0) -> None:
        """Count `amount` more of the total as done."""
        self.reach(self._done + amount)

    def reach(self, done: float) -> None:
        """Set how much of the total is done."""
        self._done = done
        with self._lock:
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=min(done, self._total), rate=self._rate())

    def print(self, text: str, otherwise: Callable[[str], None]) -> None:
        """A line above the bar; where no bar is shown, `otherwise` gets it."""
        with self._lock:
            if self._progress is not None:
                self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
                return
        otherwise(text)

    def _rate(self) -> str:
        if not self._done:
            return BEFORE
        spent = time.monotonic() - self._began
        rate = f"{self._done / spent:.3g}/s" if spent > 0 else ""
        return f"{rate}, {self._note}" if self._note else rate

    def _open(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TextColumn("ends in"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(self._title, total=self._total, rate=self._rate())
            self._progress.update(self._task, completed=min(self._done, self._total))
            self._progress.start()

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None


_open_bars: list[Bar] = []


@contextmanager
def bar(title: str, total: float) -> Iterator[Bar]:
    """Open a progress bar; inside another one it stays silent, so that one bar is seen at a time."""
    shown = Bar(title, total, silent=bool(_open_bars) or not sys.stderr.isatty())
    _open_bars.append(shown)
    try:
        yield shown
    finally:
        shown.close()
        _open_bars.remove(shown)
