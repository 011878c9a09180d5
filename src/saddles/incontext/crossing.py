"""The flow of separate heads, with plateaus crossed instead of stepped through.

A head of degree three, v k qᵀ, waits for a time 1/s from a start of size s, while the learned heads return to rest
within a time of order one: an ordinary solver would take 1/s steps. Two things remove that cost. Learned heads at rest
are frozen (`heads.py`), and released where others add more to what they have learned than is small. And while every
other head is tiny, a clock τ with dτ = (relative speed) dt replaces time: the growth from 1e-16 to 1e-2 takes some
thirty units, although the heads blow up in a finite time t.

SciPy steps (DOP853); Python sees each step.
"""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import DOP853
from scipy.optimize import brentq

from saddles.core.status import CONVERGED, FINISHED, Ending, Status
from saddles.incontext.heads import Heads, Part, State, Weights

Times = Float[np.ndarray, " time"]
Way = Callable[[float], np.ndarray]
"""Weights at a time."""

FELT = 1e-5
"""A head waits while its part of M is below this part of the largest entry of M*; frozen heads are released where
others add more than this to what they have learned."""

LOOK = 8
"""Steps between two looks at whether a head has come to rest."""

FINE = 1e-2
"""Absolute errors are kept below this part of rtol times the size of the smallest head."""

NO_PUSH = 1e-9
"""Below this part of the first push every direction is learned, and the rest is round-off."""


@dataclass(eq=False)
class Followed:
    """Rows of weights with their times, the plateaus crossed (from, to), and how it ended."""

    times: list[float] = field(default_factory=list)
    states: list[Weights] = field(default_factory=list)
    crossings: list[tuple[float, float]] = field(default_factory=list)
    status: Status = FINISHED
    wall_time: float = 0.0

    def save(self, time: float, state: Weights) -> None:
        """Add a row. From a start of 1e-16 a whole drop may be shorter than the spacing of floats: its end is kept."""
        if self.times and time <= self.times[-1]:
            self.times.pop()
            self.states.pop()
        self.times.append(time)
        self.states.append(np.array(state))


def follow_heads(
    heads: Heads,
    start: Weights,
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
        cross: False steps through plateaus and freezes nothing, for checks.
    """
    began, end = clock.perf_counter(), np.inf if until is None else until
    done, wanted = Followed(), None if times is None else list(times)
    felt = FELT * float(np.max(heads.values / heads.moment))
    part = Part.everything(heads)
    base, now, state, steps, idle = 0.0, 0.0, start, 0, 0
    if wanted is None:
        done.save(now, state)
    while wanted and wanted[0] <= now:
        done.save(wanted.pop(0), state)
    stepper = _stepper(part, state, end, rtol)
    while now < end:
        if until is None and heads.loss(heads.matrix(part.full(state))) <= goal:
            done.status = CONVERGED
            break
        if steps >= max_steps:
            done.status = Status(Ending.STOPPED, f"{max_steps} solver steps spent at time {now:.6g}")
            break
        next_part = _next_part(heads, part, state, felt, rtol, look=cross and idle % LOOK == 0)
        if next_part is not part:
            state, part = part.full(state)[next_part.mine], next_part
            base, stepper = now, _stepper(part, state, end - now, rtol)
        line = _cross(part, state, end - now, felt, rtol) if cross and idle % LOOK == 0 else None
        if line is not None:
            path, length, count = line
            # `idle` is 1 and not 0, for a plateau was just left: it is too early to look for the next.
            steps, before, now, idle = steps + count, now, min(now + length, end), 1
            done.crossings.append((before, now))
            _save(done, wanted, now, lambda due, s=before, p=path, o=part: o.full(p(due - s)))
            state = path(now - before)
            base, stepper = now, _stepper(part, state, end - now, rtol)
            continue
        words = stepper.step()
        steps, idle = steps + 1, idle + 1
        if stepper.status == "failed" or not np.isfinite(stepper.y).all():
            done.status = Status(Ending.DIVERGED, f"near time {now:.6g}: {words}")
            break
        now, state = base + float(stepper.t), stepper.y
        if wanted is None:
            done.save(now, part.full(state))
        elif wanted and wanted[0] <= now:
            dense = stepper.dense_output()
            _save(done, wanted, now, lambda due, s=base, p=dense, o=part: o.full(p(due - s)))
    done.wall_time = clock.perf_counter() - began
    return done


def _next_part(heads: Heads, part: Part, state: State, felt: float, rtol: float, look: bool) -> Part:
    """Which heads move from here on: those at rest are frozen where it is time to look, all are released if felt."""
    found = part.rested(state, felt, rtol) if look else None
    if found is None and part.frozen.any() and part.system.returned(state) > felt:
        found = Part.everything(heads)
    # With every head frozen nothing would move, and the solver would have an empty state.
    return part if found is None or found.frozen.all() else found


def _stepper(part: Part, state: State, room: float, rtol: float) -> DOP853:
    """On a clock that begins at 0: added to a time of 1e17, a step would be lost."""
    smallest = float(np.min(np.linalg.norm(np.stack(part.system.split(state)[1:]), axis=-1)))
    atol = FINE * rtol * max(smallest, 1e-300)
    return DOP853(part.system.slope, 0.0, state, max(room, 1e-300), rtol=rtol, atol=atol)


def _save(done: Followed, wanted: list[float] | None, now: float, path: Way) -> None:
    """Save the wanted times that were passed, or the end of the step."""
    if wanted is None:
        done.save(now, path(now))
        return
    while wanted and wanted[0] <= now:
        due = wanted.pop(0)
        done.save(due, path(due))


def _cross(part: Part, state: State, room: float, felt: float, rtol: float) -> tuple[Way, float, int] | None:
    """Cross the plateau that begins here: (path over the time since, its length, steps); None where there is none."""
    heads = part.system
    force = float(np.linalg.norm(heads.push(heads.matrix(state)), 2))
    # At M = 0 the push is 2Λ², so that its norm is 2λ₁².
    if heads.sizes(state).max() >= felt or force <= NO_PUSH * 2 * heads.values[0] ** 2:
        return None
    size = float(np.linalg.norm(state))
    # No weight of a head grows faster than force · size, whatever its direction: nothing can happen before this.
    length = min(1 / (force * size), room)

    def field(tau: float, now: State) -> State:
        slope = heads.slope(0.0, now[:-1])
        pace = np.linalg.norm(slope) / np.linalg.norm(now[:-1])
        return np.append(slope, 1.0) / pace

    atol = np.append(np.full(len(state), FINE * rtol * size), rtol * length)
    stepper = DOP853(field, 0.0, np.append(state, 0.0), np.inf, rtol=rtol, atol=atol)  # pyright: ignore[reportArgumentType]
    pieces, count = [], 0
    while True:
        stepper.step()
        if stepper.status == "failed":  # what cannot be crossed is stepped through, and ends as it ends there
            return None
        count += 1
        pieces.append(stepper.dense_output())
        if heads.sizes(stepper.y[:-1]).max() >= felt or stepper.y[-1] >= room:
            break

    def past(tau: float) -> float:
        now = pieces[-1](tau)
        return max(float(heads.sizes(now[:-1]).max() / felt) - 1, float(now[-1] / room) - 1)

    # The last step went past the end of the plateau: where it ends is found on that step's own interpolant.
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
        return piece(tau)[:-1]

    return path, float(pieces[-1](last)[-1]), count
