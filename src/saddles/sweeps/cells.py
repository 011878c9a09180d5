"""What a worker does: compute cells, judge them, and hand back plain arrays.

A cell's numbers depend on its settings and its seed alone. So every engine computes cells on one thread (sums and
products change their last digits with the number of threads), one at a time in a process, through this module.

An experiment whose cells can share a compiled program says which settings may differ inside it, in its row
(`together=("rate", "seed")`), and its module has one more function:

    run_many(settings, contexts) -> list of Trajectory     # lists, one entry a cell; each result the bytes of `run`
"""

import hashlib
import json
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from saddles.core import provenance
from saddles.core.claim import Claim
from saddles.core.data import require_data
from saddles.core.experiment import Context, Experiment
from saddles.errors import SaddlesError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC")
ONE_THREAD = dict.fromkeys(_THREADS, "1")
"""Variables that make BLAS, torch and XLA (NPROC) use one thread, if set before they are loaded."""

Arrays = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Name -> (axes, values)."""


@dataclass(frozen=True)
class Job:
    """A cell as a worker gets it."""

    number: int
    settings: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Task:
    """Cells of one experiment for one worker."""

    row: Experiment
    size: str
    jobs: tuple[Job, ...]
    versions: Mapping[str, str] | None = None
    """Versions that the worker must have; None asks for none."""


@dataclass(frozen=True)
class Packed:
    """A cell's result as plain arrays: float64 or text."""

    variables: Arrays
    coords: Arrays
    notes: dict[str, dict[str, Any]] = field(repr=False)
    """Attributes of variables and coordinates, such as units."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for _, values in (*self.variables.values(), *self.coords.values()))

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each axis."""
        arrays = (*self.variables.values(), *self.coords.values())
        return {dim: size for dims, values in arrays for dim, size in zip(dims, values.shape, strict=True)}

    @property
    def digest(self) -> str:
        """Sixteen characters that stand for every name, axis and bit."""
        total = hashlib.blake2b(digest_size=8)
        for name, (dims, values) in sorted({**self.coords, **self.variables}.items()):
            total.update(f"{name}{dims}{values.shape}{values.dtype.str}".encode())
            total.update(np.ascontiguousarray(values).tobytes())
        return total.hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its arrays, or its error."""

    number: int
    seconds: float
    packed: Packed | None = None
    status: str = ""
    """Status of the trajectory, such as `finished`, `stopped: diverged at step 7` or `claims not judged: …`."""
    error: str = ""
    trace: str = ""
    apart: str = ""
    """Error of the program that this cell was to share, where each of its cells succeeds alone."""

    @property
    def digest(self) -> str:
        """The digest of the arrays, empty where the cell failed."""
        return self.packed.digest if self.packed else ""


@dataclass(frozen=True)
class Refusal:
    """A worker that must not compute, and why."""

    worker: str
    reason: str


_turn = threading.Lock()


def compute(task: Task) -> list[Outcome] | Refusal:
    """Compute the cells of a task, one after another or together where the experiment can; errors become outcomes."""
    from saddles.sweeps.plan import differences

    differ = differences(task.versions, provenance.versions()) if task.versions is not None else None
    if differ:
        return Refusal(f"process {os.getpid()}", f"it has {differ[1]} and not {differ[0]}")
    with _turn, one_thread():
        return [outcome for group in groups(task) for outcome in _together(task, group)]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for what is loaded already (BLAS, OpenMP) and for what will be (the environment)."""
    from threadpoolctl import threadpool_limits

    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    with threadpool_limits(1):
        yield


def group_key(row: Experiment, job: Job) -> str:
    """Cells with one key may share a program; a cell of an experiment without `together` has its own."""
    if not row.together:
        return str(job.number)
    facts = {**job.settings, "seed": job.seed}
    return json.dumps({key: value for key, value in facts.items() if key not in row.together}, sort_keys=True)


def groups(task: Task) -> list[list[Job]]:
    """The jobs of a task, those that may share a program together."""
    found: dict[str, list[Job]] = {}
    for job in task.jobs:
        found.setdefault(group_key(task.row, job), []).append(job)
    return list(found.values())


def _together(task: Task, jobs: Sequence[Job]) -> list[Outcome]:
    """One program for several cells; where it fails, each alone, so that the error is put to the right one."""
    module: Any = task.row.load()
    shared = ""
    if len(jobs) > 1:
        began = time.perf_counter()
        try:
            require_data(task.row.data(jobs[0].settings))
            made = module.run_many([dict(j.settings) for j in jobs], [Context(j.seed, task.size) for j in jobs])
            share = (time.perf_counter() - began) / len(jobs)
            return [_judged(task, job, one, share) for job, one in zip(jobs, made, strict=True)]
        except Exception as error:
            shared = _told(error)
    outcomes = [_alone(task, job) for job in jobs]
    owned = any(outcome.error for outcome in outcomes)
    return outcomes if owned else [replace(outcome, apart=shared) for outcome in outcomes]


def _alone(task: Task, job: Job) -> Outcome:
    began = time.perf_counter()
    try:
        require_data(task.row.data(job.settings))
        made = task.row.load().run(dict(job.settings), Context(job.seed, task.size))
        return _judged(task, job, made, time.perf_counter() - began)
    except Exception as error:
        spent = time.perf_counter() - began
        return Outcome(job.number, spent, error=_told(error), trace=traceback.format_exc(limit=-8))


def _told(error: Exception) -> str:
    words = str(error) or type(error).__name__
    return words if isinstance(error, SaddlesError) else f"{type(error).__name__}: {words}"


def _judged(task: Task, job: Job, made: Any, seconds: float) -> Outcome:
    """Claims that cannot be judged at these settings leave the numbers as they are, without a verdict."""
    began, claims, unjudged = time.perf_counter(), [], ""
    try:
        claims = task.row.load().claims(made, task.size)
    except Exception as error:
        unjudged = f"claims not judged: {_told(error)}"
    packed = pack(made, claims)
    ended = str(made.attrs.get("status", ""))
    status = "; ".join([*([ended] if ended != "finished" else []), unjudged]) if unjudged else ended
    return Outcome(job.number, round(seconds + time.perf_counter() - began, 6), packed, status)


def pack(trajectory: Any, claims: Sequence[Claim]) -> Packed:
    """A trajectory and its claims as plain arrays.

    Claims become `claim_value`, `claim_threshold` and `claim_holds` (1, 0, or NaN where the claim does not apply)
    along the axis `claim`. Whole numbers and truth values of variables become float64, where NaN can stand for what
    is missing.
    """
    if not isinstance(trajectory, xr.Dataset):
        raise SaddlesError.about(
            f"a {type(trajectory).__name__} came", "cells are laid out from a Dataset each", "run it by itself"
        )
    verdicts = {"holds": 1.0, "fails": 0.0, "not_applicable": np.nan}
    judged: Arrays = {}
    if claims:
        judged = {
            "claim_value": (("claim",), np.array([claim.value for claim in claims])),
            "claim_threshold": (("claim",), np.array([claim.threshold for claim in claims])),
            "claim_holds": (("claim",), np.array([verdicts[claim.verdict] for claim in claims])),
        }
    variables = {str(name): _plain(str(name), value.variable) for name, value in trajectory.data_vars.items()}
    coords = {
        str(name): (tuple(map(str, value.dims)), np.array(value.values)) for name, value in trajectory.coords.items()
    }
    if claims:
        coords["claim"] = (("claim",), np.array([claim.claim for claim in claims]))
    notes = {str(name): dict(value.attrs) for name, value in trajectory.variables.items() if value.attrs}
    return Packed(variables | judged, coords, notes)


def _plain(name: str, value: xr.Variable) -> tuple[tuple[str, ...], np.ndarray]:
    dims = tuple(sorted(map(str, value.dims), key=lambda dim: dim != "time"))
    values = value.transpose(*dims).values
    if values.dtype.kind in "US" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values.flat)):
        return dims, values.astype(str)
    if values.dtype.kind not in "fiub":
        raise SaddlesError.about(f"{name} has type {values.dtype}", "numbers and text are laid out", "convert it")
    if values.dtype.kind in "iu" and values.size and (values.max() > 2**53 or values.min() < -(2**53)):
        raise SaddlesError.about(f"{name} has whole numbers above 2⁵³", "float64 must hold them", "store them as text")
    return dims, values.astype(np.float64)
