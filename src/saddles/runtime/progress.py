"""Progress with a rate and an end time, once work takes longer than a moment."""

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from saddles.runtime.displays import Display, State, display_here


class Bar:
    """Shows how far some work is, whether anything is done yet or not."""

    def __init__(self, title: str, total: float, display: Display | None = None) -> None:
        self._title, self._total, self._display = title, total, display
        self._done, self._before, self._note, self._began = 0.0, 0.0, "", time.monotonic()
        self._lock, self._closed = threading.Lock(), threading.Event()
        if display is not None:
            # Notebooks tell by the context under which cell a line belongs.
            here = contextvars.copy_context()
            threading.Thread(target=here.run, args=(self._watch, display), daemon=True).start()

    def say(self, note: str) -> None:
        """Words behind the rate."""
        self._note = note

    def advance(self, amount: float = 1.0) -> None:
        """Count `amount` more of the total as done."""
        self._done += amount

    def skip(self, amount: float) -> None:
        """Count `amount` as done by an earlier run: it says nothing about the pace of this one."""
        self._done, self._before = self._done + amount, self._before + amount

    def reach(self, done: float) -> None:
        """Set how much of the total is done."""
        self._done = done

    def print(self, text: str, otherwise: Callable[[str], None]) -> None:
        """A line above the bar; where no bar is shown, `otherwise` gets it."""
        with self._lock, _to_nobody():
            if self._display is not None and self._display.print(text):
                return
        otherwise(text)

    @property
    def state(self) -> State:
        """How far the work is now."""
        spent = time.monotonic() - self._began
        done = max(self._before, self._done)  # some say less than nothing, such as digits of a gap above 1
        return State(self._title, done, self._total, spent, self._note, self._before)

    def _watch(self, display: Display) -> None:
        wait = display.first
        while not self._closed.wait(wait):
            with self._lock, _to_nobody():
                if not self._closed.is_set():
                    display.show(self.state)
            wait = display.every

    def close(self) -> None:
        """Take it off the screen."""
        self._closed.set()  # before the wait for a terminal that is slow, which a Ctrl-C may end
        with self._lock, _to_nobody():
            if self._display is not None:
                self._display.close()


def _to_nobody() -> contextlib.AbstractContextManager[None]:
    """Where a terminal is gone or stderr is closed: the work goes on."""
    return contextlib.suppress(OSError, ValueError)


_open_bars: list[Bar] = []


@contextmanager
def bar(title: str, total: float) -> Iterator[Bar]:
    """Show progress; inside another bar nothing is shown, so that one bar is seen at a time."""
    shown = Bar(title, total, None if _open_bars else display_here())
    _open_bars.append(shown)
    try:
        yield shown
    finally:
        _open_bars.remove(shown)  # first: one that is left there silences all later ones
        shown.close()
