"""Views as data for a page without a server: a first picture, and what changes from one to the next.

A shot is what a live page would draw at one instant: a sentence and figures. A scene is a shot and its changes over the
run. Changes are pairs of a path and a value, [["figures", 0, "layout", "title"], …].
"""

import base64
import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from saddles.explorer.draw import Json
from saddles.explorer.page import Page, Panel, spread
from saddles.explorer.view import View

FRAMES = 33
"""Instants of a scene."""
DIGITS = 4
"""Significant digits of a number: a screen shows fewer."""
SHADES = 100
"""Steps of a map's colours on either side of 0."""

Change = list[object]
"""A path and the new value there."""


def shot(panels: Iterable[Panel], said: str) -> Json:
    """One instant."""
    figures = [
        {"title": one.title[:1].upper() + one.title[1:], "words": one.words, "data": one.data, "layout": one.layout,
         "wide": one.wide} | ({"map": True} if one.map else {})
        for one in panels
    ]  # fmt: skip
    return {"said": said, "figures": figures}


def scene(
    page: Page, view: View, *, extra: Iterable[Panel] = (), frames: int = FRAMES, only: int | None = None
) -> Json:
    """A run: its first shot, the changes to the others, and where its marks are, as shares of the run.

    Args:
        extra: panels that do not change with the instant.
        only: leave out all panels but this one.
    """
    page.check(view)
    results = page.compute(view, False)
    name = page.moving or ""
    shots = []
    for instant in np.linspace(0.0, 1.0, frames).round(4).tolist() if name else [None]:
        now = replace(view, **{name: instant}) if name else view
        panels = spread(page.panels(now, results))
        shots.append(shot(panels if only is None else panels[only : only + 1], page.say(now, results)))
        shots[-1]["figures"] += shot(extra, "")["figures"]
    marks = page.marks(view, results) if page.marks is not None else []
    return {
        "first": short(shots[0]),
        "frames": [_short_changes(shots[0], one) for one in shots],
        "marks": [round(mark * (frames - 1)) for mark in marks],
        "code": page.code(view),
    }


def changes(old: Json, new: Json) -> list[Change]:
    """The least set of values that makes `new` of `old`; a list of numbers is one value."""
    found: list[Change] = []

    def walk(before: object, after: object, path: list[str | int]) -> None:
        if before == after:
            return
        if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
            for key in before:
                walk(before[key], after[key], [*path, key])
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and _nested(before):
            for place, pair in enumerate(zip(before, after, strict=True)):
                walk(*pair, [*path, place])
        else:
            found.append([path, after])

    walk(old, new, [])
    return found


def _nested(values: list[object]) -> bool:
    """Whether a list holds objects, not numbers or rows of numbers."""
    return any(isinstance(value, dict) for value in values)


def _short_changes(old: Json, new: Json) -> list[Change]:
    """Changes in short numbers; what is not changed, most of a run's pictures, need not be made short again."""
    made: list[Change] = []
    for path, value in changes(old, new):
        assert isinstance(path, list)
        holder: Any = new
        for key in path[:-1]:
            holder = holder[key]
        made.append([path, _shades(holder)["z"] if path[-1] == "z" and _shades(holder) else short(value)])
    return made


def short(value: Any) -> Any:
    """The same with numbers of few digits."""
    if isinstance(value, dict):
        return {key: short(part) for key, part in value.items()} | _shades(value)
    if isinstance(value, list | tuple):
        return [short(part) for part in value]
    if isinstance(value, float | np.floating):
        return _number(float(value))
    return value.item() if isinstance(value, np.generic) else value


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _shades(trace: Json) -> Json:
    """The numbers of a map in steps that its colours can tell apart."""
    if "z" not in trace or trace.get("zmax") is None:
        return {}
    step = 10.0 ** math.floor(math.log10(trace["zmax"] / SHADES)) if trace["zmax"] > 0 else 1.0
    rounded = [[None if x is None else _number(round(x / step) * step) for x in row] for row in trace["z"]]
    return {"z": rounded}


def packed(facts: object) -> str:
    """JSON, compressed, as text that stands inside a page."""
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return compressed(text)


def compressed(text: str) -> str:
    """A text that stands compressed inside a page."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")
