"""The flow of separate heads, with its plateaus crossed instead of stepped through.

A head of degree three, v k qᵀ, waits for a time 1/s from a start of size s, while the learned heads return to rest
within a time of order one: an ordinary solver would take 1/s steps. On a plateau the learned heads rest, so that the
push A = −∇L(M) on the others is constant and each of them moves alone, by v' = tr(KᵀAQ), K' = vAQ, Q' = vAᵀK. This is
followed in a clock τ with dτ = (relative speed) dt, in which the growth from 1e-16 to 1e-2 takes some thirty units,
although the heads blow up in a finite time t. The plateau ends where the part of M that a waiting head makes is felt.

Everything happens in the eigenvectors of Λ, where the loss is elementwise. SciPy steps (DOP853); Python sees each step.
"""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.integrate import DOP853
from scipy.optimize import brentq

from saddles.core.status import CONVERGED, FINISHED, Ending, Status

State = Float[np.ndarray, " weight"]
Times = Float[np.ndarray, " time"]
Way = Callable[[float], State]
"""Weights at a time."""

FELT = 1e-5
"""A head waits while its part of M is below this part of the largest entry of M*: so much of the push is neglected."""

AT_REST = 100.0
"""Learned heads rest when they move at less than this many rtol times 2λ²: the solver's own error keeps them at
about one. The push on the others is then known to a part of about 100 rtol."""

FULL = 1e-2
"""… and when no direction still waits inside them: their smallest singular value is this part of the largest."""

WORTH = 30.0
"""A plateau is crossed if it is longer than so many times 1/(2λ²), the time in which learned heads return to rest."""

LOOK = 8
"""Steps between two looks at whether a plateau has begun."""

FINE = 1e-2
"""Absolute errors are kept below this part of rtol times the size of the smallest head."""


@dataclass(eq=False)
class Heads:
    """The equations in the frame of Λ: λ, the diagonal of S, and the shapes of v, K and Q."""

    values: np.ndarray
    moment: np.ndarray
    heads: int
    rank: int
    evaluations: int = 0

    def split(self, state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """v (head,), K and Q as (head · rank, D)."""
        size = self.heads * self.rank * len(self.values)
        shape = (-1, len(self.values))
        value, key, query = np.split(state, [self.heads, self.heads + size])
        return value, key.reshape(shape), query.reshape(shape)

    def matrix(self, state: State) -> np.ndarray:
        """M."""
        value, key, query = self.split(state)
        return (key * np.repeat(value, self.rank)[:, None]).T @ query

    def push(self, matrix: np.ndarray) -> np.ndarray:
        """−∇L(M)."""
        return 2 * (np.diag(self.values**2) - self.moment[:, None] * matrix * self.values)

    def moved(self, state: State, push: np.ndarray) -> State:
        """The slope of all heads under a given push."""
        self.evaluations += 1
        value, key, query = self.split(state)
        seen, scale = query @ push.T, np.repeat(value, self.rank)[:, None]
        turn = np.einsum("id,id->i", key, seen).reshape(self.heads, self.rank).sum(axis=1)
        return np.concatenate([turn, (scale * seen).ravel(), (scale * (key @ push)).ravel()])

    def slope(self, time: float, state: State) -> State:
        """−∇L of the weights."""
        return self.moved(state, self.push(self.matrix(state)))

    def sizes(self, state: State) -> np.ndarray:
        """|v| ‖K‖ ‖Q‖ of each head, a bound on its part of M."""
        value, key, query = self.split(state)
        parts = [np.sqrt(np.sum(part.reshape(self.heads, -1) ** 2, axis=1)) for part in (key, query)]
        return np.abs(value) * parts[0] * parts[1]

    def full(self, state: State, which: Bool[np.ndarray, " head"]) -> bool:
        """Whether these heads have learned as many directions as their rank (or all D)."""
        most = min(self.rank, len(self.values))
        for part in self.split(state)[1:] if self.rank > 1 and which.any() else ():
            blocks = part.reshape(self.heads, self.rank, -1)[which]
            singular = np.linalg.svd(blocks, compute_uv=False)
            if (singular[:, most - 1] < FULL * singular[:, 0]).any():
                return False
        return True

    def of(self, heads: Bool[np.ndarray, " head"]) -> Bool[np.ndarray, " weight"]:
        """Which weights belong to these heads."""
        block = np.repeat(heads, self.rank * len(self.values))
        return np.concatenate([heads, block, block])


@dataclass(eq=False)
class Followed:
    """Rows of weights with their times, the plateaus crossed (from, to), and how it ended."""

    times: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    crossings: list[tuple[float, float]] = field(default_factory=list)
    status: Status = FINISHED
    wall_time: float = 0.0

    def save(self, time: float, state: State) -> None:
        """Add a row. From a start of 1e-16 a whole drop may be shorter than the spacing of floats: its end is kept."""
        if self.times and time <= self.times[-1]:
            self.times.pop()
            self.states.pop()
        self.times.append(time)
        self.states.append(np.array(state))


def follow_heads(
    heads: Heads,
    start: State,
    *,
    until: float | None = None,
    times: Times | None = None,
    goal: float = 0.0,
    rtol: float = 1e-9,
    max_steps: int = 100_000,
    cross: bool = True,
) -> Followed:
    """Follow the heads to `until`, or until the loss has fallen to `goal`.

    Args:
        times: when to save, increasing; None saves the end of every step.
        cross: False steps through plateaus, for checks of the crossing.
    """
    began, end = clock.perf_counter(), np.inf if until is None else until
    done, wanted = Followed(), None if times is None else list(times)
    now, state, steps, idle = 0.0, start, 0, 0
    largest = float(np.max(heads.values / heads.moment))
    if wanted is None:
        done.save(now, state)
    while wanted and wanted[0] <= now:
        done.save(wanted.pop(0), state)
    base, stepper = now, _stepper(heads, state, end - now, rtol)
    while now < end:
        if until is None and _loss(heads, heads.matrix(state)) <= goal:
            done.status = CONVERGED
            break
        if steps >= max_steps:
            done.status = Status(Ending.STOPPED, f"{max_steps} solver steps spent at time {now:.6g}")
            break
        line = _cross(heads, state, end - now, FELT * largest, rtol) if cross and idle % LOOK == 0 else None
        if line is not None:
            path, length, count = line
            steps, before, now, idle = steps + count, now, min(now + length, end), 1
            done.crossings.append((before, now))
            _save(done, wanted, now, lambda due, s=before, p=path: p(due - s))
            state = path(now - before)
            if now < end:
                base, stepper = now, _stepper(heads, state, end - now, rtol)
            continue
        words = stepper.step()
        steps, idle = steps + 1, idle + 1
        if stepper.status == "failed" or not np.isfinite(stepper.y).all():
            done.status = Status(Ending.DIVERGED, f"near time {now:.6g}: {words}")
            break
        now, state, dense = base + float(stepper.t), stepper.y, stepper.dense_output()
        _save(done, wanted, now, lambda due, s=base, p=dense: p(due - s), state)
    done.wall_time = clock.perf_counter() - began
    return done


def _loss(heads: Heads, matrix: np.ndarray) -> float:
    """L(M) in the frame of Λ."""
    power = np.sum(heads.moment[:, None] * matrix**2 * heads.values)
    return float(heads.values.sum() - 2 * np.sum(heads.values**2 * np.diag(matrix)) + power)


def _stepper(heads: Heads, state: State, room: float, rtol: float) -> DOP853:
    """On a clock that begins at 0: added to a time of 1e17, a step would be lost."""
    smallest = float(np.min(np.linalg.norm(np.stack(heads.split(state)[1:]), axis=-1)))
    return DOP853(heads.slope, 0.0, state, room, rtol=rtol, atol=FINE * rtol * max(smallest, 1e-300))


def _save(done: Followed, wanted: list[float] | None, now: float, path: Way, state: State | None = None) -> None:
    """Save the wanted times that were passed, or the end of the step."""
    if wanted is None:
        done.save(now, path(now) if state is None else state)
        return
    while wanted and wanted[0] <= now:
        due = wanted.pop(0)
        done.save(due, path(due))


def _cross(heads: Heads, state: State, room: float, felt: float, rtol: float) -> tuple[Way, float, int] | None:
    """Cross the plateau that begins here: (path over the time since, its length, steps); None where there is none."""
    waiting = heads.sizes(state) < felt
    if not waiting.any():
        return None
    mine = heads.of(waiting)
    learned = np.where(mine, 0.0, state)
    push = heads.push(heads.matrix(learned))
    others = np.where(mine, state, 0.0)
    size = float(np.sqrt(np.sum(others**2)))
    force = float(np.linalg.norm(push, 2))
    # No weight of a head grows faster than force · size, whatever its direction: nothing can happen before this.
    length = min(1 / (force * size) if force * size > 0 else np.inf, room)
    if length < WORTH / (2 * heads.values[-1] ** 2):
        return None
    speed = float(np.abs(heads.moved(learned, push)).max())
    if speed > AT_REST * rtol * 2 * heads.values[0] ** 2 or not heads.full(state, ~waiting):
        return None

    def field(tau: float, now: State) -> State:
        slope = np.where(mine, heads.moved(now[:-1], push), 0.0)
        pace = np.linalg.norm(slope) / np.linalg.norm(now[:-1])
        return np.append(slope, 1.0) / pace

    atol = np.append(np.full(len(state), FINE * rtol * size), rtol * length)
    stepper = DOP853(field, 0.0, np.append(others, 0.0), np.inf, rtol=rtol, atol=atol)  # pyright: ignore[reportArgumentType]
    pieces, count = [], 0
    while True:
        stepper.step()
        count += 1
        pieces.append(stepper.dense_output())
        if heads.sizes(stepper.y[:-1]).max() >= felt or stepper.y[-1] >= room:
            break

    def past(tau: float) -> float:
        now = pieces[-1](tau)
        return max(float(heads.sizes(now[:-1]).max() / felt) - 1, float(now[-1] / room) - 1)

    inside = past(pieces[-1].t_old) < 0
    last: Any = brentq(past, pieces[-1].t_old, pieces[-1].t, xtol=1e-12) if inside else pieces[-1].t_old

    def path(since: float) -> State:
        """The weights a time after the plateau's begin: t(τ) is inverted on the piece that holds it."""
        ends = [float(piece(piece.t)[-1]) for piece in pieces]
        piece = pieces[min(int(np.searchsorted(ends, since)), len(pieces) - 1)]
        edges = float(piece(piece.t_old)[-1]) - since, float(piece(piece.t)[-1]) - since
        inside = edges[0] < 0 < edges[1]
        tau = brentq(lambda at: float(piece(at)[-1]) - since, piece.t_old, piece.t) if inside else (
            piece.t_old if edges[0] >= 0 else piece.t)  # fmt: skip
        return np.where(mine, piece(tau)[:-1], state)

    return path, float(pieces[-1](last)[-1]), count
