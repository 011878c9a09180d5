"""Fields of a view on the page: a slider with a number, a choice, or a line of text, each with its refusal below."""

import json
from collections.abc import Callable
from html import escape
from typing import Any

from nicegui import ui

from saddles.explorer.view import Setting

Moved = Callable[[str, Any, bool], Any]
"""(setting, what came, draft): a draft while a slider is moving."""
THROTTLE = 0.03
"""Seconds between two events of a moving slider."""
TELL = "(event) => emit(event.target.value)"


class Field:
    """One setting on the page."""

    def __init__(self, name: str, setting: Setting, value: Any, moved: Moved) -> None:
        self.name, self.setting, self._moved, self._quiet = name, setting, moved, False
        self.slider: Any = None
        self.entry: Any = None
        plain = setting.options is None and not isinstance(value, str)
        with ui.element("div").classes("field" if plain else "field broad") as self.box:
            with ui.element("div").classes("head"):
                ui.html(f'<label for="set-{name}">{escape(setting.label)}</label>', sanitize=False)
                if plain:
                    self._number(value)
            if plain:
                self._slide(value)
            elif setting.options is not None:
                self._choose(value)
            else:
                self._line(value)
            if setting.words:
                ui.html(escape(setting.words), tag="p", sanitize=False).classes("words")
            self.refusal = ui.label("").classes("refusal").props('role="alert"')
        self._at: Any = value

    def _line(self, value: str) -> None:
        """The line in which words are typed."""
        look = f'dense borderless for="set-{self.name}" spellcheck=false autocomplete=off'
        self.entry = ui.input(value=value).props(look)
        self.entry.on("change", self._typed)
        self.entry.on("keydown.enter", self._typed)

    def _number(self, value: Any) -> None:
        """The browser's own line for a number: a moving slider writes into it without asking the server."""
        kind = 'type="text" inputmode="decimal" spellcheck="false" autocomplete="off"'
        box = ui.html(f'<input {kind} id="set-{self.name}" value="{value:.10g}">', sanitize=False).classes("value")
        box.on("change", lambda e: self._moved(self.name, e.args, False), js_handler=TELL)

    def _slide(self, value: Any) -> None:
        """The browser's own slider: keyboard, touch and screen readers know it."""
        low, high, step = self.setting.low, self.setting.high, self.setting.step
        label = escape(self.setting.label, quote=True)
        ends = f'min="{low:g}" max="{high:g}" step="{step:g}" value="{value:.10g}"'
        self.slider = ui.html(
            f'<input type="range" id="slide-{self.name}" aria-label="{label}" {ends}>', sanitize=False
        ).classes("slide")
        write = f"document.getElementById('set-{self.name}').value = event.target.value"
        tell = f"(event) => {{ {write}; emit(event.target.value); }}"
        self.slider.on("input", lambda e: self._slid(e.args, True), js_handler=tell, throttle=THROTTLE)
        self.slider.on("change", lambda e: self._slid(e.args, False), js_handler=TELL)

    def _choose(self, value: Any) -> None:
        options = dict(self.setting.options or {})
        value = value if value in options else None
        many = len(options) > 10
        self.entry = ui.select(options, value=value, with_input=many, on_change=lambda e: self._picked(e.value))
        label = escape(self.setting.label, quote=True)
        self.entry.props(f'dense options-dense borderless for="set-{self.name}" aria-label="{label}"')

    def _slid(self, given: Any, draft: bool) -> Any:
        self._at = float(given)
        return self._moved(self.name, given, draft)

    def _typed(self) -> Any:
        return None if self._quiet else self._moved(self.name, self.entry.value, False)

    def _picked(self, value: Any) -> Any:
        return None if self._quiet or value is None else self._moved(self.name, value, False)

    def show(self, value: Any) -> None:
        """Set the field to a value, without an event."""
        if self.slider is not None:
            if value != self._at:
                self._at = value
                self.slider.client.run_javascript(f"saddles.set('{self.name}', '{value:.10g}')")
            return
        self._quiet = True
        known = self.setting.options
        self.entry.value = value if known is None or value in known else None
        self._quiet = False

    def fit(self, to: Any) -> None:
        """Fit what was found: None hides the field, a number ends its slider, words are offered while typing."""
        if to is None:
            self.box.classes(add="hidden")
            return
        self.box.classes(remove="hidden")
        if isinstance(to, list):
            self.entry.set_autocomplete(to)
        elif self.slider is not None:
            self.slider.client.run_javascript(f"document.getElementById('slide-{self.name}').max = {json.dumps(to)}")

    def refuse(self, sentence: str) -> None:
        """Say below the field why a value was refused; nothing where it is fine."""
        self.refusal.text = sentence
