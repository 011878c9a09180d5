"""A story in five steps for each room, from `stories.toml`, for the live rooms and the static site alike."""

import tomllib
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from saddles.explorer.view import Value

PLACE = Path(__file__).with_name("stories.toml")


@dataclass(frozen=True)
class Step:
    """One step: what is set, what to do, what to notice, and why."""

    title: str
    settings: dict[str, Value]
    play: bool
    do: str
    notice: str
    why: str
    equation: str
    """LaTeX."""


@dataclass(frozen=True)
class Room:
    """What the front page says of a room, and where to read on."""

    sentence: str
    paper: str
    address: str
    docs: str


@cache
def _read() -> dict[str, dict]:
    return tomllib.loads(PLACE.read_text("utf-8"))


@cache
def rooms() -> dict[str, Room]:
    """The rooms that have a story."""
    return {
        name: Room(*(table[key] for key in ("sentence", "paper", "address", "docs"))) for name, table in _read().items()
    }


@cache
def stories() -> dict[str, tuple[Step, ...]]:
    """The steps of each room."""
    return {
        name: tuple(
            Step(
                one["title"], one["set"], one.get("play", False), one["do"], one["notice"], one["why"], one["equation"]
            )
            for one in table["step"]
        )
        for name, table in _read().items()
    }


def story_html(story: tuple[Step, ...], name: str = "", docs: str = "") -> str:
    """A story as HTML; `saddles.step` in the page's script opens its steps."""
    buttons = "".join(
        f'<button type="button" class="quiet" data-go="{k}" onclick="saddles.step({k})" '
        f'aria-label="step {k + 1}: {escape(step.title, quote=True)}">{k + 1}</button>'
        for k, step in enumerate(story)
    )
    links = _links(name, docs)
    steps = "".join(_step(k, step, len(story), links) for k, step in enumerate(story))
    begin = '<button type="button" class="quiet begin" onclick="saddles.step(0)">▶ Start the story</button>'
    return f'<section class="story" aria-label="story"><div class="steps">{begin}{buttons}</div>{steps}</section>'


def _links(name: str, docs: str) -> str:
    if not name:
        return ""
    room = rooms()[name]
    page = (
        f'<a href="{escape(docs + room.docs, quote=True)}.html">documentation</a>' if docs else f"docs/{room.docs}.md"
    )
    return (
        f'<p class="soft">Read on: <a href="{escape(room.address, quote=True)}">{escape(room.paper)}</a> · {page}</p>'
    )


def _step(k: int, step: Step, count: int, links: str) -> str:
    from docutils.utils.math.latex2mathml import tex2mathml  # NiceGUI brings it

    after = (
        f'<button type="button" class="quiet" onclick="saddles.step({k + 1})">next ▶</button>'
        if k + 1 < count
        else links
    )
    parts = "".join(
        f"<p><b>{word}</b> {escape(text)}</p>"
        for word, text in (("Do.", step.do), ("Notice.", step.notice), ("Why.", step.why))
    )
    equation = f'<div class="equation">{tex2mathml(step.equation, as_block=True)}</div>'
    return f'<article data-step="{k}" hidden><h2>{k + 1}. {escape(step.title)}</h2>{parts}{equation}{after}</article>'
