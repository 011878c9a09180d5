"""Files and folders that are written whole or not at all, never over something else, and with errors that explain.

Everything that saddles stores goes through here. A file or folder is first written under a hidden name beside its
place and then moved there in one step of the file system, so that a reader or a resumed run never sees half of it.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from saddles.errors import SaddlesError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


@contextlib.contextmanager
def explained(place: str | os.PathLike[str], hint: str = "Choose another place, or make room") -> Iterator[None]:
    """Turn an OSError inside this block (full disk, no permission) into one sentence about `place`."""
    try:
        yield
    except OSError as error:
        raise SaddlesError(f"{place} cannot be written ({error.strerror or error}). {hint}.") from error


def refuse_existing(place: Path, hint: str = "Nothing is overwritten: choose another name") -> None:
    """Refuse a place where something is already; an empty folder is as good as nothing."""
    if place.is_symlink() or (place.exists() and (not place.is_dir() or any(place.iterdir()))):
        raise SaddlesError(f"{place} already exists. {hint}.")


@contextlib.contextmanager
def new_file(place: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a draft for writing; it takes the place of `place` when the block ends without an error.

    Args:
        durable: wait until the bytes are on the disk (survives a power cut, costs milliseconds).
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(place)
    try:
        with draft.open("xb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)


def write_text(place: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file, all or nothing."""
    with new_file(place, durable=durable) as stream:
        stream.write(text.encode("utf-8"))


def write_json(place: Path, facts: Mapping[str, object] | list[object], *, durable: bool = False) -> None:
    """Write JSON that a person can read, all or nothing."""
    write_text(place, json.dumps(facts, indent=2, ensure_ascii=False) + "\n", durable=durable)


@contextlib.contextmanager
def new_folder(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """A draft folder to fill; it becomes `place` when the block ends without an error.

    Args:
        replace: an older folder at `place` is removed first; by default it is an error unless it is empty.
    """
    if not replace:
        refuse_existing(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(place)
    draft.mkdir()
    try:
        yield draft
        if replace:
            shutil.rmtree(place, ignore_errors=True)
        os.replace(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sync(place: Path) -> None:
    """Wait until a file or folder that exists is on the disk, and survives a power cut."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hold(folder: Path) -> IO[str]:
    """Lock a folder for this process; the system lets go of it however the process ends. Keep the handle."""
    handle = (folder / ".lock").open("w")
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.close()
            raise SaddlesError(
                f"Another process is writing to {folder}. Wait until it ends, or stop it first."
            ) from error
        except OSError:
            pass  # a file system without locks
    return handle


def _draft(place: Path) -> Path:
    """A hidden name beside the place, on the same file system, that no other process uses."""
    return place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
