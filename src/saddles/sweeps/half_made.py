"""Arrays that a crash or a full disk left half made: nothing in them counts, and the next process removes them."""

import json
import shutil
from pathlib import Path
from typing import Any

from saddles.runtime.checksums import Checksums

DIMS = "_ARRAY_DIMENSIONS"
"""Where xarray looks for the names of an array's axes (Zarr format 2)."""


def remove_half_made(folder: Path, checksums: Checksums) -> None:
    """Remove arrays that are not listed for readers yet and lack the names of their axes, which are written last."""
    listed = _read(folder / ".zmetadata").get("metadata")
    if not isinstance(listed, dict):
        return  # damaged, and told as that
    for home in [home for home in folder.iterdir() if home.is_dir()]:
        whole = (home / ".zarray").exists() and DIMS in _read(home / ".zattrs")
        # No chunk is written before the names are, so that anything else in it is not of this sweep.
        ours = all(file.name.startswith((".zarray", ".zattrs")) for file in home.iterdir())
        if not whole and ours and f"{home.name}/.zarray" not in listed:
            for file in home.iterdir():
                checksums.note(file.relative_to(folder).as_posix(), None)
            shutil.rmtree(home)


def _read(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
