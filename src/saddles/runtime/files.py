"""Files and folders that are written whole or not at all, never over something else, and with errors that explain.

Everything that saddles stores goes through here. A file or folder is first written under a hidden name beside its
place and then moved there in one step of the file system, so that a reader or a resumed run never sees half of it.
"""

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from saddles.errors import SaddlesError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

WINDOWS = os.name == "nt"
"""Where open files cannot be removed, nor folders opened or replaced."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of errors that say that a disk, or a user's share of it, is full."""


@contextlib.contextmanager
def explained(
    place: str | os.PathLike[str], hint: str = "Choose another place, or make room", only: Collection[int] | None = None
) -> Iterator[None]:
    """Turn an OSError inside this block (full disk, no permission) into one sentence about `place`.

    Args:
        only: numbers of the errors that are meant; others pass.
    """
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        raise SaddlesError(f"{place} cannot be written ({error.strerror or error}). {hint}.") from error


def as_path(path: object, name: str = "path") -> Path:
    """The path that a caller gave as its argument `name`."""
    if not isinstance(path, str | os.PathLike):
        raise SaddlesError.must_be(name, "the name of a file or folder", path)
    return Path(path)


def exists(place: Path) -> bool:
    """As `Path.exists`, which since Python 3.14 says no where the system refuses (a name that is too long)."""
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def refuse_existing(place: Path, hint: str = "Nothing is overwritten: choose another name") -> None:
    """Refuse a place where something is already; an empty folder is as good as nothing."""
    if "\0" in str(place):
        raise SaddlesError.must_be("path", "without the character NUL", str(place))
    if place.is_symlink() or (exists(place) and (not place.is_dir() or any(place.iterdir()))):
        raise SaddlesError(f"{place} already exists. {hint}.")


@contextlib.contextmanager
def new_file(place: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a draft for writing; it takes the place of `place` when the block ends without an error.

    Args:
        durable: wait until the bytes are on the disk (survives a power cut, costs milliseconds).
    """
    with new_path(place) as draft, draft.open("xb") as stream:
        yield stream
        if durable:
            stream.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def new_path(place: Path) -> Iterator[Path]:
    """A name for a draft, with the same ending; the file made there takes the place of `place`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(place)
    draft = draft.with_name(f"{draft.name}{place.suffix}")
    try:
        yield draft
        os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)


def write_text(place: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file, all or nothing."""
    with new_file(place, durable=durable) as stream:
        stream.write(text.encode("utf-8"))


def write_json(place: Path, facts: Mapping[str, object] | list[object], *, durable: bool = False) -> None:
    """Write JSON that a person can read, all or nothing."""
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # halves of a character, which UTF-8 cannot hold
        text = json.dumps(facts, indent=2)
    write_text(place, f"{text}\n", durable=durable)


@contextlib.contextmanager
def new_folder(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """A draft folder to fill; it becomes `place` when the block ends without an error.

    Args:
        replace: an older folder at `place` is removed first; by default it is an error unless it is empty.
    """
    if not replace:
        refuse_existing(place)
    draft = _empty_draft(place)
    try:
        yield draft
        if replace:
            shutil.rmtree(place, ignore_errors=True)
        elif WINDOWS and place.is_dir():
            place.rmdir()  # it is empty
        os.replace(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """A hidden folder beside a place, on its disk, for what is needed until that is written; removed at the end."""
    with explained(place):
        draft = _empty_draft(place)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _empty_draft(place: Path) -> Path:
    """A new folder beside a place; what a killed process left there is removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_litter(place)
    draft = _draft(place)
    draft.mkdir()
    return draft


def sync(place: Path) -> None:
    """Wait until a file or folder that exists is on the disk, and survives a power cut."""
    if WINDOWS and place.is_dir():
        return  # the file system's own business there
    handle = os.open(place, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_own(place: Path, *, append: bool = False) -> int:
    """A descriptor to write a file of our own, through no link, the bytes as they are given."""
    system = getattr(os, "O_BINARY", 0) if WINDOWS else os.O_NOFOLLOW
    return os.open(place, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0) | system, 0o666)


@contextlib.contextmanager
def hold(folder: Path, *, keep: bool = True) -> Iterator[None]:
    """Lock a folder for this process; the system lets go of it however the process ends.

    Drafts that a killed process left in the folder are removed: nobody else may be writing there.

    Args:
        keep: leave the lock's file there, for the next process; otherwise it is removed at the end.
    """
    try:
        with _locked(folder):
            for litter in folder.glob(".*"):
                if _DRAFT.search(litter.name):
                    _remove(litter)
            try:
                yield
            finally:
                if not keep and not WINDOWS:
                    (folder / LOCK).unlink(missing_ok=True)
    finally:
        if not keep and WINDOWS:  # it is closed by now
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    while True:
        descriptor = open_own(folder / LOCK)
        try:
            if fcntl is not None:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise SaddlesError(
                        f"Another process is writing to {folder}. Wait until it ends, or stop it first."
                    ) from error
                except OSError:
                    pass  # a file system without locks
            if _same_file(descriptor, folder / LOCK):
                try:
                    yield
                finally:
                    if fcntl is not None:  # forked processes (data loaders) keep the descriptor, but not the lock
                        with contextlib.suppress(OSError):
                            fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
            # The file was removed between opening and locking it: the lock that counts is on the next one.
        finally:
            os.close(descriptor)


def _same_file(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(place))
    except FileNotFoundError:
        return False


def refuse_links(folder: Path, what: str = "a stored trajectory") -> None:
    """Refuse a folder with links inside, which lead out of it, and with pipes or devices, which may never end."""
    for place, below, files in os.walk(folder):
        for name in (*below, *files):
            found = os.path.join(place, name)
            if os.path.islink(found):
                raise SaddlesError(
                    f"{found} is a link, and {what} may not have links inside. Put the file or folder itself there."
                )
        for name in files:
            found = os.path.join(place, name)
            if os.path.lexists(found) and not os.path.isfile(found):  # it may be gone since: a sweep goes on writing
                raise SaddlesError(f"{found} is not a file, and {what} has files only. Remove it.")


LOCK = ".lock"
_DRAFT = re.compile(r"^\..*-(\d+)-[0-9a-f]{8}(\.[^.]*)?$")
"""Names that `_draft` makes: the process number and eight random digits."""

LITTER_SECONDS = 3600.0
"""Age of a draft folder above which it is litter, if no process of this machine has its number."""


def _remove_litter(place: Path) -> None:
    """Remove drafts of the same place whose process was killed; drafts are filled within minutes."""
    for draft in place.parent.glob(f".{glob.escape(place.name)}-*"):
        made = _DRAFT.match(draft.name)
        with contextlib.suppress(OSError):
            if made and time.time() - draft.stat().st_mtime > LITTER_SECONDS and not _alive(int(made[1])):
                _remove(draft)


def _alive(process: int) -> bool:
    if WINDOWS:
        return True  # not known: signal 0 is Ctrl-C there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _draft(place: Path) -> Path:
    """A hidden name beside the place, on the same file system, that no other process uses."""
    return place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
