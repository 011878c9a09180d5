"""Real data that every machine has: handwritten digits inside the package, and the sources of Python as text.

README.md beside this file states source and licence of the digits. The text is the modules of the standard library
that this interpreter runs with, so it differs between versions of Python: a result has its hash.
"""

import gzip
import hashlib
import sysconfig
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from saddles.errors import MissingDataError

DIGITS = Path(__file__).with_name("digits.csv.gz")
LEVELS = 16
"""The brightest pixel of the digits; the darkest is 0."""

EMBEDDED = {
    "digits": "1,797 handwritten digits, 8 × 8 pixels, inside the package",
    "python": "the sources of the Python standard library on this machine",
}
"""Data sets that need no download."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images as uint8 (1797, 8, 8), 255 the brightest, and the digit that each shows, in the order of the file."""
    with gzip.open(DIGITS, "rt") as rows:
        table = np.loadtxt(rows, delimiter=",", dtype=np.int64)
    pixels = np.round(255 / LEVELS * table[:, :-1]).astype(np.uint8)
    return pixels.reshape(-1, 8, 8), table[:, -1]


@cache
def python_text() -> bytes:
    """The top-level modules of the standard library, one after another.

    They are ordered by a checksum of their names, so that the beginning and the end of the text are alike.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"), key=lambda file: (zlib.crc32(file.name.encode()), file.name))
    text = b"".join(file.read_bytes() for file in files)
    if not text:
        raise MissingDataError(
            f"This Python keeps no sources of its standard library in {folder}. Name a text file or another data set."
        )
    return text


def digest(name: str) -> str:
    """SHA-256 of an embedded data set as it is on this machine."""
    return hashlib.sha256(DIGITS.read_bytes() if name == "digits" else python_text()).hexdigest()
