"""What a worker does: compute cells, judge their claims, and return plain arrays.

A cell's numbers depend on its settings and its seed alone. So every engine computes cells on one thread (sums and
products change their last digits with the number of threads), one at a time in a process, through this module.

An experiment whose cells can share a compiled program names the settings in which they may differ
(`together=("rate", "seed")`) and has the function `run_many`; see `saddles.core.experiment`.
"""

import hashlib
import json
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from saddles.core import provenance
from saddles.core.claim import Claim
from saddles.core.data import require_data
from saddles.core.engines import engine
from saddles.core.engines.engine import Refusal, describe, on_one_thread, whole_text
from saddles.core.experiment import Context, Experiment, as_dict
from saddles.core.provenance import differences
from saddles.core.status import FINISHED, Status, status_of
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError

EXACT = 2**53
"""Up to here float64 holds every whole number."""

Arrays = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Name -> (axes, values)."""


@dataclass(frozen=True)
class Job:
    """A cell as a worker gets it; `settings` are the experiment's own."""

    number: int
    settings: object
    seed: int


@dataclass(frozen=True)
class Task(engine.Task["Outcome"]):
    """Cells of one experiment for one worker."""

    experiment: Experiment
    size: str
    jobs: tuple[Job, ...]
    versions: Mapping[str, str] | None = None
    """Versions that the worker must have; None accepts any."""

    @property
    def parts(self) -> int:
        """How many cells."""
        return len(self.jobs)

    @property
    def together(self) -> bool:
        """Whether cells share a program, and so their time."""
        return bool(self.experiment.together)

    def empty(self) -> "Task":
        """The same without cells: loads the experiment."""
        return replace(self, jobs=())

    def compute(self) -> "list[Outcome] | Refusal":
        """Compute the cells."""
        return compute(self)


@dataclass(frozen=True)
class Packed:
    """A cell's result as plain arrays: float64 or text."""

    variables: Arrays
    coords: Arrays
    notes: dict[str, dict[str, object]] = field(repr=False)
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
    """The result of a cell: its arrays, or its error."""

    number: int
    seconds: float
    packed: Packed | None = None
    status: Status = FINISHED
    """How the cell's trajectory ended."""
    claims_error: str = ""
    """Why its claims could not be judged, where they could not."""
    error: str = ""
    trace: str = ""
    shared_error: str = ""
    """Error of the program that this cell was to share, where each of its cells succeeds alone."""

    @property
    def digest(self) -> str:
        """The digest of the arrays, empty where the cell failed."""
        return self.packed.digest if self.packed else ""


_turn = threading.Lock()


def compute(task: Task) -> list[Outcome] | Refusal:
    """Compute the cells of a task, together where the experiment can, else one by one; errors become outcomes."""
    differ = differences(task.versions, provenance.versions()) if task.versions is not None else None
    if differ:
        return Refusal(f"process {os.getpid()}", f"it has {differ[1]} and not {differ[0]}")
    with _turn, on_one_thread():  # a Dask worker may have several threads, but cells go one at a time in a process
        return [outcome for jobs in groups(task) for outcome in _compute_group(task, jobs)]


def group_key(experiment: Experiment, job: Job) -> str:
    """Cells with one key may share a program; a cell of an experiment without `together` has its own."""
    if not experiment.together:
        return str(job.number)
    facts = {**as_dict(job.settings), "seed": job.seed}
    return json.dumps({key: value for key, value in facts.items() if key not in experiment.together}, sort_keys=True)


def groups(task: Task) -> list[list[Job]]:
    """The jobs of a task, those that may share a program together."""
    by_key: dict[str, list[Job]] = {}
    for job in task.jobs:
        by_key.setdefault(group_key(task.experiment, job), []).append(job)
    return list(by_key.values())


def _compute_group(task: Task, jobs: Sequence[Job]) -> list[Outcome]:
    """One program for several cells; where it fails, each alone, so that the error goes to the cell that causes it."""
    shared_error, run_many = "", task.experiment.run_many
    if len(jobs) > 1 and run_many is not None:
        began = time.perf_counter()
        try:
            require_data(task.experiment.data(jobs[0].settings))
            results = run_many([job.settings for job in jobs], [Context(job.seed, task.size) for job in jobs])
            share = (time.perf_counter() - began) / len(jobs)
            return [_judge(task, job, result, share) for job, result in zip(jobs, results, strict=True)]
        except Exception as error:
            shared_error = describe(error)
    outcomes = [_compute_one(task, job) for job in jobs]
    if any(outcome.error for outcome in outcomes):  # it was this cell's fault, not that of the shared program
        return outcomes
    return [replace(outcome, shared_error=shared_error) for outcome in outcomes]


def _compute_one(task: Task, job: Job) -> Outcome:
    began = time.perf_counter()
    try:
        require_data(task.experiment.data(job.settings))
        result = task.experiment.compute(job.settings, Context(job.seed, task.size))
        return _judge(task, job, result, time.perf_counter() - began)
    except (Exception, SystemExit) as error:  # an experiment that ends itself must not end its worker
        spent = time.perf_counter() - began
        return Outcome(job.number, spent, error=describe(error), trace=whole_text(traceback.format_exc(limit=-8)))


def _judge(task: Task, job: Job, result: Trajectory, seconds: float) -> Outcome:
    """Claims that cannot be judged at these settings leave the numbers as they are, without a verdict."""
    began, claims, claims_error = time.perf_counter(), [], ""
    try:
        claims = task.experiment.judge(result, task.size)
    except Exception as error:
        claims_error = describe(error)
    packed = pack(result, claims)
    spent = round(seconds + time.perf_counter() - began, 6)
    return Outcome(job.number, spent, packed, status_of(result), claims_error)


def pack(trajectory: object, claims: Sequence[Claim]) -> Packed:
    """A trajectory and its claims as plain arrays.

    Claims become `claim_value`, `claim_threshold` and `claim_holds` (1, 0, or NaN where it does not apply or is no
    evidence) along the axis `claim`. Whole numbers and truth values of variables become float64, where NaN can stand
    for what is missing.
    """
    if not isinstance(trajectory, xr.Dataset):
        raise SaddlesError(
            f"A cell of a sweep must be an xarray.Dataset; got a {type(trajectory).__name__}. "
            "Use `saddles run` for this experiment."
        )
    for name in map(str, trajectory.variables):  # each is a folder of the store, which others could not read then
        if "/" in name or name.startswith("."):
            raise SaddlesError(f"Names of a sweep must not be paths; got {name!r}. Rename it.")
    variables = {str(name): _plain(str(name), value.variable) for name, value in trajectory.data_vars.items()}
    coords = {
        str(name): (tuple(map(str, value.dims)), np.array(value.values)) for name, value in trajectory.coords.items()
    }
    if claims:
        verdicts = {"holds": 1.0, "fails": 0.0, "not_evidence": np.nan, "not_applicable": np.nan}
        along = ("claim",)
        variables["claim_value"] = (along, np.array([claim.value for claim in claims]))
        variables["claim_threshold"] = (along, np.array([claim.threshold for claim in claims]))
        variables["claim_holds"] = (along, np.array([verdicts[claim.verdict] for claim in claims]))
        coords["claim"] = (along, np.array([claim.claim for claim in claims]))
    notes = {str(name): dict(value.attrs) for name, value in trajectory.variables.items() if value.attrs}
    return Packed(variables, coords, notes)


def _plain(name: str, value: xr.Variable) -> tuple[tuple[str, ...], np.ndarray]:
    dims = tuple(sorted(map(str, value.dims), key=lambda dim: dim != "time"))
    values = value.transpose(*dims).values
    if values.dtype.kind in "US" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values.flat)):
        return dims, values.astype(str)
    if values.dtype.kind not in "fiub":
        raise SaddlesError(f"Variables of a sweep must be numbers or text; `{name}` has type {values.dtype}.")
    if values.dtype.kind in "iu" and values.size and (values.max() > EXACT or values.min() < -EXACT):
        raise SaddlesError(f"`{name}` has whole numbers above 2⁵³, which float64 cannot hold. Store them as text.")
    return dims, values.astype(np.float64)
