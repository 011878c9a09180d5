"""The one place that calls an ODE solver.

Integration goes in blocks of saved times: between blocks Python sees a progress bar,
Ctrl-C and non-finite states, and everything saved so far is kept.
"""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import saddles.runtime.float64  # noqa: F401
from saddles.core.trajectory import DIVERGED, FINISHED
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar

Field = Callable[[Any, Any, Any], Any]
"""field(t, state, args) -> derivative of the state."""

BLOCK = 16
"""Saved times in one compiled call."""


SAVED_TIMES = 201
"""Instants of a flow whose times were not given."""


@dataclass(frozen=True)
class Solution:
    """What a solve gave, and how it ended.

    `saved` is the pytree that `observe` returned, with time in front; `state` is the
    last full state, at time `end`; `status` says why it ended.
    """

    times: np.ndarray
    saved: Any
    state: Any
    end: float
    status: str
    steps: int
    rejected: int
    evaluations: int
    wall_time: float


def _rms(tree: Any) -> Any:
    leaves = jax.tree.leaves(tree)
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves) / sum(leaf.size for leaf in leaves))


def _solver(stiff: bool) -> diffrax.AbstractSolver:
    """Tsit5's interpolant keeps the tolerance between steps; that of Dopri8 loses a factor of forty."""
    return diffrax.Kvaerno5() if stiff else diffrax.Tsit5()


def _evaluations_a_step(solver: diffrax.AbstractSolver) -> int:
    """Stages of the tableau; a lower bound for implicit solvers, whose iterations are not counted."""
    tableau: Any = getattr(solver, "tableau", None)
    return 1 + len(tableau.a_lower) if tableau is not None else 1


@eqx.filter_jit
def _advance(
    field: Field, observe: Any, halt: Any, solver: Any, start: Any, args: Any, ts: Any, t0: Any, dt0: Any,
    rtol: Any, atol: Any, max_steps: int,
) -> Any:  # fmt: skip
    event = None if halt is None else diffrax.Event(lambda t, y, args, **_: halt(t, y, args))
    save = diffrax.SaveAt(
        subs=(diffrax.SubSaveAt(ts=ts, fn=observe), diffrax.SubSaveAt(t1=True)),
    )
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        solver,
        t0,
        ts[-1],
        dt0,
        start,
        args,
        saveat=save,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol, dtmin=1e-15 * ts[-1], force_dtmin=False),
        event=event,
        max_steps=max_steps,
        throw=False,
        adjoint=diffrax.ForwardMode(),
    )
    clocks: Any = found.ts
    states: Any = found.ys
    (times, saved), (end, state) = zip(clocks, states, strict=True)
    end, state = end[-1], jax.tree.map(lambda leaf: leaf[-1], state)
    codes = (
        found.result == diffrax.RESULTS.event_occurred,
        found.result == diffrax.RESULTS.max_steps_reached,
        found.result != diffrax.RESULTS.successful,
    )
    stats = (found.stats["num_accepted_steps"], found.stats["num_rejected_steps"])
    return times, saved, end, state, codes, stats


@eqx.filter_jit
def _sizes(field: Field, t0: Any, start: Any, args: Any) -> tuple[Any, Any]:
    return _rms(field(t0, start, args)), _rms(start)


def first_step(field: Field, start: Any, args: Any, t0: float, span: float) -> float:
    """A first step that changes the state by one per cent (Hairer's rule of thumb)."""
    slope, size = map(float, _sizes(field, jnp.asarray(t0), start, args))
    return min(span, 0.01 * size / slope) if slope > 0 and size > 0 else span * 1e-3


def solve(
    field: Field,
    start: Any,
    times: Any,
    *,
    args: Any = None,
    observe: Callable[[Any, Any, Any], Any] | None = None,
    halt: Callable[[Any, Any, Any], Any] | None = None,
    rtol: float = 1e-9,
    atol: float | None = None,
    stiff: bool = False,
    max_steps: int = 100_000,
    title: str = "integrating",
) -> Solution:
    """Integrate state' = field(t, state, args) and save at the given times.

    Args:
        field: the derivative; a pytree in, the same pytree out.
        start: state at `times[0]`.
        times: increasing save times, shape (time,); the first is the start.
        args: passed on to `field`, `observe` and `halt` (arrays there do not recompile).
        observe: what to save at each time, `observe(t, state, args)`; default the state.
        halt: `halt(t, state, args) -> bool`; integration ends after the step where it is true.
        rtol, atol: error a step; atol defaults to rtol times the size of the start.
        stiff: an implicit solver (Kvaerno 5) instead of an explicit one.
        max_steps: most solver steps in all; reaching it ends the run with that status.
    """
    began = clock.perf_counter()
    times = np.asarray(times, dtype=float)
    start = jax.tree.map(jnp.asarray, start)
    size = float(_rms(start))
    atol = rtol * (size if size > 0 else 1.0) if atol is None else atol
    solver, watch = _solver(stiff), observe or _whole_state
    kept_times, kept, accepted, rejected = [], [], 0, 0
    status, state, now = FINISHED, start, float(times[0])
    span = float(times[-1] - times[0])
    step = first_step(field, start, args, now, span) if span > 0 else 1.0
    with bar(title, max(span, 1e-300)) as progress:
        for block in _blocks(times):
            padded = np.concatenate([block, np.full(BLOCK - len(block), block[-1])])
            ts, saved, end, last, codes, stats = _advance(
                field, watch, halt, solver, state, args, jnp.asarray(padded), jnp.asarray(now), jnp.asarray(step),
                jnp.asarray(rtol), jnp.asarray(atol), max_steps,
            )  # fmt: skip
            good = _good_rows(ts, saved, len(block))
            kept_times.append(np.asarray(ts)[:good])
            kept.append(jax.tree.map(lambda leaf, n=good: np.asarray(leaf[:n]), saved))
            accepted, rejected = accepted + int(stats[0]), rejected + int(stats[1])
            state, moved, now = last, float(end) - now, float(end)
            progress.reach(now - float(times[0]))
            seen = float(kept_times[-1][-1]) if good else now
            status = _status(codes, accepted + rejected, max_steps, now, seen, good == len(block))
            if status != FINISHED:
                break
            if moved > 0 and int(stats[0]) > 0:
                step = moved / int(stats[0])
    saved = jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
    return Solution(
        np.concatenate(kept_times), saved, state, end=now, status=status, steps=accepted, rejected=rejected,
        evaluations=_evaluations_a_step(solver) * (accepted + rejected), wall_time=clock.perf_counter() - began,
    )  # fmt: skip


def settle(
    field: Field,
    start: Any,
    settled: Callable[[Any, Any, Any], Any],
    *,
    args: Any = None,
    scale: float = 1.0,
    limit: float = 1e12,
    rtol: float = 1e-4,
    max_steps: int = 20_000,
) -> tuple[float, bool]:
    """Find when a flow has come to rest, by a coarse run of it.

    Args:
        settled: `settled(t, state, args) -> bool`.
        scale: a guess of the flow's own time scale; blocks of time double from there.
        limit: latest time to look at.

    Returns the time, and whether the condition was met there.
    """
    start = jax.tree.map(jnp.asarray, start)
    edges = scale * 2.0 ** np.arange(0, max(2, int(np.ceil(np.log2(limit / scale)))))
    found = solve(
        field,
        start,
        np.concatenate([[0.0], edges]),
        args=args,
        observe=_nothing,
        halt=settled,
        rtol=rtol,
        max_steps=max_steps,
        title="looking for convergence",
    )
    return found.end, found.status == "stopped: halt condition met"


def from_zero(times: Any) -> tuple[np.ndarray, int]:
    """Put the start in front of the asked times where it is missing, and say how many were added."""
    asked = np.asarray(times, dtype=float)
    if asked.ndim != 1 or not len(asked) or not np.isfinite(asked).all() or asked[0] < 0 or (np.diff(asked) <= 0).any():
        raise SaddlesError.about(
            f"times {times!r:.60} came", "increasing times of at least 0 are needed", "use numpy.linspace(0, end, 201)"
        )
    return (asked, 0) if asked[0] == 0 else (np.concatenate([[0.0], asked]), 1)


def _whole_state(t: Any, state: Any, args: Any) -> Any:
    return state


def _nothing(t: Any, state: Any, args: Any) -> Any:
    return t


def _blocks(times: np.ndarray) -> list[np.ndarray]:
    return [times[i : i + BLOCK] for i in range(0, len(times), BLOCK)]


def _status(codes: Any, steps: int, max_steps: int, now: float, seen: float, whole: bool) -> str:
    """Why a block ended: `seen` is the last good instant, `whole` whether every instant of the block was good."""
    halted, spent, failed = (bool(code) for code in codes)
    if halted:
        return "stopped: halt condition met"
    if spent or steps >= max_steps:
        return f"stopped: {steps} solver steps spent at time {now:.6g}"
    return FINISHED if whole and not failed else f"{DIVERGED} near time {seen:.6g}"


def _good_rows(times: Any, saved: Any, count: int) -> int:
    """How many of the first `count` instants were reached with finite observations."""
    fine = np.isfinite(np.asarray(times)[:count])
    for leaf in jax.tree.leaves(saved):
        fine &= np.isfinite(np.asarray(leaf[:count])).reshape(count, -1).all(axis=1)
    return count if fine.all() else int(np.argmin(fine))
