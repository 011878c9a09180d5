"""Bars that say something before the first unit of work is done."""

import io
import time

from rich.console import Console

from saddles.runtime import progress


def _screen(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    return screen


def test_a_bar_shows_before_anything_is_done(monkeypatch):
    screen = _screen(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    one = progress.Bar("linear/figure-1", 10)
    time.sleep(0.3)
    assert "linear/figure-1" in screen.getvalue()
    assert progress.BEFORE in screen.getvalue()
    one.advance(4)
    time.sleep(0.3)
    one.close()
    assert "4/10" in screen.getvalue()


def test_short_work_shows_nothing(monkeypatch):
    screen = _screen(monkeypatch)
    one = progress.Bar("quick", 1)
    one.advance()
    one.close()
    time.sleep(progress.PATIENCE + 0.2)
    assert screen.getvalue() == ""
