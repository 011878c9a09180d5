"""What Windows lacks and refuses, imitated: runs are stored there all the same."""

import contextlib
import errno
import os
import pathlib
from types import SimpleNamespace

import pytest
import toy_experiment

from saddles.core import provenance
from saddles.core.engines import embedded, engine
from saddles.core.run import run_experiment
from saddles.runtime import checksums, files
from saddles.runtime.checksums import NAME, Checksums, seal
from saddles.runtime.files import LOCK, hold, new_folder, sync

ABSENT = ["O_NOFOLLOW", "O_CLOEXEC", "nice", "sched_getaffinity", "sysconf", "memfd_create", "getuid", "mkfifo"]


@pytest.fixture(autouse=True)
def windows(monkeypatch):
    """Names that `os` does not have there, no locks, and an open file or a folder that cannot be touched."""
    opened: dict[int, tuple[str, bool]] = {}
    real_unlink = pathlib.Path.unlink

    def open_(place, flags, mode=0o777, **rest):
        if os.path.isdir(place):
            raise PermissionError(errno.EACCES, "a folder cannot be opened")
        descriptor = os.open(place, flags, mode, **rest)
        opened[descriptor] = (os.path.abspath(place), not flags & (os.O_WRONLY | os.O_RDWR))
        return descriptor

    def close(descriptor):
        opened.pop(descriptor, None)
        os.close(descriptor)

    def fsync(descriptor):
        if opened.get(descriptor, ("", False))[1]:
            raise OSError(errno.EBADF, "opened for reading only")
        os.fsync(descriptor)

    def replace(source, target, **rest):
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "a folder cannot be replaced")
        os.replace(source, target, **rest)

    def unlink(self, missing_ok=False):
        if os.path.abspath(self) in {place for place, _ in opened.values()}:
            raise PermissionError(errno.EACCES, "it is open")
        real_unlink(self, missing_ok=missing_ok)

    def kill(process, number):
        raise AssertionError(f"signal {number} is Ctrl-C, or the end of process {process}")

    ours = {"open": open_, "close": close, "fsync": fsync, "replace": replace, "kill": kill}
    imitated = SimpleNamespace(**{name: value for name, value in vars(os).items() if name not in ABSENT} | ours)
    for module in (files, checksums, provenance, engine, embedded):
        monkeypatch.setattr(module, "os", imitated)
    monkeypatch.setattr(pathlib.Path, "unlink", unlink)
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "WINDOWS", True)


def test_a_folder_is_held_and_let_go_even_after_an_error(tmp_path):
    for keep in (True, False):
        with contextlib.suppress(ZeroDivisionError), hold(tmp_path, keep=keep):
            assert (tmp_path / LOCK).exists()
            raise ZeroDivisionError
        assert (tmp_path / LOCK).exists() == keep


def test_a_new_folder_takes_the_place_of_an_empty_one(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    with new_folder(place) as draft:
        (draft / "a").write_text("1", "utf-8")
    assert (place / "a").read_text("utf-8") == "1"


def test_litter_of_another_process_stays(tmp_path):
    litter = tmp_path / ".run-1-01234567"
    litter.mkdir()
    os.utime(litter, (0, 0))
    with new_folder(tmp_path / "run"):
        pass
    assert litter.exists()


def test_files_and_folders_are_synced_as_far_as_the_system_can(tmp_path):
    (tmp_path / "a").write_text("1", "utf-8")
    sync(tmp_path)
    sync(tmp_path / "a")
    seal(tmp_path)
    lines = Checksums(tmp_path)
    lines.note("a", b"2")
    lines.commit()
    lines.close()
    assert b"\r" not in (tmp_path / NAME).read_bytes()


def test_the_machine_is_described_as_far_as_it_is_known():
    assert provenance.machine()["memory_gib"] is None
    assert engine.cores() >= 1
    assert embedded.memory_of(2**30) is None


def test_a_run_is_stored_and_found_again(tmp_path):
    done = run_experiment(toy_experiment.ROW, out=tmp_path / "run")
    again = run_experiment(toy_experiment.ROW, out=tmp_path / "run", planned=True)
    assert (done.computed, again.computed) == (True, False)
    assert not (tmp_path / "run" / LOCK).exists()
