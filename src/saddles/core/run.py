"""Run an experiment into a folder that survives interruption.

DIR/run.json          settings, versions, machine, wall time, status; written first and last
DIR/parts/            finished pieces and checkpoints, reused by resume, removed at the end; pieces of less than
                      a second are written once a minute, and where the run is interrupted or fails
DIR/trajectory.zarr   the result
DIR/claims.json       the verdicts
DIR/figure.png, .svg, .pdf  the figure
DIR/traceback.txt     in the place of these three, where an experiment that is not of saddles raised an error
"""

import contextlib
import hashlib
import itertools
import json
import os
import shlex
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saddles
from saddles.core.claim import Claim, read_claims, write_claims
from saddles.core.data import require_data
from saddles.core.drawings import mark_smoke_test, save_drawing
from saddles.core.embedded import digest as embedded_digest
from saddles.core.experiment import Context, Drawing, Experiment, S, as_dict, find, registry
from saddles.core.provenance import machine, versions
from saddles.core.status import FINISHED, Ending, Status, status_of
from saddles.core.store import load, save
from saddles.core.trajectory import SCHEMA, Trajectory
from saddles.core.validation import check_seed
from saddles.errors import SaddlesError, first_line
from saddles.runtime.checksums import NAME as CHECKSUMS
from saddles.runtime.checksums import digest
from saddles.runtime.files import FULL, as_path, exists, explained, hold, refuse_links, write_text
from saddles.runtime.interrupts import plain_interrupts
from saddles.runtime.packages import extra_for
from saddles.runtime.records import Types, read_record, write_record

RECORD: Types = {
    "experiment": str, "size": str, "seed": int, "settings": dict, "status": str, "versions": dict,
    "wall_time_s": (int, float),
}  # fmt: skip
"""What run.json must hold."""

FILES = ("claims.json", "figure.png", "figure.svg", f"trajectory.zarr/{CHECKSUMS}")
"""What run.json has digests of; the last has those of the arrays."""
LATER_FILES = ("figure.pdf",)
"""The same of files that older runs do not have."""
TRACEBACK = "traceback.txt"
SHORT, UNSAVED = 1.0, 60.0
"""Seconds of computing below which a piece is kept in memory, and those that may be lost to a crash."""


@dataclass(frozen=True)
class Run:
    """A run's folder and what is in it."""

    folder: Path
    record: Mapping[str, Any]
    claims: list[Claim]
    computed: bool
    """False where a finished identical run was found and shown."""

    @property
    def trajectory(self) -> Trajectory:
        """The stored trajectory."""
        return load(self.folder)

    @property
    def failed(self) -> list[Claim]:
        """Claims whose verdict is `fails`."""
        return [claim for claim in self.claims if claim.verdict == "fails"]


def run_experiment(
    experiment: Experiment | str,
    *,
    size: str | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    planned: bool = False,
) -> Run:
    """Run an experiment, or show the finished identical run.

    Args:
        size: one of the experiment's sizes; None is its default.
        seed: all randomness of the experiment derives from it.
        changes: settings that differ from the size's.
        out: folder to write; it must not exist or be empty. None: root/LAB/NAME/HASH.
        fresh: compute again, in a new folder, even if the identical run is there.
        planned: `out` is from `planned_folder` and may hold this very run already.
    """
    row, seed = find(experiment), check_seed(seed)
    size = size or row.default
    settings = row.at_hand(size, changes)
    require_data(row.data(settings))
    if planned and out is not None:
        folder = as_path(out, "out")
    else:
        folder = planned_folder(row, size=size, seed=seed, changes=changes, out=out, root=root, fresh=fresh)
    record = _record(folder)
    if record is not None and Status.parse(record["status"]).ok:
        return _finished(folder, record)
    return _carry_out(row, size, seed, settings, folder)


def resume(folder: str | os.PathLike[str]) -> Run:
    """Resume an interrupted run; a finished one is shown."""
    place = as_path(folder, "folder")
    record = _record(place)
    if record is None:
        raise SaddlesError(f"{folder} holds no run.json. Give the folder of an interrupted run.")
    if Status.parse(record["status"]).ok:
        load(place)  # refuses a trajectory that is gone or damaged
        return _finished(place, record)
    begun, now = record["versions"].get("saddles", "of unknown version"), versions()["saddles"]
    if begun != now:
        raise SaddlesError(
            f"{folder} was started with saddles {begun} and cannot be resumed with {now}. Start again with --fresh."
        )
    row = find(record["experiment"])
    settings = row.settings(record["size"], record["settings"])
    return _carry_out(row, record["size"], record["seed"], settings, place)


def _finished(folder: Path, record: dict[str, Any]) -> Run:
    """A run that is shown: every file as it was written."""
    known = registry().get(record["experiment"])
    if known is not None:
        known.settings(record["size"])  # refuses a size that it does not have
    digests = record.get("digests")
    known_digests: dict[str, Any] = digests if isinstance(digests, dict) else {}
    later = tuple(name for name in LATER_FILES if name in known_digests)
    for name in FILES + later if known_digests else ():  # older runs have none
        file = folder / name
        if not file.is_file() or digest(file.read_bytes()) != known_digests.get(name):
            raise SaddlesError(
                f"{file} is damaged: it differs from its checksum or is missing. Restore it from a copy, or compute "
                "the run again with --fresh."
            )
    return Run(folder, record, read_claims(folder / "claims.json"), computed=False)


def identity(name: str, settings: Mapping[str, Any], seed: int) -> str:
    """Ten characters that stand for what would be computed."""
    facts = {"name": name, "settings": dict(settings), "seed": seed, "schema": SCHEMA, "version": saddles.__version__}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]


def planned_folder(
    experiment: Experiment | str,
    *,
    size: str | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    fresh: bool = False,
) -> Path:
    """The folder `run_experiment` would write with the same arguments."""
    row, seed = find(experiment), check_seed(seed)
    size = size or row.default
    settings = row.at_hand(size, changes)
    if out is not None:
        place = as_path(out, "out")
        if _first_process() and exists(place) and (not place.is_dir() or any(place.iterdir())):
            raise SaddlesError(f"{out} already exists. Choose another --out, or resume it with --resume.")
        return place
    facts = {**as_dict(settings), "size": size}
    if row.embedded(settings):  # the sources of another Python are other data
        facts["data"] = _digests(row, settings)
    if code := row.code:
        facts["code"] = code
    first = Path(root) / row.name / identity(row.name, facts, seed)
    if not fresh:
        return first
    names = (first if k == 1 else first.with_name(f"{first.name}-{k}") for k in itertools.count(1))
    return next(place for place in names if not place.exists())


def _digests(row: Experiment[S], settings: S) -> dict[str, str]:
    return {name: embedded_digest(name) for name in row.embedded(settings)}


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        return read_record(folder / "run.json", RECORD, "Restore it from a copy, or compute the run again with --fresh")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _first_process() -> bool:
    """False in the other processes of a launcher such as torchrun: they compute, the first one writes."""
    return os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ


def _carry_out(row: Experiment[S], size: str, seed: int, settings: S, folder: Path) -> Run:
    parts = folder / "parts"
    pieces = _Pieces(parts)
    context = Context(seed=seed, size=size, part=pieces, folder=lambda name: parts / name)
    if not _first_process():
        row.run(settings, context)
        return Run(folder, {}, [], computed=True)
    hint = "Choose another --out, or make room"
    with explained(folder, hint):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder, "the folder of a run")
    with hold(folder, keep=False), explained(folder, hint, only=FULL):
        done = _record(folder)
        if done is not None and Status.parse(done["status"]).ok:  # another process was faster
            return _finished(folder, done)
        parts.mkdir(exist_ok=True)
        return _compute(row, size, seed, settings, folder, context, pieces)


def _compute(
    row: Experiment[S], size: str, seed: int, settings: S, folder: Path, context: Context, pieces: "_Pieces"
) -> Run:
    before = _record(folder) or {}
    record: dict[str, Any] = {
        "experiment": row.name,
        "title": row.title,
        "paper": row.paper,
        "size": size,
        "seed": seed,
        "settings": as_dict(settings),
        "status": str(Ending.RUNNING),
        "versions": versions(),
        "machine": machine(),
        "wall_time_s": before.get("wall_time_s", 0.0),
    }
    if row.embedded(settings):
        record |= {"data": _digests(row, settings), "data_note": row.instead(size, settings)}
    if code := row.code:
        record["code"] = code
    write_record(folder / "run.json", record)
    (folder / TRACEBACK).unlink(missing_ok=True)
    began = time.perf_counter()

    def spent() -> float:
        return round(before.get("wall_time_s", 0.0) + time.perf_counter() - began, 3)

    theirs = True  # the functions of the experiment are at work, and not what stores their results
    try:
        with plain_interrupts():
            trajectory = row.compute(settings, context)
            trajectory.attrs |= {
                "experiment": row.name, "size": size, "seed": seed, "settings": json.dumps(as_dict(settings)),
                "wall_time_s": spent(),
            }  # fmt: skip
            if "data" in record:
                trajectory.attrs |= {"data": json.dumps(record["data"]), "data_note": record["data_note"]}
            claims = row.judge(trajectory, size)
            drawing = row.draw(trajectory)
            if size == "tiny":
                mark_smoke_test(drawing)
            theirs = False
            _write_results(folder, trajectory, claims, drawing)
    except BaseException as error:
        _end_early(folder, record | {"wall_time_s": spent()}, error, pieces, keep=bool(before) or not theirs)
        if _mistake_of(row, error, theirs):
            raise _as_theirs(row, folder, error) from error
        raise
    digests = {name: digest((folder / name).read_bytes()) for name in FILES + LATER_FILES}
    record |= {"status": str(FINISHED), "trajectory_status": str(status_of(trajectory)), "wall_time_s": spent()}
    record |= {"digests": digests}
    write_record(folder / "run.json", record)
    shutil.rmtree(folder / "parts", ignore_errors=True)
    return Run(folder, record, claims, computed=True)


def _end_early(folder: Path, record: dict[str, Any], error: BaseException, pieces: "_Pieces", keep: bool) -> None:
    """Write down how a run ended, and its finished pieces; of one that was refused nothing stays, unless `keep`."""
    interrupted = isinstance(error, KeyboardInterrupt)
    status = Status(Ending.INTERRUPTED) if interrupted else Status(Ending.FAILED, str(error))
    with contextlib.suppress(OSError):  # on a full disk the first error is the one to show
        write_record(folder / "run.json", record | {"status": str(status)})
    with contextlib.suppress(OSError, SaddlesError):
        pieces.write()
    nothing = not keep and not pieces.short and not any((folder / "parts").iterdir())
    if isinstance(error, SaddlesError) and nothing:  # a corrected command may take the same folder
        with contextlib.suppress(OSError):
            (folder / "run.json").unlink()
            (folder / "parts").rmdir()


def write_ending(folder: Path, status: Status) -> None:
    """Write down how a run ended whose process was killed, unless it had ended or another process is at it."""
    before = _record(folder)
    if before is None or Status.parse(before["status"]).ending != Ending.RUNNING:
        return
    with hold(folder, keep=False):  # refused where another process computes the same run
        record = _record(folder)
        if record is not None and Status.parse(record["status"]).ending == Ending.RUNNING:
            write_record(folder / "run.json", record | {"status": str(status)})


def _as_theirs(row: Experiment[S], folder: Path, error: BaseException) -> SaddlesError:
    """An error of an experiment that is not ours, for its author."""
    with contextlib.suppress(OSError):
        write_text(folder / TRACEBACK, "".join(traceback.format_exception(error)))
    return SaddlesError(
        f"{row.name} raised {type(error).__name__}: {first_line(error).removesuffix('.')}. It is not an "
        f"experiment of saddles: fix it where {folder / TRACEBACK} says, then resume with --resume "
        f"{shlex.quote(str(folder))}."
    )


def _mistake_of(row: Experiment[S], error: BaseException, theirs: bool) -> bool:
    """Whether an error is for the author of an experiment to mend, and no sentence of ours says how.

    Args:
        theirs: a function of the experiment raised it. A missing file is its author's then, a full disk is not.
    """
    if row.shipped or isinstance(error, SaddlesError | MemoryError):
        return False
    if isinstance(error, OSError) and (not theirs or error.errno in FULL):
        return False
    lacking = isinstance(error, ModuleNotFoundError) and extra_for(error) is not None
    return isinstance(error, Exception | SystemExit) and not lacking


def _write_results(folder: Path, trajectory: Trajectory, claims: list[Claim], drawing: Drawing) -> None:
    shutil.rmtree(folder / "trajectory.zarr", ignore_errors=True)
    save(trajectory, folder / "trajectory.zarr")
    with explained(folder, "Make room, then resume with --resume"):
        save_drawing(drawing, folder / "figure")
        write_claims(claims, folder / "claims.json")


class _Pieces:
    """Pieces of a run, found again by name: those that took long on the disk at once, the others now and then.

    To write a piece takes a tenth of a second, which some experiments would spend on every few tenths of computing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.short: dict[str, Trajectory] = {}
        self.unsaved = 0.0

    def __call__(self, name: str, make: Callable[[], Trajectory]) -> Trajectory:
        """The piece of this name, computed unless it is there."""
        place = self.folder / f"{name}.zarr"
        if place.is_dir():
            return load(place)
        if name in self.short:
            return self.short[name]
        began = time.perf_counter()
        result = make()
        if not _first_process():
            return result
        spent = time.perf_counter() - began
        if spent < SHORT:
            self.short[name] = result
            self.unsaved += spent
        else:
            save(result, place)
        if self.unsaved > UNSAVED:
            self.write()
        return result

    def write(self) -> None:
        """Store the pieces that are in memory alone."""
        while self.short:
            name = next(iter(self.short))
            save(self.short[name], self.folder / f"{name}.zarr")
            del self.short[name]
        self.unsaved = 0.0
