"""A view: the settings of a room as one frozen object, which a link carries and restores.

A room's view is a frozen dataclass whose fields are made by `number`, `choice` and `text`. Links hold what differs
from the defaults; what a link or a field brings is checked, and refused in one sentence.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from saddles.errors import SaddlesError


class RefusedError(SaddlesError):
    """A view that cannot be shown because of one setting; the page says so beside it."""

    def __init__(self, setting: str, sentence: str) -> None:
        super().__init__(sentence)
        self.setting = setting


def refuse(setting: str, came: str, expected: str, hint: str) -> RefusedError:
    """The sentence of `SaddlesError.about`, beside a setting."""
    return RefusedError(setting, str(SaddlesError.about(came, expected, hint)))


V = TypeVar("V")
LONGEST = 300
"""Characters that a setting may have."""


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


def number(
    default: float, label: str, low: float, high: float, step: float, words: str = "", still: bool = False
) -> Any:
    """A field for a number between two ends; whole where the default is."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, words, low, high, step, still=still)})


def choice(default: str, label: str, options: Mapping[str, str], words: str = "", still: bool = False) -> Any:
    """A field for one of several words."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, words, options=options, still=still)})


def text(label: str, words: str = "", still: bool = False) -> Any:
    """A field for a few characters, empty by default; the room that uses it checks what they mean."""
    return dataclasses.field(default="", metadata={"setting": Setting(label, words, still=still)})


def settings(view: Any) -> dict[str, Setting]:
    """The settings of a view or of its class, by name."""
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(view)}


def read(kind: type[V], name: str, given: Any) -> Any:
    """One value, checked against its setting; anything else is refused in one sentence."""
    setting = settings(kind)[name]
    default = next(field.default for field in dataclasses.fields(kind) if field.name == name)  # type: ignore[arg-type]
    came = str(given).strip()
    if isinstance(default, str):
        return _read_words(setting, came)
    try:
        value = float(came)
    except ValueError:
        value = math.nan
    whole = isinstance(default, int)
    if not setting.low <= value <= setting.high or (whole and value != int(value)):
        what = "a whole number" if whole else "a number"
        raise SaddlesError.about(
            f"{setting.label}: {came[:40]!r} came", f"{what} from {setting.low:g} to {setting.high:g} is needed",
            f"{default:g} is the default",
        )  # fmt: skip
    return int(value) if whole else value


def _read_words(setting: Setting, came: str) -> str:
    if setting.options is not None and came not in setting.options:
        raise SaddlesError.about(
            f"{setting.label}: {came[:40]!r} came", f"it is one of {', '.join(setting.options)}", "choose one"
        )
    if len(came) > LONGEST or not came.isprintable():
        raise SaddlesError.about(
            f"{setting.label}: {len(came)} characters came", f"at most {LONGEST} printable ones are read", "shorten it"
        )
    return came


def from_link(kind: type[V], query: str | Mapping[str, str]) -> tuple[V, dict[str, str]]:
    """The view that a link asks for, and what was refused of it: setting -> sentence (defaults stand in)."""
    asked = dict(parse_qsl(query, keep_blank_values=True)) if isinstance(query, str) else dict(query)
    known, found, refused = settings(kind), {}, {}
    for name, given in asked.items():
        if name not in known:
            refused[name] = f"the link's setting {name[:40]!r} came, but this room has {', '.join(known)}; it is left."
            continue
        try:
            found[name] = read(kind, name, given)
        except SaddlesError as error:
            refused[name] = str(error)
    return kind(**found), refused


def to_link(room: str, view: Any) -> str:
    """The address that restores a view: what differs from the defaults, exactly."""
    changed = [
        (field.name, repr(value) if isinstance(value, float) else str(value))
        for field in dataclasses.fields(view)
        if (value := getattr(view, field.name)) != field.default
    ]
    return f"/{room}" + (f"?{urlencode(changed)}" if changed else "")


def computed(view: Any) -> tuple[Any, ...]:
    """The values on which the numbers depend: views that share them share their trajectories."""
    return tuple(getattr(view, name) for name, setting in settings(view).items() if not setting.still)
