"""A page that is open in a browser: fields at the side, plots beside them, downloads and code below."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from html import escape

from nicegui import Client, json, ui
from nicegui.events import GenericEventArguments

from saddles.errors import SaddlesError
from saddles.explorer import draw
from saddles.explorer.controls import Field, field
from saddles.explorer.downloads import file_name, film_kinds, pack
from saddles.explorer.latest import PATIENCE, Latest
from saddles.explorer.page import Fit, Page, Panel, Results, spread
from saddles.explorer.stories import Step, stories, story_html
from saddles.explorer.style import CSS, SCRIPT
from saddles.explorer.view import LONGEST, Value, computed, from_link, read, settings, to_link

LOG = logging.getLogger(__name__)
CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": "reset"}
EMPTY = draw.layout("", "") | {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
"""What stands before the first figure, with its margins: Plotly would place the first legend by other ones."""
POLL = 1.0
"""Seconds between two looks at runs that are open."""
PLAY = 0.08
"""Seconds from one frame to the next."""
STRIDE = 0.02
"""What "play" adds to the setting that it moves."""
SHOWN: Fit = []
"""How a field fits of which a page says nothing: as it is."""
Figure = list[str | list[draw.Json] | draw.Json]
"""What the browser draws: where, words for it, traces and layout."""


def header(page: Page, pages: Sequence[Page]) -> None:
    """Head of the page: name, pages, theme."""
    ui.add_head_html(f"<style>{CSS}</style><script>{SCRIPT}</script>")
    ui.page_title(f"{page.title} · saddles explorer")
    with ui.element("header").classes("bar"):
        ui.html('<a class="brand" href="/">saddles</a>', sanitize=False)
        links = "".join(
            f'<a href="/{one.name}"{" aria-current=page" if one is page else ""}>{escape(one.menu)}</a>'
            for one in pages
        )
        ui.html(f'<nav aria-label="pages">{links}</nav>', sanitize=False)
        theme = Button("theme", label="colour theme").classes("theme")
        theme.on("click", js_handler="() => window.saddles.theme(1)")


class Button(ui.element):
    """A quiet button.

    Args:
        words: on it.
        act: what a click does.
        label: for screen readers, where the words alone do not say it.
    """

    def __init__(self, words: str, act: Callable[[], Awaitable[None] | None] | None = None, label: str = "") -> None:
        super().__init__("button")
        self.classes("quiet").props('type="button"' + (f' aria-label="{label}"' if label else ""))
        with self:
            self.words = ui.html(words, tag="span", sanitize=False)
        if act is not None:
            self.on("click", act)


class Plot:
    """One panel on the page."""

    def __init__(self, file: str) -> None:
        with ui.element("figure").classes("panel") as self.box:
            with ui.element("figcaption"):
                self.title = ui.label("")
                Button("SVG", partial(self._download, file), label="download this figure as SVG")
            self.plot = ui.plotly({"data": [], "layout": EMPTY, "config": CONFIG}).props('role="img"')
            self.map = False
            self.plot._update_method = None  # what is drawn there later is not the framework's to draw again

    def _download(self, file: str) -> None:
        options = {"format": "svg", "filename": file, "width": 720, "height": 420}
        self.plot.run_plot_method("downloadImage", options)

    def fit(self, panel: Panel) -> Figure:
        """Make its place and title those of a panel, and return what the browser draws there."""
        self.box.classes(remove="hidden")
        self.box.classes(add="spread" if panel.wide else "", remove="" if panel.wide else "spread")
        self.title.text = panel.title[:1].upper() + panel.title[1:]
        self.map = panel.map
        # What Plotly keeps from one picture to the next, such as curves that are hidden, belongs to these axes.
        axes = " ".join(panel.layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
        return [self.plot.html_id, panel.words, panel.data, panel.layout | {"uirevision": axes}]

    def hide(self) -> None:
        """Take it off the page."""
        self.box.classes(add="hidden")


def draw_all(client: Client, figures: list[Figure], said: str | None = None) -> None:
    """Draw figures in the browser, all in one message, with a sentence about them."""
    client.run_javascript(f"saddles.draw({json.dumps(figures)}, {json.dumps(said)})")


@dataclass(frozen=True)
class Drawn:
    """What the background hands to an open page."""

    results: Results
    panels: list[Panel]
    said: str
    code: str
    fits: dict[str, Fit]
    details: str | None
    """None: as they were."""


class OpenPage:
    """The state of one open page: its view, its numbers, its elements. No two browser tabs share one."""

    def __init__(self, page: Page, query: dict[str, str], pool: Executor) -> None:
        self.page = page
        self.view, self.refused = from_link(page.view, query)
        self.results: Results | None = None
        self._key: tuple[tuple[Value, ...], bool] | None = None
        """What the results were computed for, and whether they are a draft."""
        self._stamp: tuple[object, object] | None = None
        self.latest = Latest(pool, self._late)
        self.fields: dict[str, Field] = {}
        self.plots: list[Plot] = []
        self._fits: dict[str, Fit] = {}
        self.playing = False

    def build(self) -> None:
        """Lay the page out; nothing is computed yet."""
        self.client = ui.context.client
        with ui.element("div").classes("page"):
            ui.html(escape(self.page.title), tag="h1", sanitize=False)
            ui.html(escape(self.page.intro), tag="p", sanitize=False).classes("intro")
            story = stories().get(self.page.name)
            if story is not None:
                strip = ui.html(story_html(story, self.page.name), sanitize=False).classes("tale")
                strip.on("step", lambda event: self._step(story[int(event.args)]), js_handler="(e) => emit(e.detail)")
            with ui.element("div").classes("bench"):
                with ui.element("section").classes("controls").props('aria-label="settings"'):
                    more = Button("all settings ▴").classes("more broad").props('aria-expanded="false"')
                    more.on("click", js_handler="(event) => window.saddles.more(event.currentTarget)")
                    self.bounds = ui.label("").classes("refusal bounds broad").props('role="alert"')
                    for name, setting in settings(self.page.view).items():
                        if name in self.page.lists:
                            setting = replace(setting, options=self.page.lists[name]())
                        self.fields[name] = field(name, setting, getattr(self.view, name), self.move)
                    self._player()
                    if self.page.hint:
                        ui.html(escape(self.page.hint), tag="p", sanitize=False).classes("words soft broad")
                with ui.element("section").classes("results").props('aria-label="results"'):
                    ui.label("Computing …").classes("said").props('aria-live="polite"')
                    with ui.element("div"):
                        ui.html("<span></span>", sanitize=False).classes("wait").props('role="status"')
                        self.board = ui.element("div").classes("panels")
                    self._tools()
        if self.page.stamp is not None:
            ui.timer(POLL, self.look)
        for name, sentence in self.refused.items():
            self._refuse(name, sentence)

    def _player(self) -> None:
        if self.page.moving is None:
            return
        with ui.element("div").classes("tools broad").style("margin-top:0") as self.player:
            self.play = Button("▶ play", self._toggle)
            if self.page.marks is not None:
                Button("◀ stage before", partial(self._jump, -1))
                Button("stage after ▶", partial(self._jump, 1))
        self.timer = ui.timer(PLAY, self._tick, active=False)

    async def _toggle(self) -> None:
        self._play(not self.playing)
        if not self.playing:
            await self.refresh()  # the address is that of the instant at which it rests

    def _play(self, on: bool) -> None:
        self.playing = on
        self.play.words.content = "❚❚ pause" if self.playing else "▶ play"
        self.timer.active = self.playing

    async def _jump(self, by: int) -> None:
        """Go to the next mark, or to the one before; from the end of the run, to the first."""
        if self.results is None or self.page.marks is None:
            return
        name = self.page.moving or ""
        now, marks = getattr(self.view, name), self.page.marks(self.view, self.results)
        if by > 0:
            after = next((mark for mark in marks if mark > now), marks[0] if now == 1 and marks else 1.0)
        else:
            after = next((mark for mark in reversed(marks) if mark < now), 0.0)
        await self.move(name, after, False, show=True)

    async def _step(self, step: Step) -> None:
        """Set up one step of the room's story: the defaults but for its settings, and play it where it says so."""
        if self.playing:
            self._play(False)
        view = replace(self.page.view(), **step.settings)
        start = {self.page.moving: 0.0} if step.play and self.page.moving else {}
        await self.set(**dataclasses.asdict(replace(view, **start)))
        if start:
            self._play(True)

    async def _tick(self) -> None:
        name = self.page.moving or ""
        now, high = getattr(self.view, name), settings(self.page.view)[name].high
        after = 0 if now >= high else round(min(now + STRIDE, high), 6)
        await self.move(name, after, after < high, show=True, quiet=True)
        if after >= high:
            self._play(False)

    def _tools(self) -> None:
        with ui.element("div").classes("tools"):
            copy = Button("copy link")
            copy.on("click", js_handler="(event) => window.saddles.copy(event.currentTarget)")
            Button("data: Zarr", partial(self._download, "zarr"))
            Button("data: CSV", partial(self._download, "csv"))
            if self.page.moving is not None:
                Button("save this view", partial(self._download, "html"), label="save this view as one HTML file")
                for kind in film_kinds():
                    Button(f"film: {kind.upper()}", partial(self._download, kind), label=f"film of this run as {kind}")
        with ui.element("details").props("open"):
            ui.html("The same in Python", tag="summary", sanitize=False)
            self.code = ui.html("", tag="pre", sanitize=False).classes("code")
        self.details = ui.html("", sanitize=False).classes("details")

    async def _download(self, kind: str) -> None:
        view, name = self.view, f"saddles-{self.page.name}"
        try:
            self.page.check(view)
            data = await asyncio.get_running_loop().run_in_executor(None, partial(pack, self.page, view, kind, name))
        except Exception as error:
            self._fail(error)
            return
        ui.download.content(data, *file_name(name, kind))

    async def move(self, name: str, given: object, draft: bool, show: bool = False, quiet: bool = False) -> None:
        """Change a setting: check it, then compute and draw in the background."""
        try:
            value = read(self.page.view, name, given)
        except SaddlesError as error:
            self.fields[name].refuse(str(error))
            return
        if self.refused.pop(name, None) or self.fields[name].refusal.text:
            self.fields[name].refuse("")
        if value == getattr(self.view, name) and draft:
            return
        fresh = {other: getattr(self.page.view(), other) for other in self.page.resets.get(name, ())}
        self.view = replace(self.view, **fresh, **{name: value})
        for other in fresh:
            self.fields[other].show(fresh[other])
            self.fields[other].refuse("")
        if show or not draft:
            self.fields[name].show(value)
        await self.refresh(draft, quiet)

    async def set(self, **values: Value) -> None:
        """Change several settings at once, as a click on a map does."""
        self.view = replace(self.view, **values)
        for name, value in values.items():
            self.fields[name].show(value)
            self.fields[name].refuse("")
        await self.refresh(False)

    async def refresh(self, draft: bool = False, quiet: bool = False) -> None:
        """Compute the view, unless the numbers are there already, and draw it; a quiet one shows no waiting."""
        page, view, key = self.page, self.view, (computed(self.view), draft)
        # A draft may be drawn from the whole numbers, never the other way round.
        kept = self.results if self._key is not None and self._key[0] == key[0] and self._key[1] <= draft else None
        made = key if kept is None else self._key

        def job() -> Drawn:
            page.check(view)
            results = kept if kept is not None else page.compute(view, draft)
            code = "" if draft else page.code(view)
            details = page.details(view) if page.details is not None and kept is None else None
            moving = draft and kept is None
            panels, said = page.panels(view, results), page.say(view, results)
            panels = [panel for panel in panels if not (moving and panel.waits)]
            return Drawn(results, panels, said, code, page.fit(view, results), details)

        def deliver(drawn: Drawn) -> None:
            if self.client.is_deleted:
                return
            self.results, self._key = drawn.results, made
            if drawn.details is not None:
                self.details.content = drawn.details
            self._draw(drawn, draft)
            if not draft:
                self.code.content = escape(drawn.code)
                ui.navigate.history.replace(to_link(page.name, view))

        await self.latest.ask(job, deliver, self._fail, quiet)

    def _late(self, on: bool) -> None:
        """Mark what is drawn as out of date, or take the mark away once the last picture is there."""
        if not self.client.is_deleted:
            self.client.run_javascript(f"saddles.wait({json.dumps(PATIENCE if on else None)})")

    def _draw(self, drawn: Drawn, draft: bool) -> None:
        if self.bounds.text and not self.refused:
            self.bounds.text = ""
        for name, one in self.fields.items():
            if one.refusal.text and name not in self.refused:
                one.refuse("")
        panels = drawn.panels
        while len(self.plots) < len(panels):
            with self.board:
                self.plots.append(Plot(f"saddles-{self.page.name}-{len(self.plots) + 1}"))
                if self.page.click is not None:
                    self.plots[-1].plot.on("plotly_click", partial(self._clicked, self.plots[-1]))
        figures = []
        for plot, panel in zip(self.plots, spread(panels), strict=False):
            figures.append(plot.fit(panel))
        for plot in self.plots[len(panels) :] if not draft else ():
            plot.hide()
        draw_all(self.client, figures, drawn.said)
        for name, one in self.fields.items():
            fit = drawn.fits.get(name, SHOWN)
            if self._fits.get(name, SHOWN) != fit:
                self._fits[name] = fit
                one.fit(fit)
                if name == self.page.moving:
                    self.player.classes(add="hidden" if fit is None else "", remove="" if fit is None else "hidden")

    async def _clicked(self, plot: Plot, event: GenericEventArguments) -> None:
        """Open the run of a cell."""
        if plot.map and self.page.click is not None:
            point = event.args["points"][0]
            across, up = self.page.click
            await self.set(**{across: float(point["x"]), up: float(point["y"])})

    def _fail(self, error: Exception) -> None:
        """Say why there is nothing new to see: beside a setting, above all of them, or in place of the results."""
        if self.client.is_deleted:
            return
        ours = isinstance(error, SaddlesError)
        said = "Nothing to show."
        if not ours:
            LOG.error("%s failed", self.view, exc_info=error)
            said = f"This view could not be computed: {type(error).__name__}, {str(error)[:LONGEST]}; this is a bug."
        if ours or self.results is not None:
            self._refuse(getattr(error, "setting", ""), str(error) if ours else said)
        if self.page.stamp is not None:  # what is drawn is another run than the one that was chosen
            for plot in self.plots:
                plot.hide()
            self.results, self._key = None, None
            said = f"Nothing to show. {error}" if ours else said
        if self.results is None:
            draw_all(self.client, [], said)

    def _refuse(self, setting: str, sentence: str) -> None:
        if setting in self.fields:
            if self._fits.get(setting, SHOWN) is None:  # it had no meaning for what was drawn before
                self._fits[setting] = SHOWN
                self.fields[setting].fit(SHOWN)
            self.fields[setting].refuse(sentence)
        else:
            self.bounds.text = sentence

    async def look(self) -> None:
        """Compute anew where the files behind the view have changed."""
        assert self.page.stamp is not None
        try:
            stamp = await asyncio.get_running_loop().run_in_executor(None, self.page.stamp, self.view)
        except SaddlesError:
            return
        known, self._stamp = self._stamp, (self.view, stamp)
        if known is not None and known[0] == self.view and known[1] != stamp:
            self._key = None
            await self.refresh(quiet=True)
