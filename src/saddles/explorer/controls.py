"""Fields of a view on the page: a slider with a number, a choice, or a line of text, each with its refusal below."""

from collections.abc import Awaitable, Callable
from html import escape

from nicegui import ui

from saddles.explorer.page import Fit
from saddles.explorer.view import Setting, Value, joined, parted

Moved = Callable[[str, object, bool], Awaitable[None]]
"""(setting, new value, draft): a draft while a slider is moving."""
THROTTLE = 0.03
"""Seconds between two events of a moving slider."""
MANY = 10
"""Options above which a choice can be searched by typing."""
TELL = "(event) => emit(event.target.value)"


def field(name: str, setting: Setting, value: Value, moved: Moved) -> "Field":
    """The field that fits a setting."""
    if setting.kind:
        kinds = {"one": ListField, "several": SeveralField, "positions": AxesField}
        return kinds[setting.kind](name, setting, value, moved)
    if setting.options is not None:
        return ChoiceField(name, setting, value, moved)
    return (TextField if isinstance(value, str) else NumberField)(name, setting, value, moved)


class Field:
    """One setting on the page."""

    look = "field broad"

    def __init__(self, name: str, setting: Setting, value: Value, moved: Moved) -> None:
        self.name, self.setting, self._moved = name, setting, moved
        with ui.element("div").classes(f"{self.look} of-{name}") as self.box:
            with ui.element("div").classes("head"):
                ui.html(f'<label for="set-{name}">{escape(setting.label)}</label>', sanitize=False)
                self.build_head(value)
            self.build(value)
            if setting.words:
                ui.html(escape(setting.words), tag="p", sanitize=False).classes("words")
            self.refusal = ui.label("").classes("refusal").props('role="alert"')

    def build_head(self, value: Value) -> None:
        """Add what stands beside the label."""

    def build(self, value: Value) -> None:
        """Add what stands below the label."""
        raise NotImplementedError

    def show(self, value: Value) -> None:
        """Set the field to a value, without an event."""
        raise NotImplementedError

    def fit(self, to: Fit) -> None:
        """Fit the results: None hides the field."""
        self.box.classes(add="hidden" if to is None else "", remove="" if to is None else "hidden")

    def refuse(self, sentence: str) -> None:
        """Say below the field why a value was refused; nothing where it is fine."""
        self.refusal.text = sentence


class NumberField(Field):
    """The browser's own slider and line for a number: keyboard, touch and screen readers know them."""

    look = "field"

    def build_head(self, value: Value) -> None:
        """Add the number; a moving slider writes into it without asking the server."""
        kind = 'type="text" inputmode="decimal" spellcheck="false" autocomplete="off"'
        box = ui.html(f'<input {kind} id="set-{self.name}" value="{value:.10g}">', sanitize=False).classes("value")
        box.on("change", lambda e: self._moved(self.name, e.args, False), js_handler=TELL)

    def build(self, value: Value) -> None:
        """Add the slider."""
        self._at = value
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

    def _slid(self, written: str, draft: bool) -> Awaitable[None]:
        self._at = float(written)
        return self._moved(self.name, written, draft)

    def show(self, value: Value) -> None:
        """Set slider and number, unless the slider is there already."""
        if value != self._at:
            self._at = value
            self.slider.client.run_javascript(f"saddles.set('{self.name}', '{value:.10g}')")

    def fit(self, to: Fit) -> None:
        """Fit the results: a number ends the slider."""
        super().fit(to)
        if isinstance(to, int):
            self.slider.client.run_javascript(f"document.getElementById('slide-{self.name}').max = {to}")


class ChoiceField(Field):
    """One of several options."""

    _quiet = False
    """Whether the page itself changes the choice."""

    def build(self, value: Value) -> None:
        """Add the list."""
        options = dict(self.setting.options or {})
        self.entry = ui.select(
            options, value=value if value in options else None, with_input=len(options) > MANY, on_change=self._picked
        )
        label = escape(self.setting.label, quote=True)
        self.entry.props(f'dense options-dense borderless for="set-{self.name}" aria-label="{label}"')
        # Beside the line to type in and not inside it, where a long name would be cut.
        self.entry.props(remove="hide-selected fill-input")

    def _picked(self) -> Awaitable[None] | None:
        # Decided now and not in a task of its own, which would begin after `show` has ended.
        return None if self._quiet or self.entry.value is None else self._moved(self.name, self.entry.value, False)

    def show(self, value: Value) -> None:
        """Choose an option."""
        self._quiet = True
        self.entry.value = value if value in (self.setting.options or {}) else None
        self._quiet = False


class TextField(Field):
    """A line in which words are typed."""

    def build(self, value: Value) -> None:
        """Add the line."""
        look = f'dense borderless for="set-{self.name}" spellcheck=false autocomplete=off'
        self.entry = ui.input(value=str(value)).props(look)
        for event in ("change", "keydown.enter"):
            self.entry.on(event, lambda: self._moved(self.name, self.entry.value, False))

    def show(self, value: Value) -> None:
        """Write the words."""
        self.entry.value = str(value)


LOOK = "dense options-dense borderless"


class ListField(Field):
    """One of what the results have; the first option is none of them."""

    _quiet = False

    def build(self, value: Value) -> None:
        """Add the list, which is filled when there are results."""
        self.entry = ui.select({"": "—", str(value): str(value) or "—"}, value=str(value), on_change=self._picked)
        label = escape(self.setting.label, quote=True)
        self.entry.props(f'{LOOK} for="set-{self.name}" aria-label="{label}"')

    def _picked(self) -> Awaitable[None] | None:
        return None if self._quiet else self._moved(self.name, self.entry.value or "", False)

    def show(self, value: Value) -> None:
        """Choose an option, known or not."""
        self._offer(list(self.entry.options), str(value))

    def fit(self, to: Fit) -> None:
        """Fit the results: texts are offered."""
        super().fit(to)
        if isinstance(to, list):
            self._offer(to, str(self.entry.value or ""))

    def _offer(self, names: list[str], value: str) -> None:
        self._quiet = True
        self.entry.set_options({"": "—"} | {name: name for name in [*names, value] if name}, value=value)
        self._quiet = False


class SeveralField(ListField):
    """Several of a list."""

    def build(self, value: Value) -> None:
        """Add the list."""
        options = {name: words for name, words in (self.setting.options or {}).items() if name}
        options |= {name: name for name in parted(str(value)) if name not in options}
        self.entry = ui.select(options, value=parted(str(value)), multiple=True, on_change=self._picked)
        label = escape(self.setting.label, quote=True)
        self.entry.props(f'{LOOK} use-chips for="set-{self.name}" aria-label="{label}"')

    def _picked(self) -> Awaitable[None] | None:
        return None if self._quiet else self._moved(self.name, joined(self.entry.value or []), False)

    def show(self, value: Value) -> None:
        """Choose several."""
        self._quiet = True
        self.entry.value = [name for name in parted(str(value)) if name in self.entry.options]
        self._quiet = False


class AxesField(Field):
    """A list of positions for each axis of what is drawn."""

    _quiet = False

    def build(self, value: Value) -> None:
        """Add a place for the lists, which are made when there are results."""
        self._value, self.lists = str(value), dict[str, ui.select]()
        self.place = ui.element("div").classes("axes")

    def fit(self, to: Fit) -> None:
        """Fit the results: for each axis the labels of its positions."""
        super().fit(to if to else None)
        if not isinstance(to, dict):
            return
        self.place.clear()
        with self.place:
            self.lists = {axis: self._list(axis, labels) for axis, labels in to.items()}
        self.show(self._value)

    def _list(self, axis: str, labels: list[str]) -> ui.select:
        options = {"": "—"} | {str(k): label for k, label in enumerate(labels)}
        place = escape(f"set-{self.name}-{axis}", quote=True)
        with ui.element("div").classes("axis"):
            ui.html(f'<label for="{place}">{escape(axis)}</label>', sanitize=False)
            made = ui.select(options, value="", with_input=len(options) > MANY, on_change=self._picked)
        return made.props(f'{LOOK} for="{place}"')

    def _picked(self) -> Awaitable[None] | None:
        if self._quiet:
            return None
        self._value = " ".join(f"{axis}={one.value}" for axis, one in self.lists.items() if one.value)
        return self._moved(self.name, self._value, False)

    def show(self, value: Value) -> None:
        """Choose the positions that a text names."""
        self._quiet, self._value = True, str(value)
        pairs = (pair.partition("=") for pair in self._value.replace(",", " ").split())
        named = {axis: place for axis, _, place in pairs}
        for axis, one in self.lists.items():
            one.value = named.get(axis, "") if named.get(axis, "") in one.options else ""
        self._quiet = False
