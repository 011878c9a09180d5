"""Run an experiment into a folder that survives interruption.

DIR/run.json          settings, versions, machine, wall time, status; written first and last
DIR/parts/            finished pieces and checkpoints, reused by resume, removed at the end
DIR/trajectory.zarr   the result
DIR/claims.json       the verdicts
DIR/figure.png, .svg  the figure
"""

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saddles
from saddles.core.claim import Claim, read_claims, write_claims
from saddles.core.data import require_data
from saddles.core.experiment import Context, Experiment, find
from saddles.core.provenance import machine, versions
from saddles.core.trajectory import FINISHED, SCHEMA, Trajectory, load, save
from saddles.errors import SaddlesError

RUNNING = "running"
INTERRUPTED = "stopped: interrupted"


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
        planned: `out` came from `planned_folder` and may hold this very run already.
    """
    row = find(experiment) if isinstance(experiment, str) else experiment
    size = size or row.default
    settings = row.settings(size, changes)
    require_data(row.data(settings))
    if planned and out is not None:
        folder = Path(out)
    else:
        folder = planned_folder(row, size=size, seed=seed, changes=changes, out=out, root=root, fresh=fresh)
    record = _record(folder)
    if record is not None and record["status"] == FINISHED:
        return Run(folder, record, read_claims(folder / "claims.json"), computed=False)
    return _carry_out(row, size, seed, settings, folder)


def resume(folder: str | os.PathLike[str]) -> Run:
    """Go on with an interrupted run; a finished one is shown."""
    place = Path(folder)
    record = _record(place)
    if record is None:
        raise SaddlesError.about(f"{folder} came", "it holds no run.json", "give the folder of an interrupted run")
    if record["status"] == FINISHED:
        return Run(place, record, read_claims(place / "claims.json"), computed=False)
    begun, now = record["versions"].get("saddles", "of unknown version"), versions()["saddles"]
    if begun != now:
        raise SaddlesError.about(
            f"{folder} was begun with saddles {begun}",
            f"this is {now}",
            "start it anew with --fresh",
        )
    return _carry_out(find(record["experiment"]), record["size"], record["seed"], record["settings"], place)


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
    row = find(experiment) if isinstance(experiment, str) else experiment
    size = size or row.default
    settings = row.settings(size, changes)
    if out is not None:
        place = Path(out)
        if _first_process() and place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise SaddlesError.about(
                f"{out} exists already", "a run never overwrites", "choose another --out, or go on with --resume"
            )
        return place
    first = Path(root) / row.name / identity(row.name, {**settings, "size": size}, seed)
    if not fresh:
        return first
    names = (first if k == 1 else first.with_name(f"{first.name}-{k}") for k in itertools.count(1))
    return next(place for place in names if not place.exists())


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "run.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SaddlesError.about(
            f"{folder / 'run.json'} cannot be read", "it must be JSON", "remove the folder"
        ) from error


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    draft = folder / ".run.json"
    draft.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
    os.replace(draft, folder / "run.json")


def _first_process() -> bool:
    """False in the other processes of a launcher such as torchrun: they compute, the first one writes."""
    return os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ


def _carry_out(row: Experiment, size: str, seed: int, settings: dict[str, Any], folder: Path) -> Run:
    parts = folder / "parts"
    context = Context(seed=seed, size=size, part=_store(parts), folder=lambda name: parts / name)
    if not _first_process():
        row.load().run(dict(settings), context)
        return Run(folder, {}, [], computed=True)
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaddlesError.about(
            f"{folder} cannot be written ({error.strerror})",
            "a folder with write permission is needed",
            "choose another --out",
        ) from error
    before = _record(folder) or {}
    record: dict[str, Any] = {
        "experiment": row.name,
        "title": row.title,
        "paper": row.paper,
        "size": size,
        "seed": seed,
        "settings": settings,
        "status": RUNNING,
        "versions": versions(),
        "machine": machine(),
        "wall_time_s": before.get("wall_time_s", 0.0),
    }
    _write_record(folder, record)
    began = time.perf_counter()

    def spent() -> float:
        return round(before.get("wall_time_s", 0.0) + time.perf_counter() - began, 3)

    module = row.load()
    try:
        trajectory = module.run(dict(settings), context)
        trajectory.attrs |= {
            "experiment": row.name, "size": size, "seed": seed, "settings": json.dumps(settings),
            "wall_time_s": spent(),
        }  # fmt: skip
        claims = module.claims(trajectory, size)
        _write_results(folder, trajectory, claims, module.figure)
    except BaseException as error:
        stopped = INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"stopped: {error}"
        _write_record(folder, record | {"status": stopped, "wall_time_s": spent()})
        raise
    record |= {"status": FINISHED, "trajectory_status": trajectory.attrs["status"], "wall_time_s": spent()}
    _write_record(folder, record)
    shutil.rmtree(parts, ignore_errors=True)
    return Run(folder, record, claims, computed=True)


def _write_results(
    folder: Path, trajectory: Trajectory, claims: list[Claim], figure: Callable[[Trajectory], Any]
) -> None:
    shutil.rmtree(folder / "trajectory.zarr", ignore_errors=True)
    save(trajectory, folder / "trajectory.zarr")
    drawing = figure(trajectory)
    drawing.savefig(folder / "figure.png", dpi=160)
    drawing.savefig(folder / "figure.svg", metadata={"Date": None})
    write_claims(claims, folder / "claims.json")


def _store(parts: Path) -> Callable[[str, Callable[[], Trajectory]], Trajectory]:
    def part(name: str, make: Callable[[], Trajectory]) -> Trajectory:
        place = parts / f"{name}.zarr"
        if place.is_dir():
            return load(place)
        made = make()
        if _first_process():
            save(made, place)
        return made

    return part
