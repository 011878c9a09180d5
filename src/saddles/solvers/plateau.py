"""Follow S' = g(β(S)) without paying for plateaus.

Between stages the learned coordinates rest (g = 0 on them) and all others move linearly in S,
S_i = S_i(t₀) + g_i (t − t₀), until the first of them grows large enough to be felt. Such a stretch
is crossed in one step, however long. Its error has two parts, both kept below the tolerance:
the learned coordinates' distance from rest (a Newton step in S, found before crossing and
polished away), and what the growing coordinate, the leader, did to the forces. That is a series in
y = e^{2|g_leader| (t − t₁)}, of which the terms y and y² are kept and the rest is measured by the gradient at the far
end. Transitions are integrated by `solvers.multistep`.

How much a coordinate is felt: it grows as β ∝ e^{2|g|t}, with dβ/dS = 2β, and changes the forces by at most max|∇²L| β.
Over its own growth time 1/(2|g|) that moves S by

    effect = max|∇²L| (dβ/dS) / (4|g|),

the measure that is compared with the tolerance throughout.
"""

import time as clock
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from saddles.core.status import FINISHED, Ending, Status
from saddles.runtime.progress import bar
from saddles.solvers.log_scale import LogScale
from saddles.solvers.mirror import Columns, Force, MirrorFlow
from saddles.solvers.multistep import ORDERS, TINY, Multistep, StepError, Vector

Times = Float[np.ndarray, "time"]
Shifts = Float[np.ndarray, "time coordinate"]
Mask = Bool[np.ndarray, "coordinate"]
Stepper = Multistep[MirrorFlow]

# A crossing must be this many times longer than the integrator's own step: it costs about five gradients, and the
# integrator must find its step size again behind it.
WORTH = 4.0

# The first step is this part of 1/max|g|, the time in which S of the fastest coordinate changes by 1.
FIRST_STEP = 1e-3

# A time this close to another, relative, is the same: sums of steps have round-off.
END = 1e-14

# Coordinates whose effect is above this part of the tolerance must be at rest before a crossing; all others together
# then stay below it.
FELT = 0.1

# Tolerances from rest within which a crossing is tried. The integrator leaves learned coordinates about one tolerance
# off; farther away they are still moving, and their path would be lost.
AT_REST = 3.0

# A rest is good enough where what is left of its forces moves S by this part of the tolerance over the plateau.
POLISHED = 0.3

# Newton steps of polishing, and the length, in tolerances, of the longest: beyond it leads to another rest.
POLISH_STEPS, POLISH_REACH = 6, 30.0

# Lengths that are tried for one crossing.
ATTEMPTS = 4

# Where a crossing was too long, the next length aims at this part of the tolerance.
GOAL = 0.5

# Evaluations at the far end: two corrections of y² and a last look.
CORRECTIONS = 3

# Corrections end where what is missing is this part of the tolerance, or more than this part of what it was before.
GOOD, PROGRESS = 0.1, 0.5

# The error of a crossing whose far end overflows, in units of S: much shorter next time.
HOPELESS = 1e3

# Largest share of the leader's β that may be gained in the first step behind a plateau.
LARGEST_RATIO = 0.5

# Instants saved inside a plateau, as −log y. At e^-40 the leader's β is below the round-off of its size at the end.
LANDMARKS = np.arange(40, 0, -2)


@dataclass(frozen=True, eq=False)
class Path:
    """A path of the flow: S at the requested times, or at the ends of all steps, and how it was found.

    `crossings` has a row (from, to, stated error of S) for each plateau crossed; `rejected` counts attempted steps that
    were not accepted.
    """

    times: Times
    shifts: Shifts
    crossings: Float[np.ndarray, "crossing 3"]
    steps: int
    rejected: int
    status: Status
    wall_time: float


@dataclass(eq=False)
class _Log:
    """Rows of S; `wanted` are the times still to be saved, None saves the end of every step."""

    wanted: list[float] | None
    times: list[float] = field(default_factory=list)
    shifts: list[Vector] = field(default_factory=list)
    crossings: list[tuple[float, float, float]] = field(default_factory=list)

    def save(self, stepper: Stepper, path: Callable[[Times], Shifts], landmarks: Times | None = None) -> None:
        """Save S at landmarks and the end of a step, or at the wanted times that the step covered."""
        if self.wanted is None:
            due = np.zeros(0) if landmarks is None else landmarks
        else:
            passed = bisect_right(self.wanted, stepper.time * (1 + END))
            due, self.wanted = np.array(self.wanted[:passed]), self.wanted[passed:]
        if len(due):
            self.times += due.tolist()
            self.shifts += list(path(due))
        if self.wanted is None:
            self.times.append(stepper.time)
            self.shifts.append(stepper.state.copy())


def follow(
    force: Force,
    columns: Columns,
    coordinates: LogScale,
    until: float,
    *,
    times: Times | None = None,
    tolerance: float = 1e-5,
    max_steps: int = 100_000,
    cross: bool = True,
    rest: float = 0.0,
    title: str = "following the flow",
) -> Path:
    """Follow the flow from S = 0 at time 0 to `until`.

    Args:
        force, columns: β -> −∇L, and columns of ∇²L.
        until: end, in gradient time.
        times: when to save S, increasing; None saves the end of every step.
        tolerance: error of S per step or crossing; the relative error of β is twice that.
        cross: False integrates plateaus step by step (for checks of the crossing).
        rest: end where all forces have fallen below this.
    """
    began, start = clock.perf_counter(), np.zeros(coordinates.size)
    stepper = _begin(MirrorFlow(force, columns, coordinates, tolerance), start, until)
    log, status = _Log(None if times is None else times.tolist()), FINISHED
    log.save(stepper, lambda due: np.broadcast_to(start, (len(due), len(start))))
    with bar(title, max(until, TINY)) as progress:
        while stepper.time < until * (1 - END) and np.abs(stepper.slope).max() >= rest:
            if stepper.steps >= max_steps:
                status = Status(Ending.STOPPED, f"{max_steps} solver steps spent at time {stepper.time:.6g}")
                break
            before = stepper.time
            try:
                line = _cross(stepper, until) if cross else None
                if line is None:
                    stepper.advance(until)
                    log.save(stepper, stepper.between)
                else:
                    log.crossings.append((before, stepper.time, line.error))
                    log.save(stepper, line.at, line.landmarks())
            except StepError:
                status = Status(Ending.DIVERGED, f"near time {stepper.time:.6g}")
                break
            progress.reach(stepper.time)
    return Path(
        np.array(log.times), np.array(log.shifts).reshape(-1, len(start)), np.array(log.crossings).reshape(-1, 3),
        stepper.steps, stepper.rejected, status, clock.perf_counter() - began,
    )  # fmt: skip


def _begin(flow: MirrorFlow, start: Vector, until: float) -> Stepper:
    """Ask for the fastest coordinate's Hessian column, which sets the scale, and choose a first step."""
    stepper = Multistep(flow, start, rtol=flow.tolerance, atol=0.0)
    flow.ask(start, np.array([int(np.argmax(np.abs(stepper.slope)))]))
    stepper.restart(min(until, FIRST_STEP / max(float(np.abs(stepper.slope).max()), TINY)))
    return stepper


@dataclass(frozen=True, eq=False)
class _Line:
    """A crossed plateau: S = base + (t − since) speed + bend y + curl y², y = e^{pace (t − to)}."""

    since: float
    to: float
    base: Vector
    speed: Vector
    bend: Vector
    curl: Vector
    pace: float
    error: float

    def at(self, times: Times) -> Shifts:
        """S at some times."""
        growth = np.exp(np.minimum(self.pace * (times - self.to), 0.0))[:, None]
        return self.base + (times - self.since)[:, None] * self.speed + growth * self.bend + growth**2 * self.curl

    def landmarks(self) -> Times:
        """Instants at which the growing coordinate's β is e^-2, e^-4, … of its size at the far end."""
        times = self.to - LANDMARKS / self.pace
        return times[times > self.since]


def _cross(stepper: Stepper, until: float) -> _Line | None:
    """Cross the plateau that begins here, or return None where there is none worth it.

    Tests are ordered by price: the first two need no gradient and no eigenvectors, and most calls end there.
    """
    flow, room = stepper.flow, until - stepper.time
    felt = _felt(stepper, room)
    length, _ = _length(stepper, stepper.slope, felt, room)
    if length < WORTH * stepper.step or not _near_rest(stepper, felt, room):
        return None
    polished = _polish(stepper, felt, length)
    if polished is None:
        return None
    base, speed = polished
    length, leader = _length(stepper, speed, felt, room)
    for _ in range(ATTEMPTS):
        if length < WORTH * stepper.step:
            return None
        # Without a leader nothing grows before the end; any pace does, for bend and curl come out as 0.
        pace = 2 * abs(float(speed[leader])) if leader is not None else 1 / length
        bend, curl, error = _bend(flow, base + length * speed, speed, pace, leader)
        if error <= flow.tolerance:
            line = _Line(stepper.time, stepper.time + length, base, speed, bend, curl, pace, error)
            _leave(stepper, line, until)
            return line
        # Two orders are corrected, so the error is of third order in y: it falls as e^{3 pace t}.
        length -= float(np.log(error / (GOAL * flow.tolerance))) / (3 * pace)
    return None


def _felt(stepper: Stepper, room: float) -> Mask:
    """Coordinates that are felt; one that does not grow acts for as long as there is room."""
    with np.errstate(divide="ignore", over="ignore"):
        span = np.minimum(1 / (4 * np.abs(stepper.slope)), room)
        return stepper.flow.influence(stepper.state) * span > FELT * stepper.flow.tolerance


def _near_rest(stepper: Stepper, felt: Mask, room: float) -> bool:
    """Whether the felt coordinates are within `AT_REST` tolerances of a stable rest.

    |g| ≤ stiffness · distance, with the largest row sum of |H D| for the stiffness, so larger forces say no without
    eigenvectors.
    """
    flow, chosen = stepper.flow, np.flatnonzero(felt)
    block = flow.hessian.matrix[np.ix_(chosen, chosen)] * flow.coordinates.slope(stepper.state)[chosen]
    stiffness = float(np.abs(block).sum(axis=1).max(initial=0.0))
    if np.abs(stepper.slope[felt]).max(initial=0.0) > AT_REST * flow.tolerance * stiffness:
        return False
    away = flow.to_rest(stepper.state, stepper.slope, chosen, drift=flow.tolerance / room)
    return away is not None and bool(np.abs(away).max(initial=0.0) <= AT_REST * flow.tolerance)


def _length(stepper: Stepper, speed: Vector, felt: Mask, room: float) -> tuple[float, int | None]:
    """How long the first coordinate to grow may grow, and which it is.

    dβ/dS = ½ e^{2 level} with level = log p or log q, whichever grows, so that the effect is
    max|∇²L| e^{2 level} / (8|g|) and reaches X where level = ½ log(8|g| X / max|∇²L|). The leader may go to
    X = ∛tolerance / 2, for two orders of its effect are corrected and the third is then an eighth of the tolerance; the
    others only to X = tolerance.
    """
    flow, pace = stepper.flow, np.where(felt, 0.0, speed)
    coords, tolerance = flow.coordinates, flow.tolerance
    level = np.where(pace > 0, coords.log_p + stepper.state, coords.log_q - stepper.state)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        gap = 0.5 * (np.log(8 * np.abs(pace)) - np.log(flow.hessian.scale)) - level
        first = np.where(pace != 0, (gap + 0.5 * np.log(np.cbrt(tolerance) / 2)) / np.abs(pace), np.inf)
        others = np.where(pace != 0, (gap + 0.5 * np.log(tolerance)) / np.abs(pace), np.inf)
    if not np.isfinite(first).any():
        return room, None
    leader = int(np.argmin(first))
    others[leader] = np.inf
    return float(min(first[leader], others.min(), room)), leader


def _polish(stepper: Stepper, felt: Mask, length: float) -> tuple[Vector, Vector] | None:
    """Put the felt coordinates to rest, so that what drives the others is known to tolerance / length."""
    flow, base, chosen = stepper.flow, stepper.state.copy(), np.flatnonzero(felt)
    for _ in range(POLISH_STEPS):
        # The slope of the history would not do here: over a plateau of length 1e4 its error counts 1e4 times.
        force = flow.field(base)
        if np.abs(force[felt]).max(initial=0.0) * length <= POLISHED * flow.tolerance:
            return base, np.where(felt, 0.0, force)
        away = flow.to_rest(base, force, chosen)
        if away is None or np.abs(away).max() > POLISH_REACH * flow.tolerance:
            return None
        base[felt] += away
    return None


def _bend(
    flow: MirrorFlow, there: Vector, speed: Vector, pace: float, leader: int | None
) -> tuple[Vector, Vector, float]:
    """What a coordinate growing as y = e^{pace t} did to S by the end of a plateau, to second order, and its error.

    First order: bend y solves δS' = −H D δS − H_leader β_leader y. Second order: curl y² takes what the true forces at
    the far end say is missing. The error is what they miss then, there and at y = 1/2, over the pace.
    """
    bend, curl = np.zeros_like(there), np.zeros_like(there)
    if leader is not None:
        flow.know(there, np.array([leader]))
        pushed = -flow.hessian.matrix[:, leader] * flow.coordinates.beta(there)[leader]
        # (pace + H D) bend = pushed. Without the leader's own D: its β is prescribed here, not a response.
        bend = flow.react(there, pushed / pace, 1 / pace, without=leader)
    error = np.inf
    for _ in range(CORRECTIONS):
        # At y = 1: S' = speed + pace · bend + 2 pace · curl.
        missing = flow.field(there + bend + curl) - speed - pace * bend - 2 * pace * curl
        before, error = error, float(np.abs(missing).max()) / pace
        if not np.isfinite(error):
            return bend, curl, HOPELESS
        if error <= GOOD * flow.tolerance or error > PROGRESS * before:
            break
        curl = curl + flow.react(there + bend + curl, missing / (2 * pace), 1 / (2 * pace))
    if leader is None or error > flow.tolerance:
        return bend, curl, error
    # Curl was fitted at y = 1, where it hides any other power of y. Half-way, log 2 / pace earlier, it cannot.
    half = flow.field(there - speed * np.log(2) / pace + bend / 2 + curl / 4)
    return bend, curl, max(error, float(np.abs(half - speed - pace * (bend + curl) / 2).max()) / pace)


def _leave(stepper: Stepper, line: _Line, until: float) -> None:
    """Hand over to the integrator at the far end, with the plateau as its history.

    The difference of order k of bend y over steps of size h is bend (1 − e^{−pace h})ᵏ: the step is the one at which
    that of order `ORDERS` + 1, the error estimate, meets the tolerance.
    """
    height = max(float(np.abs(line.bend).max()), stepper.flow.tolerance)
    ratio = min(LARGEST_RATIO, (stepper.flow.tolerance / height) ** (1 / (ORDERS + 1)))
    left = until - line.to
    step = min(float(-np.log1p(-ratio)) / line.pace, left if left > 0 else np.inf)
    stepper.resume(line.to, line.at, step)
