"""A view: the settings of a page as one frozen object, which a link carries and restores.

A page's view is a frozen dataclass whose fields are made by `number`, `choice` and `text`. Links hold what differs
from the defaults; values from a link or a field are checked, and refused in one sentence.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from saddles.errors import SaddlesError

Value = float | int | str
LONGEST = 1000
"""Characters that a setting may have."""
QUOTED = 40
"""Characters of a wrong value that a message repeats."""


@dataclass(frozen=True)
class View:
    """The settings of one page."""


V = TypeVar("V", bound=View)


class RefusedError(SaddlesError):
    """A view that cannot be shown because of one setting; the page says so beside it."""

    def __init__(self, setting: str, sentence: str) -> None:
        super().__init__(sentence)
        self.setting = setting


@dataclass(frozen=True)
class Setting:
    """What a field of a view may hold, and how the page asks for it."""

    label: str
    words: str = ""
    low: float = -math.inf
    high: float = math.inf
    step: float = 0.0
    options: Mapping[str, str] | None = None
    still: bool = False
    """It changes what is drawn, not what is computed."""
    kind: Literal["", "one", "several", "positions"] = ""
    """Text that is chosen, not typed: one of what the results have, several of a list, a position along each axis."""


def number(
    default: float, label: str, low: float, high: float, step: float, words: str = "", still: bool = False
) -> Any:
    """A field for a number between two ends; whole where the default is."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, words, low, high, step, still=still)})


def choice(default: str, label: str, options: Mapping[str, str], words: str = "", still: bool = False) -> Any:
    """A field for one of several words."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, words, options=options, still=still)})


def clock(words: str = "share of the time that has passed") -> Any:
    """A field for the instant that is looked at, which "play" moves."""
    return number(1.0, "instant", 0.0, 1.0, 0.01, words, still=True)


def text(
    label: str, words: str = "", still: bool = False, kind: Literal["", "one", "several", "positions"] = ""
) -> Any:
    """A field for a few characters, empty by default; the page that uses it checks what they mean."""
    return dataclasses.field(default="", metadata={"setting": Setting(label, words, still=still, kind=kind)})


def joined(names: Iterable[str]) -> str:
    """Several names as the text of one setting."""
    return "|".join(quote(name, safe="/ ") for name in names)


def parted(written: str) -> list[str]:
    """The names in the text of a setting, each once."""
    return list(dict.fromkeys(unquote(name) for name in written.split("|") if name))


def settings(view: View | type[View]) -> dict[str, Setting]:
    """The settings of a view or of its class, by name."""
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(view)}


def read(kind: type[View], name: str, given: object) -> Value:
    """One value, checked against its setting; anything else is refused in one sentence."""
    setting = settings(kind)[name]
    default = next(field.default for field in dataclasses.fields(kind) if field.name == name)
    written = str(given).strip()
    if not isinstance(default, int | float):
        return _read_text(setting, written)
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    label, whole = _label(setting), isinstance(default, int)
    if not setting.low <= value <= setting.high or (whole and value != int(value)):
        what = "a whole number" if whole else "a number"
        raise SaddlesError(
            f"{label} must be {what} from {setting.low:g} to {setting.high:g}; got {written[:QUOTED]!r}. "
            f"The default is {default:g}."
        )
    return int(value) if whole else value


def _label(setting: Setting) -> str:
    return setting.label[:1].upper() + setting.label[1:]


def _read_text(setting: Setting, written: str) -> str:
    label = _label(setting)
    if setting.options is not None and written not in setting.options:
        raise SaddlesError(f"{label} must be one of {', '.join(setting.options)}; got {written[:QUOTED]!r}.")
    if len(written) > LONGEST or not written.isprintable():
        raise SaddlesError(
            f"{label} must have at most {LONGEST} printable characters; got {len(written)} characters, "
            f"{written[:QUOTED]!r}."
        )
    return written


def from_link(kind: type[V], query: str | Mapping[str, str]) -> tuple[V, dict[str, str]]:
    """The view of a link, and what was refused of it: setting -> sentence (defaults stand in)."""
    given = dict(parse_qsl(query, keep_blank_values=True)) if isinstance(query, str) else query
    known, values, refused = settings(kind), {}, {}
    for name, value in given.items():
        if name not in known:
            refused[name] = f"This page has no setting {name[:QUOTED]!r}. Its settings are {', '.join(known)}."
            continue
        try:
            values[name] = read(kind, name, value)
        except SaddlesError as error:
            refused[name] = str(error)
    return kind(**values), refused


def to_link(page: str, view: View) -> str:
    """The address that restores a view: what differs from the defaults, exactly."""
    changed = [
        (field.name, repr(value) if isinstance(value, float) else str(value))
        for field in dataclasses.fields(view)
        if (value := getattr(view, field.name)) != field.default
    ]
    return f"/{page}" + (f"?{urlencode(changed)}" if changed else "")


def computed(view: View) -> tuple[Value, ...]:
    """The values on which the numbers depend: views that share them share their trajectories."""
    return tuple(getattr(view, name) for name, setting in settings(view).items() if not setting.still)
