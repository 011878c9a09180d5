"""Follow S' = g(β(S)) without paying for plateaus.

Between stages the learned coordinates rest (g = 0 on them) and all others move linearly in S,
S_i = S_i(t₀) + g_i (t − t₀), until the first of them grows large enough to be felt. Such a stretch
is crossed in one step, however long. Its error has two parts, both kept below the tolerance:
the learned coordinates' distance from rest (a Newton step in S, found before crossing and
polished away), and what the growing coordinate did to the forces, |g(t₁) − g|/(2|g_i|), measured
by the gradient at the far end. Transitions are integrated by `core.mirror`.
"""

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from saddles.core.status import FINISHED, Ending, Status
from saddles.runtime.progress import bar
from saddles.solvers.log_scale import LogScale
from saddles.solvers.mirror import Columns, Force, Stepper
from saddles.solvers.ndf import StepError

WORTH = 4.0
"""A crossing must be this many times longer than the integrator's own step."""


@dataclass(frozen=True, eq=False)
class Path:
    """A followed flow: S at the asked times, at the ends of all steps, and how it was found.

    `crossings` has a row (from, to, stated error of S) for each plateau crossed.
    """

    times: np.ndarray
    shifts: np.ndarray
    crossings: np.ndarray
    steps: int
    rejected: int
    failures: int
    refreshes: int
    status: Status
    wall_time: float


@dataclass(eq=False)
class _Log:
    times: list[float] = field(default_factory=list)
    shifts: list[np.ndarray] = field(default_factory=list)
    crossings: list[tuple[float, float, float]] = field(default_factory=list)

    def put(self, time: float, shift: np.ndarray) -> None:
        self.times.append(time)
        self.shifts.append(shift.copy())


def follow(
    force: Force,
    columns: Columns,
    coordinates: LogScale,
    until: float,
    *,
    shift: np.ndarray | None = None,
    times: np.ndarray | None = None,
    tolerance: float = 1e-5,
    max_steps: int = 100_000,
    cross: bool = True,
    rest: float = 0.0,
    title: str = "following the flow",
) -> Path:
    """Follow the flow from S = `shift` at time 0 to `until`.

    Args:
        force, columns: β -> −∇L, and columns of ∇²L.
        until: end, in gradient time.
        times: when to save S, increasing; None saves the end of every step.
        tolerance: error of S a step or crossing; the relative error of β is twice that.
        cross: False integrates plateaus step by step (for checks of the crossing).
        rest: end where all forces have fallen below this.
    """
    began = clock.perf_counter()
    start = np.zeros(coordinates.size) if shift is None else np.asarray(shift, dtype=float)
    stepper = _ready(Stepper(force, columns, coordinates, start, 0.0, tolerance), until)
    log, wanted, status = _Log(), None if times is None else list(np.asarray(times, dtype=float)), FINISHED
    _save(log, wanted, stepper, lambda t: np.broadcast_to(start, (len(t), len(start))))
    with bar(title, max(until, 1e-300)) as progress:
        while stepper.time < until * (1 - 1e-14):
            if stepper.steps >= max_steps:
                status = Status(Ending.STOPPED, f"{max_steps} solver steps spent at time {stepper.time:.6g}")
                break
            if np.abs(stepper.slope).max() < rest:
                break
            before = stepper.time
            try:
                line = _cross(stepper, until) if cross else None
                if line is None:
                    stepper.advance(until)
                    _save(log, wanted, stepper, stepper.between)
                else:
                    log.crossings.append((before, stepper.time, line.error))
                    _save(log, wanted, stepper, line.at, line.landmarks())
            except StepError:
                status = Status(Ending.DIVERGED, f"near time {stepper.time:.6g}")
                break
            progress.reach(stepper.time)
    return Path(
        np.array(log.times),
        np.array(log.shifts),
        np.array(log.crossings).reshape(-1, 3),
        stepper.steps,
        stepper.rejected,
        stepper.failures,
        stepper.refreshes,
        status,
        clock.perf_counter() - began,
    )


def _ready(stepper: Stepper, until: float) -> Stepper:
    """Ask for the fastest coordinate's Hessian column, which sets the scale, and choose a first step."""
    first = np.array([int(np.argmax(np.abs(stepper.slope)))])
    stepper.hessian.put(first, stepper.columns(stepper.coordinates.beta(stepper.shift), first))
    fastest = max(float(np.abs(stepper.slope).max()), 1e-300)
    stepper.restart(0.0, stepper.shift, stepper.slope, min(until, 1e-3 / fastest))
    return stepper


def _save(
    log: _Log,
    wanted: list[float] | None,
    stepper: Stepper,
    at: Callable[[np.ndarray], np.ndarray],
    early: Sequence[float] | np.ndarray = (),
) -> None:
    """Save S at `early` times and the end of the step, or at the wanted times that it covered."""
    if wanted is None:
        for time, row in zip(early, at(np.asarray(early)) if len(early) else [], strict=True):
            log.put(time, row)
        log.put(stepper.time, stepper.shift)
        return
    due: list[float] = []
    while wanted and wanted[0] <= stepper.time * (1 + 1e-14):
        due.append(wanted.pop(0))
    for time, row in zip(due, at(np.array(due)) if due else [], strict=True):
        log.put(time, row)


@dataclass(frozen=True, eq=False)
class _Line:
    """A crossed plateau: S = base + (t − since) speed + bend y + curl y², y = e^{pace (t − to)}."""

    since: float
    to: float
    base: np.ndarray
    speed: np.ndarray
    bend: np.ndarray
    curl: np.ndarray
    pace: float
    error: float

    def at(self, times: np.ndarray) -> np.ndarray:
        """S at some times."""
        growth = np.exp(np.minimum(self.pace * (times - self.to), 0.0))[:, None]
        return self.base + (times - self.since)[:, None] * self.speed + growth * self.bend + growth**2 * self.curl

    def landmarks(self) -> np.ndarray:
        """Instants at which the growing coordinate's β is e^-2, e^-4, … of its size at the far end."""
        times = self.to - np.arange(40, 0, -2) / self.pace
        return times[times > self.since]


def _cross(stepper: Stepper, until: float) -> _Line | None:
    """Cross the plateau that begins here, or return None where there is none worth it."""
    room = until - stepper.time
    resting = _resting(stepper, stepper.slope, room)
    length, leader = _length(stepper, stepper.slope, resting, room)
    if length < WORTH * stepper.step:
        return None
    if np.abs(stepper.slope[resting]).max(initial=0.0) > 3 * stepper.tolerance * _stiffness(stepper, resting):
        return None
    away = _to_rest(stepper, stepper.shift, stepper.slope, resting, room)
    if away is None or np.abs(away).max(initial=0.0) > 3 * stepper.tolerance:
        return None
    polished = _polish(stepper, resting, length)
    if polished is None:
        return None
    base, speed = polished
    length, leader = _length(stepper, speed, resting, room)
    for _ in range(4):
        if length < WORTH * stepper.step:
            return None
        pace = 2 * abs(speed[leader]) if leader is not None else 1 / length
        bend, curl, error = _bend(stepper, base + length * speed, speed, pace, leader)
        if error <= stepper.tolerance:
            line = _Line(stepper.time, stepper.time + length, base, speed, bend, curl, pace, error)
            _leave(stepper, line, until)
            return line
        length -= np.log(error / (0.5 * stepper.tolerance)) / (3 * pace)
    return None


def _bend(
    stepper: Stepper, there: np.ndarray, speed: np.ndarray, pace: float, leader: int | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """What a coordinate growing as y = e^{pace t} did to S by the end of a plateau, to second order, and its error.

    First order: bend y solves δS' = −H D δS − H_leader β_leader y. Second order: curl y² takes what the true forces at
    the far end say is missing. The error is what they miss then, there and at y = 1/2, over the pace.
    """
    bend, curl = np.zeros_like(there), np.zeros_like(there)
    if leader is not None:
        stepper.know(there, np.array([leader]))
        pushed = -stepper.hessian.matrix[:, leader] * stepper.coordinates.beta(there)[leader]
        bend = stepper.respond(there, pushed / pace, 1 / pace, without=leader)
    error = np.inf
    for _ in range(3):
        missing = stepper.evaluate(there + bend + curl) - speed - pace * bend - 2 * pace * curl
        before, error = error, float(np.abs(missing).max()) / pace
        if not np.isfinite(error):
            return bend, curl, 1e3
        if error <= 0.1 * stepper.tolerance or error > 0.5 * before:
            break
        curl = curl + stepper.respond(there + bend + curl, missing / (2 * pace), 1 / (2 * pace))
    if leader is None or error > stepper.tolerance:
        return bend, curl, error
    half = stepper.evaluate(there - speed * np.log(2) / pace + bend / 2 + curl / 4)
    return bend, curl, max(error, float(np.abs(half - speed - pace * (bend + curl) / 2).max()) / pace)


def _leave(stepper: Stepper, line: _Line, until: float) -> None:
    """Hand over to the integrator at the far end, with the plateau as its history."""
    height = max(float(np.abs(line.bend).max()), stepper.tolerance)
    ratio = min(0.5, (stepper.tolerance / height) ** (1 / 6))
    left = until - line.to
    step = min(-np.log1p(-ratio) / line.pace, left if left > 0 else np.inf)
    stepper.resume(line.to, line.at, step)


def _resting(stepper: Stepper, slope: np.ndarray, room: float) -> np.ndarray:
    """Coordinates that are felt: their effect on S over their own growth time exceeds a tenth of the tolerance."""
    with np.errstate(divide="ignore", over="ignore"):
        span = np.minimum(1 / (4 * np.abs(slope)), room)
        return stepper.influence(stepper.shift) * span > 0.1 * stepper.tolerance


def _length(stepper: Stepper, speed: np.ndarray, resting: np.ndarray, room: float) -> tuple[float, int | None]:
    """How long the first coordinate to grow may grow, and which it is.

    A coordinate at linear speed g changes S by influence/(4|g|). The first may reach tolerance^{1/3} / 2 (its effect
    is corrected to second order), the others the tolerance.
    """
    coords, pace = stepper.coordinates, np.where(resting, 0.0, speed)
    level = np.where(pace > 0, coords.log_p + stepper.shift, coords.log_q - stepper.shift)
    scale = np.log(max(stepper.hessian.scale, 1e-300))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        gap = 0.5 * (np.log(8 * np.abs(pace)) - scale) - level
        first = np.where(pace != 0, (gap + 0.5 * np.log(np.cbrt(stepper.tolerance) / 2)) / np.abs(pace), np.inf)
        others = np.where(pace != 0, (gap + 0.5 * np.log(stepper.tolerance)) / np.abs(pace), np.inf)
    if not np.isfinite(first).any():
        return room, None
    leader = int(np.argmin(first))
    others[leader] = np.inf
    return float(min(first[leader], others.min(), room)), leader


def _stiffness(stepper: Stepper, resting: np.ndarray) -> float:
    """A bound on |g| / |distance from rest|: the largest row sum of |H D|."""
    chosen = np.flatnonzero(resting)
    block = stepper.hessian.matrix[np.ix_(chosen, chosen)] * stepper.coordinates.slope(stepper.shift)[chosen]
    return float(np.abs(block).sum(axis=1).max(initial=0.0))


def _to_rest(
    stepper: Stepper, shift: np.ndarray, slope: np.ndarray, resting: np.ndarray, room: float
) -> np.ndarray | None:
    """The Newton step in S to where the felt coordinates' forces vanish; None at no stable rest.

    In the scaling M = D^{1/2} H D^{1/2} flat directions (tied coordinates) are left alone if
    nothing pushes along them.
    """
    chosen = np.flatnonzero(resting)
    if not len(chosen):
        return np.zeros(0)
    if not stepper.hessian.known[chosen].all():
        return None
    root = np.sqrt(stepper.coordinates.slope(shift)[chosen])
    block = stepper.hessian.matrix[np.ix_(chosen, chosen)]
    values, vectors = np.linalg.eigh(root[:, None] * (block + block.T) / 2 * root)
    push = vectors.T @ (root * slope[chosen])
    flat = np.abs(values) <= 1e-9 * np.abs(values).max()
    if (values[~flat] < 0).any() or np.abs(push[flat]).max(initial=0.0) * room > stepper.tolerance * root.min():
        return None
    return (vectors[:, ~flat] @ (push[~flat] / values[~flat])) / root


def _polish(stepper: Stepper, resting: np.ndarray, length: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Put the felt coordinates to rest, so that what drives the others is known to tolerance / length."""
    base = stepper.shift.copy()
    force = stepper.evaluate(base)
    for _ in range(6):
        if np.abs(force[resting]).max(initial=0.0) * length <= 0.3 * stepper.tolerance:
            return base, np.where(resting, 0.0, force)
        away = _to_rest(stepper, base, force, resting, 0.0)
        if away is None or np.abs(away).max() > 30 * stepper.tolerance:
            return None
        base[resting] += away
        force = stepper.evaluate(base)
    return None
