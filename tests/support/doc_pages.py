"""The pages that people read, taken apart: code blocks, links, headings."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
GENERATED = ("_build", "gallery")
_PARSER = MarkdownIt("commonmark").enable("table")


def pages() -> list[Path]:
    """Every Markdown file of the repository that is written by hand."""
    own = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.relative_to(ROOT).parts[1] not in GENERATED]
    return [*sorted(ROOT.glob("*.md")), *own]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A block of code: language (none where it is only indented), text, and what an HTML comment before it gives."""

    page: Path
    line: int
    language: str
    code: str
    given: tuple[str, ...]
    slow: bool

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found, comment = [], ""
    for token in _PARSER.parse(page.read_text("utf-8")):
        if token.type == "html_block":
            comment = token.content
            continue
        if token.type in ("fence", "code_block"):
            given = re.search(r"given: ([^>]*?)\s*-->", comment)
            names = tuple(word.strip() for word in given[1].split(",")) if given else ()
            line = (token.map or [0])[0] + 1
            found.append(Block(page, line, token.info.strip(), token.content, names, "slow" in comment))
        comment = ""
    return found


def links(page: Path) -> Iterator[str]:
    """Where links and images of a page lead."""
    for token in _PARSER.parse(page.read_text("utf-8")):
        for child in token.children or ():
            place = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if place:
                yield unquote(str(place))


def anchors(page: Path) -> set[str]:
    """The fragments that headings of a page answer to, as code hosts and MyST write them."""
    tokens = _PARSER.parse(page.read_text("utf-8"))
    found = set()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return found
