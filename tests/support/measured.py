"""Measured numbers in the text of a page, and the stored records that the text refers to.

A record is an entry of docs/results/FILE.json: a command, a machine, a date, values. Text refers to it by a link,
[any words](results/FILE.json#KEY), which covers its paragraph and the tables and lists up to the next paragraph.
A comment `<!-- settings -->` says that the numbers of the next block are chosen, not measured: tolerances of tests,
sizes, constants of the papers.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from doc_pages import ROOT
from markdown_it import MarkdownIt

RESULTS = ROOT / "docs" / "results"
_PARSER = MarkdownIt("commonmark").enable("table")
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
NUMBER = re.compile(rf"(?<![\w.,^_/])(?:{_DIGITS})(?:e[−+-]?\d+)?(?![\w]|\.\d)")
UNIT = re.compile(r"\s?(%|‰|(?:s|ms|min|minutes|seconds|hours|MiB|GiB|MB|GB|Gflop|GFLOP|Mflop|times|processor)\b)")
NAMED = re.compile(
    r"(?:\b(?:Figures?|Theorems?|Lemmas?|Corollary|Assumptions?|[Ss]ections?|[Ee]quations?|Algorithm|Tables?|[Aa]ppendix|"
    r"Python|JAX|torch|PyTorch|transformers|version)|=|≈|\bD\.|\bC\.)[ (]*(?:[\dA-Z.,()e\-− ]|and|to)*$"
)
"""What stands before a number that names or sets something: Figure 2, c = 5, (4.3)."""


@dataclass(frozen=True)
class Passage:
    """A paragraph, list item or table: its text without code, and the records that cover it."""

    line: int
    text: str
    records: tuple[str, ...]
    settings: bool

    def numbers(self) -> list[str]:
        """Numbers that look measured: with a decimal point, an exponent, a unit, or as `n of m`."""
        found = []
        for match in NUMBER.finditer(self.text):
            before, after = self.text[: match.start()], self.text[match.end() :]
            word = match[0]
            counted = re.match(r" of (?:the )?\d", after) or re.search(r"\d of (?:the )?$", before)
            if not ("." in word or "e" in word or UNIT.match(after) or counted):
                continue
            equation = before.endswith("(") and after.startswith(")")
            if not equation and not NAMED.search(before[-60:].split(": ")[-1]):
                found.append(word)
        return found


def passages(page: Path) -> list[Passage]:
    """The page in order. A link covers what follows it up to the next paragraph; a comment covers the next block."""
    found: list[Passage] = []
    settings, covering, lists, line = False, (), 0, 0
    cells: list[tuple[str, tuple[str, ...]]] | None = None
    for token in _PARSER.parse(page.read_text("utf-8")):
        if token.type == "html_block":
            settings = "settings" in token.content
        elif token.type == "heading_open":
            settings, covering = False, ()
        elif token.type == "table_open":
            cells, line = [], (token.map or [0])[0] + 1
        elif token.type == "table_close":
            own = tuple(place for _, places in cells or () for place in places)
            found.append(Passage(line, "\n".join(text for text, _ in cells or ()), covering + own, settings))
            settings, cells = False, None
        elif token.type.endswith("list_open"):
            lists += 1
        elif token.type.endswith("list_close"):
            lists -= 1
            settings = settings and lists > 0
        elif token.type == "inline" and cells is not None:
            cells.append(_read(token.children or []))
        elif token.type == "inline" and token.level <= 1 + 2 * lists:
            text, own = _read(token.children or [])
            if not text:  # an image alone
                continue
            covering = covering if lists else own
            found.append(Passage((token.map or [0])[0] + 1, text, covering + own, settings))
            settings = settings and lists > 0
    return found


def _read(children: list[Any]) -> tuple[str, tuple[str, ...]]:
    text, records, skip = "", [], False
    for child in children:
        if child.type == "link_open":
            place = str(child.attrGet("href"))
            skip = place.startswith(("results/", "docs/results/"))
            if skip:
                records.append(place.removeprefix("docs/").removeprefix("results/"))
        elif child.type == "link_close":
            skip = False
        elif child.type == "text" and not skip:
            text += child.content
        elif child.type == "softbreak":
            text += " "
        elif child.type == "code_inline":
            text += "`…`"
    return re.sub(r"\$[^$]*\$", "", text), tuple(records)


@cache
def record(place: str) -> dict[str, Any]:
    """The record that FILE.json#KEY names."""
    file, _, key = place.partition("#")
    found: dict[str, Any] = json.loads((RESULTS / file).read_text("utf-8"))
    return found["records"][key]


@cache
def stored(place: str) -> tuple[float, ...]:
    """Every number in a record: its values, its settings, its words."""
    return tuple(value(word) for word in NUMBER.findall(_words(record(place))))


def _words(thing: Any) -> str:
    if isinstance(thing, dict):
        return " ; ".join(f"{key} ; {_words(part)}" for key, part in thing.items())
    if isinstance(thing, list):
        return " ; ".join(map(_words, thing))
    return str(thing)


def value(word: str) -> float:
    """The number a word stands for."""
    return float(word.replace(",", "").replace("−", "-"))


def agrees(word: str, numbers: tuple[float, ...]) -> bool:
    """Whether one of the stored numbers, or a hundred times it, reads like this when rounded to as many digits."""
    shown = value(word)
    mantissa, _, exponent = word.replace(",", "").partition("e")
    unit = 10.0 ** (-len(mantissa.partition(".")[2]) + int(exponent.replace("−", "-") or 0))
    return any(abs(abs(n) * scale - shown) <= 0.5000001 * unit for n in numbers for scale in (1, 100))
