"""Write the explorer's static rooms for the site, unless those that are there were made by the same sources.

python docs/rooms.py docs/_build/html/rooms
"""

import hashlib
import shutil
import sys
from pathlib import Path

import saddles
from saddles.explorer.site import PAGES, export

SOURCE = Path(saddles.__file__).parent
ROOMS = ("explorer", "core", "solvers", "measures", *(page.name for page in PAGES))
"""Folders of the package on which the rooms depend."""
MARK = "sources.txt"


def digest() -> str:
    """A name for the sources of the rooms."""
    files = sorted(
        file for room in ROOMS for file in (SOURCE / room).rglob("*") if file.suffix in (".py", ".js", ".css", ".toml")
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main(place: Path) -> None:
    """Write the rooms."""
    now, mark = digest(), place / MARK
    if mark.is_file() and mark.read_text("utf-8") == now:
        print("rooms: nothing has changed")
        return
    shutil.rmtree(place, ignore_errors=True)
    export(place, docs="../")
    mark.write_text(now, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
