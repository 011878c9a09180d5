"""The explorer as plain files: rooms computed beforehand, for any static host or a folder on a disk.

A page holds its data, since one that was opened from a file may not fetch any, and shares one plotting library with the
others. The front page is the live server's, too; its miniatures are kept in miniatures.json, so that it moves at once.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from html import escape
from importlib.util import find_spec
from pathlib import Path

from saddles.errors import SaddlesError
from saddles.explorer import phase_map
from saddles.explorer.draw import Json
from saddles.explorer.frames import changes, compressed, packed, scene
from saddles.explorer.grids import GRIDS, Grid
from saddles.explorer.page import Page, Panel
from saddles.explorer.pages import concepts, diagonal, incontext, linear, margin, networks
from saddles.explorer.stories import Room, rooms, stories, story_html
from saddles.explorer.style import CSS, SITE
from saddles.explorer.view import Setting, Value, View, settings
from saddles.runtime.files import explained, new_folder
from saddles.runtime.progress import bar

PAGES: tuple[Page, ...] = (linear.PAGE, diagonal.PAGE, concepts.PAGE, margin.PAGE, incontext.PAGE, networks.PAGE)
"""The rooms that compute, in the order of the menu."""
HEIGHT = 170
"""Of a miniature, in pixels."""
KEPT = Path(__file__).parent / "miniatures.json"
Href = Callable[[str], str]
"""The address of a room, or of the front page, whose name is empty."""


def export(
    folder: str | os.PathLike[str], *, docs: str = "", say: Callable[[str], None] = print, pages: Sequence[Page] = PAGES
) -> Path:
    """Write the explorer as a static site: open index.html in a browser, or copy the folder to any host.

    Args:
        folder: to write; it must not exist or be empty.
        docs: address of the documentation as seen from the site, such as "../"; empty names its pages only.
        say: gets one line for each room.
        pages: the rooms to write.
    """
    place = Path(folder)
    counts = {page.name: len(list(GRIDS[page.name].views(page))) for page in pages}
    total = sum(counts.values())
    with explained(place), new_folder(place) as draft, bar("explorer, views", total) as shown:
        (draft / "plotly.js").write_text(library(), "utf-8")
        for page in pages:
            grid = GRIDS[page.name]
            text = document(page.title, room_body(page, _facts(page, grid, shown.advance), pages, docs, grid))
            (draft / f"{page.name}.html").write_text(text, "utf-8")
            shown.print(f"{page.name}: {counts[page.name]} views, {len(text.encode()) / 1e6:.1f} MB", say)
        (draft / "index.html").write_text(document("saddles", front_body(pages, _file)), "utf-8")
    return place


def _file(name: str) -> str:
    return f"{name or 'index'}.html"


def single(page: Page, view: View) -> str:
    """One view as one file that holds everything, the plotting library too."""
    facts = _room(page, {}, {}, [({}, partial(scene, page, view))])
    return document(page.title, room_body(page, facts, [], "", Grid({})), inside=True)


@cache
def library() -> str:
    """The plotting library that NiceGUI brings, as a plain script: a module could not be loaded from a file."""
    found = find_spec("nicegui")
    place = Path(found.origin or "").parent / "elements/plotly/dist/index.js" if found else None
    if place is None or not place.is_file():
        raise SaddlesError("A page for the browser needs NiceGUI's plotly.js. Run pip install 'saddles[explorer]'.")
    text, _, tail = place.read_text("utf-8").rpartition("export{")
    if "window.Plotly=" not in text or len(tail) > 100:
        raise SaddlesError(f"{place.name} of NiceGUI is not the plotly.js that this version of saddles knows.")
    return f"(()=>{{{text}}})();\n"


def _facts(page: Page, grid: Grid, count: Callable[[], None]) -> Json:
    """All scenes of a room, each as its changes to the first one; `count` is called after each."""
    maps = _maps(page, grid)
    made = [(at, partial(scene, page, view, extra=_extra(maps, view))) for at, view in grid.views(page)]
    start = {name: getattr(page.view(), name) for name in grid.values}
    return _room(page, {name: list(values) for name, values in grid.values.items()}, start, made, count)


def _room(
    page: Page,
    controls: Json,
    start: Json,
    made: Sequence[tuple[Json, Callable[[], Json]]],
    count: Callable[[], None] = lambda: None,
) -> Json:
    first: Json = {}
    scenes = []
    for at, compute in made:
        one = compute()
        first = first or one["first"]
        scenes.append({"at": at, "changes": changes(first, one.pop("first"))} | one)
        count()
    story = [{"settings": step.settings, "play": step.play} for step in stories().get(page.name, ())]
    return {"name": page.name, "controls": controls, "start": start, "frames": len(scenes[0]["frames"]), "first": first,
            "scenes": scenes, "story": story, "click": page.click}  # fmt: skip


def _maps(page: Page, grid: Grid) -> dict[phase_map.Key, phase_map.PhaseMap]:
    """The phase diagrams of the linear room, whole."""
    if page is not linear.PAGE:
        return {}
    keys = {phase_map.key(view) for _, view in grid.views(page) if isinstance(view, linear.Linear)}
    return {
        key: phase_map.PhaseMap(key, [phase_map.row(key, float(up)) for up in phase_map.UP]) for key in sorted(keys)
    }


def _extra(maps: Mapping[phase_map.Key, phase_map.PhaseMap], view: View) -> list[Panel]:
    if not maps:
        return []
    assert isinstance(view, linear.Linear)
    return [phase_map.panel(maps[phase_map.key(view)], (view.gamma_variance, view.gamma_w))]


@cache
def miniatures() -> dict[str, Json]:
    """The miniature of each room, as docs/make_miniatures.py computed them."""
    return json.loads(KEPT.read_text("utf-8"))


def miniature(page: Page) -> Json:
    """A scene of one panel, without words around it."""
    grid = GRIDS[page.name]
    one = scene(page, next(view for at, view in grid.views(page) if _is_default(page, at)), only=grid.miniature)
    small = {"height": HEIGHT, "margin": {"l": 4, "r": 4, "t": 4, "b": 4}, "showlegend": False, "annotations": []}
    layout = one["first"]["figures"][0]["layout"]
    layout |= small
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"title": {"text": ""}, "showticklabels": False, "ticks": "", "showgrid": False}
    for trace in one["first"]["figures"][0]["data"]:
        if trace["type"] == "heatmap":
            trace["showscale"] = False
    # What a frame would bring back of the words: annotations, and a layout written anew.
    one["frames"] = [[change for change in frame if "layout" not in change[0]] for frame in one["frames"]]
    return one


def _is_default(page: Page, at: Mapping[str, Value]) -> bool:
    return all(getattr(page.view(), name) == value for name, value in at.items())


def document(title: str, body: str, *, inside: bool = False, library_at: str = "plotly.js") -> str:
    """A page: its words first, so that they are painted before the library and the data are read.

    Args:
        inside: the library stands in the page.
    """
    source = (
        f'<script type="application/octet-stream" id="plotly">{packed_text(library())}</script>'
        if inside
        else f'<script src="{library_at}" defer></script>'
    )
    name = "" if title == "saddles" else f"{escape(title)} · "
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{name}saddles explorer</title><style>{CSS}</style>'
        f"<script>{SITE}</script></head><body>{body}{source}</body></html>\n"
    )


@cache
def packed_text(text: str) -> str:
    """A long text that stands compressed inside a page."""
    return compressed(text)


def _bar(pages: Sequence[Page], current: str, href: Href) -> str:
    links = "".join(
        f'<a href="{href(one.name)}"{" aria-current=page" if one.name == current else ""}>{escape(one.menu)}</a>'
        for one in pages
    )
    theme = _button("theme", "theme", 'aria-label="colour theme" onclick="saddles.theme(1)"')
    brand = f'<a class="brand" href="{href("")}">saddles</a>' if pages else '<span class="brand">saddles</span>'
    return f'<header class="bar">{brand}<div><nav aria-label="pages">{links}</nav></div>{theme}</header>'


def front_body(pages: Sequence[Page], href: Href) -> str:
    """The front page: a card for each room with a miniature that moves, whose data stand in the page."""
    cards = "".join(_card(page, rooms()[page.name], href(page.name), first=place == 0) for place, page in
                    enumerate(page for page in pages if page.name in rooms()))  # fmt: skip
    data = "".join(_data(f"mini-{page.name}", miniatures()[page.name]) for page in pages if page.name in rooms())
    return (
        f'{_bar(pages, "", href)}<main class="page front"><h1>How networks learn, before your eyes</h1>'
        '<p class="intro">Small networks whose whole training can be computed, and predicted. Every room has a story '
        "in five steps, settings to move, and the theory dashed over the run.</p>"
        f'<div class="cards">{cards}</div></main>{data}'
    )


def _card(page: Page, room: Room, href: str, first: bool) -> str:
    mark = '<span class="start">start here</span>' if first else ""
    return (
        f'<a class="card" href="{href}"><div class="mini" data-miniature="{page.name}" role="img"></div>'
        f"<h2>{escape(page.title)}{mark}</h2><p>{escape(room.sentence)}</p></a>"
    )


def room_body(page: Page, facts: Json, pages: Sequence[Page], docs: str, grid: Grid) -> str:
    """A room: its story, its controls, and places for what the script draws."""
    known = settings(page.view)
    controls = "".join(_control(name, known[name], values) for name, values in facts["controls"].items())
    fixed = ", ".join(f"{known[name].label} {value}" for name, value in grid.fixed.items())
    hint = f"{f'Fixed here: {fixed}. ' if fixed else ''}saddles explore has every setting, and any value."
    more = _button("more broad", "all settings ▴", 'aria-expanded="false" onclick="saddles.more(this)"')
    story = story_html(stories()[page.name], page.name, docs) if page.name in stories() and facts["controls"] else ""
    return (
        f'{_bar(pages, page.name, _file)}<main class="page"><h1>{escape(page.title)}</h1>'
        f'<p class="intro">{escape(page.intro)}</p>{story}<div class="bench">'
        f'<section class="controls" aria-label="settings">{more}{controls}{_player(page, facts)}'
        f'<p class="words broad">{escape(hint)}</p></section>'
        '<section aria-label="results"><p class="said" aria-live="polite">Reading …</p><div class="panels"></div>'
        '<details open><summary>The same in Python</summary><pre class="code"></pre></details></section>'
        f"</div></main>{_data('room', facts)}"
    )


def _data(name: str, facts: Json) -> str:
    return f'<script type="application/octet-stream" id="{name}">{packed(facts)}</script>'


def _control(name: str, setting: Setting, values: Sequence[Value]) -> str:
    label, words = escape(setting.label), f'<p class="words">{escape(setting.words)}</p>' if setting.words else ""
    if setting.options is not None or list(values) != sorted(values):
        named = [(setting.options or {}).get(str(value), str(value)) for value in values]
        options = "".join(f'<option value="{k}">{escape(text)}</option>' for k, text in enumerate(named))
        head = f'<div class="head"><label for="slide-{name}">{label}</label></div>'
        return f'<div class="field broad">{head}<select id="slide-{name}">{options}</select>{words}</div>'
    return f'<div class="field">{_slider(name, label, len(values) - 1)}{words}</div>'


def _slider(name: str, label: str, last: int) -> str:
    return (
        f'<div class="head"><label for="slide-{name}">{label}</label><output id="set-{name}"></output></div>'
        f'<div class="slide"><input type="range" id="slide-{name}" min="0" max="{last}" step="1"></div>'
    )


def _button(kind: str, words: str, more: str = "") -> str:
    return f'<button type="button" class="quiet {kind}" {more}>{words}</button>'


def _player(page: Page, facts: Json) -> str:
    if facts["frames"] < 2:
        return ""
    jumps = _button("before", "◀ stage before") + _button("after", "stage after ▶")
    return (
        f'<div class="field of-instant">{_slider("instant", "instant", facts["frames"] - 1)}</div>'
        '<div class="tools broad">'
        f"{_button('play', '▶ play')}{jumps if page.marks is not None else ''}</div>"
    )
