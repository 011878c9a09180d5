"""Markup in which everything is escaped unless it was made here.

    tag("p", "seed ", record["seed"], class_="soft")

gives an `Html`, and whatever is put into it that is not an `Html` itself is text: `<script>` in a record is shown, not
run. There is no other way to make markup in the reports.
"""

import html
from collections.abc import Iterable

_EMPTY = frozenset({"br", "img", "meta"})
"""Elements without an end."""


class Html(str):
    """Markup; any other text is escaped where it becomes part of it."""

    __slots__ = ()

    def __add__(self, other: str) -> "Html":
        return join([self, other])

    def __format__(self, spec: str) -> str:
        raise TypeError("Markup is put together by `tag` and `join`, which escape, and not by formatting.")


def tag(element: str, /, *parts: object, **attributes: object) -> Html:
    """An element; `class_` and `data_name` stand for class and data-name, and None leaves an attribute out."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    end = "" if element in _EMPTY else f"</{element}>"
    return Html(f"<{element}{''.join(words)}>{str.__str__(join(parts))}{end}")


def join(parts: Iterable[object], between: str = "") -> Html:
    """Markup and text one after another, the text escaped."""
    escaped = (str.__str__(part) if isinstance(part, Html) else html.escape(str(part), quote=True) for part in parts)
    return Html(between.join(escaped))
