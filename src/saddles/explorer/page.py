"""A room as a page: fields at the side, plots beside them, downloads and code below."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from nicegui import json, ui

from saddles.errors import SaddlesError
from saddles.explorer import draw, files
from saddles.explorer.controls import Field
from saddles.explorer.latest import Latest
from saddles.explorer.room import Panel, Room
from saddles.explorer.style import CSS, SCRIPT
from saddles.explorer.view import Setting, computed, from_link, read, settings, to_link

CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": "reset"}
EMPTY = draw.layout("", "") | {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
"""What stands before the first figure, with its margins: Plotly would place the first legend by other ones."""
POLL = 1.0
"""Seconds between two looks at runs that are open."""
PLAY = 0.08
"""Seconds from one frame to the next."""


def frame(room: Room, rooms: Sequence[Room]) -> None:
    """Head of the page: name, rooms, theme."""
    ui.add_head_html(f"<style>{CSS}</style><script>{SCRIPT}</script>")
    ui.page_title(f"{room.title} · saddles explorer")
    with ui.element("header").classes("bar"):
        ui.html('<a class="brand" href="/">saddles</a>', sanitize=False)
        links = "".join(
            f'<a href="/{one.name}"{" aria-current=page" if one is room else ""}>{escape(one.title.split()[0])}</a>'
            for one in rooms
        )
        ui.html(f'<nav aria-label="rooms">{links}</nav>', sanitize=False)
        theme = ui.element("button").classes("quiet theme").props('type="button" aria-label="colour theme"')
        theme.on("click", js_handler="() => window.saddles.theme(1)")
        with theme:
            ui.html("theme", tag="span", sanitize=False)


class Plot:
    """One panel on the page."""

    def __init__(self, room: str, place: int) -> None:
        with ui.element("figure").classes("panel") as self.box:
            with ui.element("figcaption"):
                self.title = ui.label("")
                button = (
                    ui.element("button")
                    .classes("quiet")
                    .props('type="button" aria-label="download this figure as SVG"')
                )
                with button:
                    ui.html("SVG", tag="span", sanitize=False)
            self.plot = ui.plotly({"data": [], "layout": EMPTY, "config": CONFIG}).props('role="img"')
            self.plot._update_method = None  # what is drawn there later is not the framework's to draw again
        name = f"saddles-{room}-{place + 1}"
        button.on(
            "click",
            lambda: self.plot.run_plot_method(
                "downloadImage", {"format": "svg", "filename": name, "width": 720, "height": 420}
            ),
        )

    def fit(self, panel: Panel) -> list[Any]:
        """Make its place and title those of a panel, and return what the browser draws there."""
        self.box.classes(remove="hidden")
        self.box.classes(add="spread" if panel.wide else "", remove="" if panel.wide else "spread")
        self.title.text = panel.title[:1].upper() + panel.title[1:]
        return [self.plot.html_id, panel.words, panel.data, panel.layout]

    def hide(self) -> None:
        """Take it off the page."""
        self.box.classes(add="hidden")


def draw_all(client: Any, figures: list[list[Any]], said: str | None = None) -> None:
    """Draw figures in the browser, all in one message, with a sentence about them."""
    client.run_javascript(f"saddles.draw({json.dumps(figures)}, {json.dumps(said)})")


class Desk:
    """The state of one open page: its view, its numbers, its elements. No two pages share one."""

    def __init__(self, room: Room, query: dict[str, str], pool: Executor) -> None:
        self.room = room
        self.view, self.refused = from_link(room.view, query)
        self.found: dict[str, Any] | None = None
        self._key: Any = None
        self._stamp: Any = None
        self.latest = Latest(pool)
        self.fields: dict[str, Field] = {}
        self.plots: list[Plot] = []
        self.playing = False

    def build(self) -> None:
        """Lay the page out; nothing is computed yet."""
        self.client = ui.context.client
        with ui.element("div").classes("room"):
            ui.html(escape(self.room.title), tag="h1", sanitize=False)
            ui.html(escape(self.room.intro), tag="p", sanitize=False).classes("intro")
            with ui.element("div").classes("bench"):
                with ui.element("section").classes("controls").props('aria-label="settings"'):
                    self.bounds = ui.label("").classes("refusal bounds broad").props('role="alert"')
                    for name, setting in settings(self.room.view).items():
                        self.fields[name] = self._field(name, setting)
                    self._player()
                    if self.room.hint:
                        ui.html(escape(self.room.hint), tag="p", sanitize=False).classes("words soft broad")
                with ui.element("section").props('aria-label="results"'):
                    ui.label("Computing …").classes("said").props('aria-live="polite"')
                    self.board = ui.element("div").classes("panels")
                    self._tools()
        if self.room.stamp is not None:
            ui.timer(POLL, self.look)
        for name, sentence in self.refused.items():
            if name in self.fields:
                self.fields[name].refuse(sentence)
            else:
                self.bounds.text = sentence

    def _field(self, name: str, setting: Setting) -> Field:
        if name in self.room.lists:
            setting = replace(setting, options=self.room.lists[name]())
        return Field(name, setting, getattr(self.view, name), self.move)

    def _player(self) -> None:
        if self.room.moving is None:
            return
        with ui.element("div").classes("tools broad").style("margin-top:0"):
            self.play = self._button("▶ play", self._toggle)
            if self.room.steps:
                self._button("◀ stage before", lambda: self._jump(-1))
                self._button("stage after ▶", lambda: self._jump(1))
        self.timer = ui.timer(PLAY if not self.room.steps else 0.9, self._tick, active=False)

    def _button(self, words: str, act: Any) -> Any:
        button = ui.element("button").classes("quiet").props('type="button"')
        with button:
            button.words = ui.html(words, tag="span", sanitize=False)  # type: ignore[attr-defined]
        button.on("click", act)
        return button

    def _toggle(self) -> None:
        self.playing = not self.playing
        self.play.words.content = "❚❚ pause" if self.playing else "▶ play"
        self.timer.active = self.playing

    async def _jump(self, by: int) -> None:
        name = self.room.moving or ""
        await self.move(name, min(max(getattr(self.view, name) + by, 0), self.room.steps), False, show=True)

    async def _tick(self) -> None:
        name = self.room.moving or ""
        now, high = getattr(self.view, name), settings(self.room.view)[name].high
        step = 1 if self.room.steps else 0.02
        after = (
            (0 if now >= high else now + step)
            if self.room.steps
            else (0.0 if now >= high else round(min(now + step, high), 6))
        )
        await self.move(name, after, True, show=True)
        if after >= high:
            self._toggle()

    def _tools(self) -> None:
        with ui.element("div").classes("tools"):
            copy = self._button("copy link", None)
            copy.on("click", js_handler="(event) => window.saddles.copy(event.currentTarget)")
            self._button("data: Zarr", partial(self._download, "zarr"))
            self._button("data: CSV", partial(self._download, "csv"))
        with ui.element("details").props("open"):
            ui.html("The same in Python", tag="summary", sanitize=False)
            self.code = ui.html("", tag="pre", sanitize=False).classes("code")

    async def _download(self, kind: str) -> None:
        view = self.view
        make = files.zarr_zip if kind == "zarr" else files.csv_zip
        try:
            self.room.check(view)
            data = await asyncio.get_running_loop().run_in_executor(
                None, lambda: make(self.room.compute(view, False), f"saddles-{self.room.name}")
            )
        except SaddlesError as error:
            self.bounds.text = str(error)
            return
        ui.download.content(data, f"saddles-{self.room.name}-{kind}.zip", "application/zip")

    async def move(self, name: str, given: Any, draft: bool, show: bool = False) -> None:
        """A setting was asked to change: check it, then compute and draw in the background."""
        try:
            value = read(self.room.view, name, given)
        except SaddlesError as error:
            self.fields[name].refuse(str(error))
            return
        if self.refused.pop(name, None) or self.fields[name].refusal.text:
            self.fields[name].refuse("")
        if value == getattr(self.view, name) and draft:
            return
        self.view = replace(self.view, **{name: value})
        if show or not draft:
            self.fields[name].show(value)
        await self.refresh(draft)

    async def set(self, **values: Any) -> None:
        """Change several settings at once, as a click on a map does."""
        self.view = replace(self.view, **values)
        for name, value in values.items():
            self.fields[name].show(value)
            self.fields[name].refuse("")
        await self.refresh(False)

    async def refresh(self, draft: bool = False) -> None:
        """Compute the view, unless the numbers are there already, and draw it."""
        view, key = self.view, (computed(self.view), draft)
        try:
            self.room.check(view)
        except SaddlesError as error:
            self._refuse(error)
            return
        held = self.found if self._key is not None and self._key[0] == key[0] and self._key[1] <= key[1] else None

        def job() -> Any:
            found = held if held is not None else self.room.compute(view, draft)
            words = "" if draft else self.room.code(view)
            fitted = self.room.fit(view, found)
            return found, self.room.panels(view, found), self.room.say(view, found), words, fitted

        def deliver(result: Any, trouble: BaseException | None) -> None:
            if self.client.is_deleted:
                return
            if trouble is not None:
                self._refuse(trouble)
                return
            self.found, panels, said, code, fitted = result
            self._key = key
            self._draw(panels, said)
            for name, fit in fitted.items():
                self.fields[name].fit(fit)
            if not draft:
                self.code.content = escape(code)
                ui.navigate.history.replace(to_link(self.room.name, view))

        await self.latest.ask(job, deliver)

    def _draw(self, panels: list[Panel], said: str) -> None:
        if self.bounds.text and not self.refused:
            self.bounds.text = ""
        for name, field in self.fields.items():
            if field.refusal.text and name not in self.refused:
                field.refuse("")
        while len(self.plots) < len(panels):
            with self.board:
                self.plots.append(Plot(self.room.name, len(self.plots)))
        figures = []
        for place, (plot, panel) in enumerate(zip(self.plots, panels, strict=False)):
            lone = place == len(panels) - 1 and place % 2 == 0 and place > 0
            figures.append(plot.fit(panel if not lone else replace(panel, wide=True)))
        for plot in self.plots[len(panels) :]:
            plot.hide()
        draw_all(self.client, figures, said)

    def _refuse(self, error: BaseException) -> None:
        if not isinstance(error, SaddlesError):
            raise error
        place = getattr(error, "setting", None)
        if place in self.fields:
            self.fields[place].refuse(str(error))
        else:
            self.bounds.text = str(error)
        if self.found is None:
            draw_all(self.client, [], "Nothing to show.")

    async def look(self) -> None:
        """Compute anew where what lies on disk has changed."""
        assert self.room.stamp is not None
        try:
            stamp = await asyncio.get_running_loop().run_in_executor(None, self.room.stamp, self.view)
        except SaddlesError:
            return
        known, self._stamp = self._stamp, (self.view, stamp)
        if known is not None and known[0] == self.view and known[1] != stamp:
            self._key = None
            await self.refresh()
