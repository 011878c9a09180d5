"""Check a built site: nothing is loaded from elsewhere, and every link inside leads somewhere.

python docs/check_site.py docs/_build/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
QUIET = {"canonical", "next", "prev", "search", "index"}


class Page(HTMLParser):
    """What a page loads, what it links to, and where it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag in LOADS and LOADS[tag] in found and not (tag == "link" and found.get("rel") in QUIET):
            self.loads.append(found[LOADS[tag]])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])


def faults(root: Path) -> list[str]:
    """One sentence for each thing that is wrong."""
    pages = {
        file: Page(file.read_text("utf-8")) for file in sorted(root.rglob("*.html")) if "_static" not in file.parts
    }
    wrong = []
    for file, page in pages.items():
        where = file.relative_to(root)
        wrong += [f"{where} loads {place}" for place in page.loads if urlsplit(place).netloc]
        for link in (*page.loads, *page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.exists():
                wrong.append(f"{where} links to {link}, which is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                wrong.append(f"{where} links to {link}, which has no such place")
    for style in root.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")]+)", style.read_text("utf-8"))
        wrong += [f"{style.relative_to(root)} loads {place}" for place in outside]
    return wrong


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "every link leads somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
