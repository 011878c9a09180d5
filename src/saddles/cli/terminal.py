"""Where commands print, and what they print when they are interrupted."""

import _thread
import contextlib
import re
import shlex
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import saddles
from saddles.runtime.packages import extra_for, not_installed


class _Terminal(Console):
    """Shows text of files as text: what would move the cursor or ask the terminal for something is written out."""

    @property
    def file(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  (scripts put all kinds of objects there)
        """stdout or stderr as it is now: while a bar is shown, what puts lines above it, which rich goes around."""
        return (sys.stderr if self.stderr else sys.stdout) or super().file

    def render_str(self, text: str, **options: Any) -> Text:
        """Text as rich draws it, of a string or of a cell."""
        return super().render_str(CONTROL.sub(lambda hit: repr(hit[0])[1:-1], text), **options)


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, and those that turn the direction of what follows."""

LOADED = time.perf_counter()

out = _Terminal(emoji=False)  # or c=a:b:3, as a user may write it, would show an emoji
err = _Terminal(emoji=False, stderr=True)


def say(text: str) -> None:
    """A line of results, as it is."""
    out.print(escape(text), highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line of progress, which is not part of the results."""
    err.print(escape(text), highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, length, longest in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < longest:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def since_start() -> float:
    """Seconds for which this command has been waited for, but for the tenth or so in which Python starts."""
    return time.perf_counter() - LOADED


def complain(text: str) -> None:
    """A line about what went wrong."""
    err.print(f"[red]saddles:[/red] {escape(text)}", highlight=False, soft_wrap=True)


def shortened(text: str, most: int = 120) -> str:
    """Text without its middle, where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def report_bug(error: BaseException) -> None:
    """Say that something unforeseen is our mistake, and put what a developer needs into a file."""
    words = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="saddles-bug-", suffix=".txt", encoding="utf-8", errors="backslashreplace", delete=False
        ) as file:
            file.write(f"saddles {saddles.__version__}, Python {sys.version}\n\n{words}")
    except OSError:  # no room even for this
        note(words)
        complain("This is a bug in saddles. Please report it with the lines above.")
        return
    first = next(iter(str(error).splitlines()), "")
    complain(
        f"This is a bug in saddles ({type(error).__name__}: {shortened(first)}). Please report it with {file.name}."
    )


def lacking(error: ModuleNotFoundError) -> int:
    """Say what to install, where an extra of saddles brings it; returns the exit code."""
    if (extra := extra_for(error)) is None:
        report_bug(error)
        return 3
    complain(str(not_installed(error, extra)))
    return 2


AGAIN_S = 0.05
"""Seconds after which an interrupt that was lost is repeated: what swallowed it has then returned."""


@contextlib.contextmanager
def repeated_interrupts() -> Iterator[None]:
    """Repeat a Ctrl-C that arrives in a destructor or a callback of the garbage collector, where Python drops it."""
    before = sys.unraisablehook

    def hook(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is KeyboardInterrupt:
            timer = threading.Timer(AGAIN_S, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show what saddles warns of as a line; Python would add the line of code that warns."""
    before = warnings.showwarning
    home = Path(saddles.__file__).parent

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if Path(filename).is_relative_to(home):
            note(str(message))
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def plain_table(*columns: str, right: Container[str] = ()) -> Table:
    """A table without lines; the columns named in `right` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def whole_column(table: Table, place: int, cells: Iterable[str]) -> None:
    """Never shorten or break what stands in a column: it is there to be copied."""
    table.columns[place].no_wrap = True
    table.columns[place].min_width = max(map(len, cells), default=0)


def as_words(**options: object) -> list[str]:
    """Options as one types them, without those that were not given."""
    given = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in options.items() if value}
    return [word for name, value in given.items() for word in (f"--{name}", value)]


def interrupted(kept: str, words: list[str]) -> typer.Exit:
    """Say what is kept, and the command that resumes."""
    note(f"\nInterrupted; {kept}. Resume with:\n  {shlex.join(['saddles', *words])}")
    return typer.Exit(130)
