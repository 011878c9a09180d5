"""Digests of the files of a folder, in `.checksums` inside it, so that damage is noticed.

One line for each file that is about to be written or removed, and a line `=` once all before it are on disk:

    4f1c02a9 "loss/0.0"
    - "own_time/0"
    =

The checksum is a CRC-32, which tells every flipped bit and every burst of damage up to 32 bits, and misses one in 2³²
of any other; it is several times faster than a cryptographic digest. It is noted before the file is replaced. So a
reader who hashes a file and then reads the lines finds its checksum there, even while another process writes, and a
crash in between leaves a file that one of the lines fits.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from saddles.runtime.files import open_own, sync, write_text

NAME = ".checksums"
GONE, COMMIT = "-", "="
BLOCK = 2**20
"""Bytes that are read at a time."""

LOOKS = 5
"""How often a file that does not fit is looked at again: another process may be replacing it."""
LOOK_SECONDS = 0.05
"""Time between looks; a chunk is replaced within milliseconds."""


def digest(data: bytes) -> str:
    """Sixteen characters that stand for some bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def checksum(data: bytes) -> str:
    """Eight characters that tell damage."""
    return f"{zlib.crc32(data):08x}"


class Checksums:
    """The checksums of a folder, for the one process that writes to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = open_own(folder / NAME, append=True)
        self._doubtful: set[str] = set()

    def note(self, name: str, data: bytes | None) -> None:
        """Say what a file is about to hold; None where it is about to be removed."""
        self._write(f"{GONE if data is None else checksum(data)} {json.dumps(name)}\n")

    @contextlib.contextmanager
    def changing(self, name: str, data: bytes | None) -> Iterator[None]:
        """`note` around the change itself; where that fails, `commit` looks at what the file holds."""
        self.note(name, data)
        try:
            yield
        except BaseException:
            self._doubtful.add(name)
            raise

    def commit(self) -> None:
        """Say that everything noted so far is on disk."""
        for name in sorted(self._doubtful):
            self._write(f"{_hashed(self._folder / name)} {json.dumps(name)}\n")
        self._doubtful.clear()
        self._write(f"{COMMIT}\n")
        os.fsync(self._lines)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._lines)

    def _write(self, line: str) -> None:
        data, before = line.encode(), os.fstat(self._lines).st_size
        if os.write(self._lines, data) != len(data):
            os.ftruncate(self._lines, before)  # a part of a line would be joined to the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def seal(folder: Path) -> None:
    """Write the checksums of a folder as it is, in the place of older ones."""
    lines = [f"{_hashed(folder / name)} {json.dumps(name)}\n" for name in _files(folder)]
    write_text(folder / NAME, "".join([*lines, f"{COMMIT}\n"]))
    sync(folder / NAME)


def condense(folder: Path) -> None:
    """Keep one line for each file, and what was noted without being committed."""
    rows = _read(folder)
    if NAME in rows:
        return  # damaged: it stays as it is, for the next reader to tell
    kept = [f"{row.committed} {json.dumps(name)}\n" for name, row in rows.items() if row.committed != GONE]
    later = [f"{found} {json.dumps(name)}\n" for name, row in rows.items() for found in row.noted]
    write_text(folder / NAME, "".join([*kept, f"{COMMIT}\n", *later]), durable=True)


def damaged(folder: Path) -> list[str]:
    """Names of files that differ from their checksums, or are missing; empty where the folder has no checksums."""
    if not (folder / NAME).exists():
        return []
    bad = _mismatches(folder, None)
    for _ in range(LOOKS):
        if not bad:
            break
        time.sleep(LOOK_SECONDS)
        bad = _mismatches(folder, bad)
    return bad


@dataclass
class _Expected:
    """What a file may hold: what was committed, or what was noted after that."""

    committed: str = GONE
    noted: list[str] = field(default_factory=list)

    def fits(self, found: str) -> bool:
        return found == self.committed or found in self.noted


def _mismatches(folder: Path, names: list[str] | None) -> list[str]:
    """Hash the files first and read the lines after that: the other order would miss what is written in between."""
    found = {name: _hashed(folder / name) for name in (_files(folder) if names is None else names)}
    expected = _read(folder)
    wanted = expected if names is None else {name: expected.get(name, _Expected()) for name in names}
    return [name for name, row in wanted.items() if not row.fits(found.get(name) or _hashed(folder / name))]


def _read(folder: Path) -> dict[str, _Expected]:
    text = (folder / NAME).read_bytes()
    rows: dict[str, _Expected] = {}
    waiting: dict[str, _Expected] = {}
    try:
        lines, tail = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
        if tail.startswith(COMMIT.encode()) and tail != COMMIT.encode():  # no line that was cut short looks like this
            raise ValueError
        for line in lines.decode().split("\n")[:-1]:  # not `splitlines`, which ends lines at other characters too
            found, _, name = line.partition(" ")
            if found == COMMIT and not name:
                for row in waiting.values():
                    row.committed, row.noted = row.noted[-1], []
                waiting = {}
            else:
                key = json.loads(name)
                if not isinstance(key, str) or (found != GONE and len(bytes.fromhex(found)) != 4):
                    raise ValueError
                waiting[key] = rows.setdefault(key, _Expected())
                waiting[key].noted.append(found)
    except (ValueError, RecursionError):
        return {**rows, NAME: _Expected("")}  # the list itself is damaged
    return rows


def _hashed(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            total = 0
            while block := stream.read(BLOCK):
                total = zlib.crc32(block, total)
            return f"{total:08x}"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return GONE


def _files(folder: Path) -> list[str]:
    """Files below a folder, with their paths in it; links are not followed."""
    found = []
    for place, _, names in os.walk(folder):
        home = Path(place).relative_to(folder)
        found += [(home / name).as_posix() for name in names if not name.endswith(".partial")]
    return sorted(name for name in found if name != NAME)
