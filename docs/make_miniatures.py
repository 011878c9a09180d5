"""The moving miniatures of the explorer's front page: `python docs/make_miniatures.py` computes them anew.

They ship with the package, one line for each room, so that the front page waits for nothing.
"""

import json

from saddles.explorer.site import KEPT, PAGES, miniature


def main() -> None:
    """Write miniatures.json."""
    lines = [
        f"{json.dumps(page.name)}: {json.dumps(miniature(page), ensure_ascii=False, separators=(',', ':'))}"
        for page in PAGES
    ]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
