"""Docstrings are plain text with `names` and formulas; this makes them safe to read as reStructuredText.

`x` becomes literal, so do indented formulas, and the characters that mean something there (*, |, a last _) are escaped.
"""

import re
from typing import Any

_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:$")


def plain(lines: list[str]) -> list[str]:
    """The lines of a docstring, ready for napoleon and docutils."""
    made: list[str] = []
    literal = False
    for at, line in enumerate(lines):
        indented = line.startswith("    ") and bool(line.strip())
        before = made[-1] if made else ""
        if literal and (indented or not line.strip()):
            made.append(line)
            continue
        literal = indented and not before.strip() and _follows_text(lines, at)
        if literal:
            made += ["::", "", line]
            continue
        made.append(_escaped(line))
    return made


def _follows_text(lines: list[str], at: int) -> bool:
    above = [line for line in lines[:at] if line.strip()]
    return bool(above) and not above[-1].startswith(" ") and not _SECTION.match(above[-1])


def _escaped(line: str) -> str:
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(_literal(part) if part.startswith("`") else _safe(part) for part in parts)


def _literal(part: str) -> str:
    return f"``{part.strip('`')}``"


def _safe(text: str) -> str:
    return re.sub(r"([*|])", r"\\\1", re.sub(r"(?<=\w)_(?!\w)", r"\\_", text))


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if not name.startswith("saddles"):
        return
    lines[:] = plain(lines)
    if what in ("property", "attribute"):
        lines[:0] = ["..", ""]  # an empty comment: napoleon would read "A, shape (d,): …" as a type and its text


def setup(app: Any) -> dict[str, bool]:
    """Come before napoleon."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
