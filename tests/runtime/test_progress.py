"""Progress on terminals, in notebooks and in logs."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient
from rich.console import Console

from saddles.runtime import displays, progress
from saddles.runtime.displays import BEFORE, Log, State, Terminal, display_here
from saddles.runtime.workers import Worker


@pytest.fixture
def screen(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(displays, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    monkeypatch.setattr(displays, "_on_screen", lambda: True)
    return screen


def _shown(screen, text):
    """Whether a text comes to be on the screen."""
    end = time.monotonic() + 10
    while text not in screen.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in screen.getvalue()


def test_a_bar_shows_before_anything_is_done(screen, monkeypatch):
    monkeypatch.setattr(Terminal, "first", 0.01)
    one = progress.Bar("linear/figure-1", 10, Terminal())
    assert _shown(screen, "linear/figure-1")
    assert _shown(screen, BEFORE)
    one.advance(4)
    assert _shown(screen, "4/10")
    one.print("a line", pytest.fail)
    assert _shown(screen, "a line")
    one.close()


def test_the_end_of_slow_work_is_told(monkeypatch):
    """Ten units of 100 seconds each; after three and a half the end is 700 seconds from the third."""
    screen, now = io.StringIO(), [0.0]
    console = Console(file=screen, force_terminal=True, width=120, get_time=lambda: now[0])
    monkeypatch.setattr(displays, "Console", lambda stderr: console)
    terminal = Terminal()
    for now[0] in range(0, 351, 10):
        terminal.show(State("slow", now[0] // 100, 10, now[0], ""))
    terminal.close()
    assert "0:11:40" in screen.getvalue()


def test_what_was_skipped_says_nothing_about_the_end(monkeypatch):
    """900 of 1000 units were there and are found in two goes; one a second is computed, from the third second on."""
    screen, now = io.StringIO(), [0.0]
    console = Console(file=screen, force_terminal=True, width=120, get_time=lambda: now[0])
    monkeypatch.setattr(displays, "Console", lambda stderr: console)
    terminal = Terminal()
    for now[0] in range(31):
        before = (now[0] >= 1) * 300 + (now[0] >= 2) * 600
        terminal.show(State("found", before + max(0, now[0] - 2), 1000, now[0], "", before))
    assert re.findall(r"ends in (\S+)", screen.getvalue())[-1] == "0:01:17"  # 72 units at 28 in 30 seconds
    terminal.close()


def test_an_interrupt_while_a_bar_closes_leaves_nothing_behind():
    class Slow(Log):
        def close(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), progress.bar("work", 1) as shown:
        shown._display = Slow()
    assert not progress._open_bars
    with progress.bar("more work", 1) as later:
        assert later._display is not None


def test_short_work_shows_nothing(screen):
    one = progress.Bar("quick", 1, Terminal())
    one.advance()
    said = []
    one.print("a line", said.append)
    one.close()
    time.sleep(Terminal.first + 0.2)
    assert (screen.getvalue(), said) == ("", ["a line"])


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (State("a", 0.0, 10, 5.0, ""), f"a: 0/10, {BEFORE}"),
        (State("a", 4.0, 10, 8.0, "1 failed"), "a: 4/10, 0.5/s, 1 failed, ends in 0:00:12"),
        (State("a", 1500.0, 90000, 3600.0, ""), "a: 1,500/90,000, 0.417/s, ends in 59:00:00"),
        (State("flow", 0.25, 1.0, 30.0, ""), "flow: 25 %, ends in 0:01:30"),
        (State("flow", 2.0, 1.0, 30.0, "late"), "flow: 100 %, late, ends in 0:00:00"),
        (State("a", 500.0, 1000, 10.0, "", before=500.0), f"a: 500/1,000, {BEFORE}"),
        (State("a", 600.0, 1000, 10.0, "", before=500.0), "a: 600/1,000, 10/s, ends in 0:00:40"),
    ],
)
def test_a_line_tells_what_is_done_and_when_it_ends(state, line):
    assert state.line == line


def test_what_an_earlier_run_has_done_says_nothing_about_the_pace():
    one = progress.Bar("training", 1000)
    one.skip(500)
    assert one.state.line == f"training: 500/1,000, {BEFORE}"
    one.reach(600)
    assert (one.state.done, one.state.before) == (600, 500)


@pytest.mark.parametrize("done", [-2.0, -float("inf"), float("nan")])
def test_less_than_nothing_is_nothing(done):
    """Digits of a gap that is above 1, or not known yet."""
    one = progress.Bar("digits of the gap", 9.0)
    one.reach(done)
    assert one.state.line == f"digits of the gap: 0 %, {BEFORE}"


def test_a_log_gets_a_line_a_minute(capsys, monkeypatch):
    monkeypatch.setattr(Log, "_last", time.monotonic())
    log = Log()
    log.show(State("linear/figure-1", 3.0, 10, 9.0, ""))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(Log, "_last", time.monotonic() - Log.minute)
    log.show(State("linear/figure-1", 3.0, 10, 9.0, ""))
    log.show(State("linear/figure-1", 4.0, 10, 9.1, ""))
    assert capsys.readouterr().err == "linear/figure-1: 3/10, 0.333/s, ends in 0:00:21\n"


def test_a_log_that_nobody_reads_stops_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setattr(Log, "_last", time.monotonic() - Log.minute)
    Log().show(State("linear/figure-1", 3.0, 10, 9.0, ""))
    assert display_here() is None
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=len))  # as of scripts that write a log of their own
    assert isinstance(display_here(), Log)


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({}, Log),
        ({"RANK": "0", "WORLD_SIZE": "2"}, Log),
        ({"RANK": "1"}, Log),
        ({"RANK": "1", "WORLD_SIZE": "2"}, type(None)),
        ({"SADDLES_PROGRESS": "off"}, type(None)),
    ],
)
def test_one_process_of_several_shows_progress(monkeypatch, environment, kind):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(display_here()) is kind


def _display_of_a_worker(_):
    return lambda _: type(display_here()).__name__


def test_workers_show_nothing():
    worker = Worker(_display_of_a_worker, None)
    assert worker.call(None) == "NoneType"
    worker.close()


def test_inside_another_bar_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(progress, "display_here", pytest.fail)
    monkeypatch.setattr(progress, "_open_bars", [progress.Bar("outer", 1)])
    with progress.bar("inner", 1) as inner:
        inner.advance()
        assert len(progress._open_bars) == 2
    assert inner.state.done == 1
    assert len(progress._open_bars) == 1


def test_a_notebook_shows_one_line_that_goes(tmp_path):
    cell = (
        "import time\nfrom saddles.runtime.displays import Notebook\nfrom saddles.runtime.progress import bar\n"
        "Notebook.first = Notebook.every = 0.01\nseen = []\nshow = Notebook.show\n"
        "Notebook.show = lambda self, state: (seen.append(state.line), show(self, state))\n"
        "with bar('flow', 4) as progress:\n    while len(seen) < 3:\n        time.sleep(0.01)\n"
        "    progress.advance(2)\n    while '2/4' not in seen[-1]:\n        time.sleep(0.01)\n"
        "print(seen[-1])"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    line, printed = book.cells[0].outputs
    assert (line.output_type, line.data) == ("display_data", {"text/plain": ""})
    assert printed.text.startswith("flow: 2/4, ")


def test_a_terminal_is_told_from_a_log():
    words = "from saddles.runtime.displays import display_here as d; print(type(d()).__name__)"
    ours, theirs = os.openpty()
    for where, kind in ((subprocess.PIPE, Log), (theirs, Terminal)):
        ran = subprocess.run([sys.executable, "-c", words], stdout=subprocess.PIPE, stderr=where, text=True, check=True)
        assert ran.stdout == f"{kind.__name__}\n"
    os.close(ours)
    os.close(theirs)


WORK = """
import signal, sys, time
from saddles.runtime.displays import Terminal
from saddles.runtime.progress import bar

signal.signal(signal.SIGHUP, signal.SIG_IGN)
Terminal.first = Terminal.every = 0.01
with bar("work", 10) as progress:
    sys.stdin.read(1)
    print("said")
    progress.print("told", print)
    time.sleep(0.1)
print("done")
"""

NOTES = """
import sys, time
from saddles.cli.terminal import note
from saddles.runtime.displays import Terminal
from saddles.runtime.progress import bar

Terminal.first = Terminal.every = 0.01
with bar("work", 10) as progress:
    sys.stdin.read(1)
    progress.print("a line", note)
    note("a note")
    time.sleep(0.1)
"""


@pytest.mark.parametrize("stdout", ["terminal", "file"])
def test_notes_of_commands_stand_on_lines_of_their_own_above_the_bar(stdout):
    ours, theirs = os.openpty()
    where = theirs if stdout == "terminal" else subprocess.DEVNULL
    words = [sys.executable, "-c", NOTES]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=where, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"work" not in shown:
            shown += os.read(ours, 1000)
        process.communicate(b"x", timeout=60)
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(ours, 1000):
            shown += chunk
    os.close(ours)
    for line in (b"a line", b"a note"):
        assert re.search(rb"(^|\n|\r|\x1b\[2K)" + line + rb"\r\n", shown)


@pytest.mark.parametrize("gone", [False, True])
def test_a_bar_takes_nothing_from_a_file_and_may_lose_its_terminal(gone):
    """stdout is a pipe; the terminal shows the bar, or is closed while it does."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-c", WORK]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=theirs, text=True, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        while b"work" not in shown:
            shown += os.read(ours, 1000)
        if gone:
            os.close(ours)
        assert process.communicate("x", timeout=60)[0] == "said\ntold\ndone\n"
    assert process.returncode == 0
    if not gone:
        os.close(ours)
