"""The one place that calls an ODE solver.

Integration goes in blocks of saved times: between blocks Python sees a progress bar,
Ctrl-C and non-finite states, and everything saved so far is kept.
"""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.validation import check_times
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.precision import in_double_precision
from saddles.runtime.progress import bar

if TYPE_CHECKING:  # imported where a flow is solved: it takes as long as JAX, and descent does without
    import diffrax

State = TypeVar("State")
"""A pytree of arrays."""
Args = TypeVar("Args")
Field = Callable[[Array, State, Args], State]
"""field(t, state, args) -> derivative of the state."""

BLOCK = 16
"""Saved times in one compiled call: between calls Python sees Ctrl-C, the progress bar and non-finite states."""

SAVED_TIMES = 201
"""Instants of a flow whose times were not given."""

FIRST_CHANGE = 0.01
"""The first step changes the state by about this part (Hairer, Nørsett, Wanner: Solving ODEs I, II.4)."""

SMALLEST_STEP = 1e-15
"""Steps below this part of the end time are not taken: time plus step would round to time."""

HALTED = "halt condition met"

# Not ended early: a flow may come to the end of a kink, and go on.
SLIDES = "sliding along a kink, as of a ReLU, in tiny steps: a larger `rtol` takes larger ones"

NEAR, HALVINGS, BACK = 10.0, 20, 1e3
"""A jump of the field is looked for within so many mean steps, by so many bisections: a millionth of the way is left,
over which a smooth field hardly changes. So many times that way is then followed behind the jump."""

JUMP = 1e-3
"""A jump by less than this part of the field may be a steep place."""


@dataclass(frozen=True)
class Solution:
    """What a solve gave, and how it ended.

    `saved` is the pytree that `observe` returned, with time in front; `state` is the
    last full state, at time `end`; `status` says why it ended.
    """

    times: np.ndarray
    saved: Any  # the pytree that `observe` returned
    state: Any  # the pytree that `start` was
    end: float
    status: Status
    steps: int
    rejected: int
    evaluations: int
    wall_time: float

    @property
    def halted(self) -> bool:
        """It ended because the halt condition was met."""
        return self.status.reason == HALTED


def _rms(tree: object) -> Array:
    """Root mean square over all entries of a pytree, also where their squares would under- or overflow."""
    leaves = jax.tree.leaves(tree)
    # A balanced start at A = 0 has a factor without columns.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    size = jnp.where(largest > 0, largest, 1.0)
    entries = max(1, sum(leaf.size for leaf in leaves))
    return size * jnp.sqrt(sum(jnp.sum((leaf / size) ** 2) for leaf in leaves) / entries)


def _solver(stiff: bool) -> "diffrax.AbstractSolver":
    """Tsit5's interpolant keeps the tolerance between steps; that of Dopri8 loses a factor of forty."""
    import diffrax

    return diffrax.Kvaerno5() if stiff else diffrax.Tsit5()


def _evaluations_per_step(solver: "diffrax.AbstractSolver") -> int:
    """Stages of the tableau; a lower bound for implicit solvers, whose iterations are not counted."""
    tableau = getattr(solver, "tableau", None)
    return 1 + len(tableau.a_lower) if tableau is not None else 1


@eqx.filter_jit
def _advance(
    field: Field, observe: Callable[[Array, State, Args], Any], halt: Callable[[Array, State, Args], Array] | None,
    solver: "diffrax.AbstractSolver", start: State, args: Args, ts: Array, t0: Array, dt0: Array, rtol: Array,
    atol: Array, max_steps: int,
) -> tuple[Array, Any, Array, State, tuple[Array, Array, Array], tuple[Array, Array]]:  # fmt: skip
    """One block of saved times: times, what was observed, end, last state, (halted, spent, failed), step counts."""
    import diffrax

    event = None if halt is None else diffrax.Event(lambda t, y, args, **_: halt(t, y, args))
    save = diffrax.SaveAt(
        subs=(diffrax.SubSaveAt(ts=ts, fn=observe), diffrax.SubSaveAt(t1=True)),
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),  # type: ignore[arg-type]  (diffrax's time is any real scalar)
        solver,
        t0,
        ts[-1],
        dt0,
        start,
        args,
        saveat=save,
        stepsize_controller=diffrax.PIDController(
            rtol=rtol, atol=atol, dtmin=SMALLEST_STEP * ts[-1], force_dtmin=False
        ),
        event=event,
        max_steps=max_steps,
        throw=False,
        adjoint=diffrax.ForwardMode(),  # nothing is differentiated backwards: no checkpoints in memory
    )
    clocks: Any = solution.ts
    states: Any = solution.ys
    (times, saved), (end, state) = zip(clocks, states, strict=True)  # one pair for each SubSaveAt
    end, state = end[-1], jax.tree.map(lambda leaf: leaf[-1], state)
    codes = (
        solution.result == diffrax.RESULTS.event_occurred,
        solution.result == diffrax.RESULTS.max_steps_reached,
        solution.result != diffrax.RESULTS.successful,
    )
    stats = (solution.stats["num_accepted_steps"], solution.stats["num_rejected_steps"])
    return times, saved, end, state, codes, stats


@eqx.filter_jit
def _sizes(field: Field[State, Args], t0: Array, start: State, args: Args) -> tuple[Array, Array]:
    return _rms(field(t0, start, args)), _rms(start)


def first_step(field: Field[State, Args], start: State, args: Args, t0: float, span: float) -> float:
    """A first step that changes the state by one per cent; a thousandth of the span where it does not move at all."""
    slope, size = map(float, _sizes(field, jnp.asarray(t0), start, args))
    return min(span, FIRST_CHANGE * size / slope) if slope > 0 and size > 0 else span * 1e-3


@eqx.filter_jit
def _ahead(field: Field[State, Args], t: Array, state: State, args: Args, step: Array) -> tuple[State, Array, Array]:
    """The largest jump of the field on a step along it: the field at the state, the jump, what is left of it beyond.

    The last is a part of the jump: 1 where the flow crosses it, 0 where it is thrown back to the near side.
    """

    def at(place: State, along: State, way: Array | float) -> State:
        return jax.tree.map(lambda leaf, move: leaf + way * move, place, along)

    def less(one: State, other: State) -> State:
        return jax.tree.map(jnp.subtract, one, other)

    def halved(i: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        first, between, last = (field(t, at(state, here, way), args) for way in (low, middle, high))
        left = _rms(less(between, first)) > _rms(less(last, between))
        return jnp.where(left, low, middle), jnp.where(left, middle, high)

    here = field(t, state, args)
    low, high = jax.lax.fori_loop(0, HALVINGS, halved, (jnp.zeros_like(step), step))
    before, beyond = field(t, at(state, here, low), args), field(t, at(state, here, high), args)
    onwards = field(t, at(at(state, here, high), beyond, BACK * (high - low)), args)
    jump = _rms(less(beyond, before))
    return here, jump, _rms(less(onwards, before)) / jump


def _slides(field: Field, t: float, state: object, args: object, step: float) -> bool:
    """Whether a flow is held at a jump of its field, which points to the jump from either side."""
    here, jump, left = _ahead(field, jnp.asarray(t), state, args, jnp.asarray(NEAR * step))
    return bool((jump > JUMP * _rms(here)) & (left < 0.5))


def _explained(
    status: Status, spent: bool, field: Field, t: float, state: object, args: object, moved: float, steps: int
) -> Status:
    """The status, with the kink that the flow slides along where this has spent its steps."""
    # A kink that is crossed costs a few steps; one that the flow slides along costs all of them.
    if not (spent and steps and _slides(field, t, state, args, moved / steps)):
        return status
    return Status(Ending.STOPPED, f"{status.reason}, {SLIDES}")


@in_double_precision
def solve(
    field: Field,
    start: State,
    times: ArrayLike,
    *,
    args: Args = None,
    observe: Callable[[Array, State, Args], Any] | None = None,
    halt: Callable[[Array, State, Args], Array] | None = None,
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
        rtol, atol: error per step; atol defaults to rtol times the size of the start.
        stiff: an implicit solver (Kvaerno 5) instead of an explicit one.
        max_steps: most solver steps in all; reaching it ends the run with that status.
    """
    began = clock.perf_counter()
    times = _increasing(times)
    start = jax.tree.map(jnp.asarray, start)
    size = float(_rms(start))
    atol = rtol * (size if size > 0 else 1.0) if atol is None else atol
    solver, watch = _solver(stiff), observe or _whole_state
    kept_times, kept, accepted, rejected = [], [], 0, 0
    status, state, now, span = FINISHED, start, float(times[0]), float(times[-1] - times[0])
    step = first_step(field, start, args, now, span) if span > 0 else 1.0
    with bar(title, max(span, 1e-300)) as progress:
        for block in _blocks(times):
            # A shorter last block would compile a program of its own: it repeats its last time, which costs no step.
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
            if not status.ok:
                status = _explained(status, bool(codes[1]), field, now, last, args, moved, int(stats[0]))
                break
            if moved > 0 and int(stats[0]) > 0:  # the next block begins with this one's mean step
                step = moved / int(stats[0])
    saved = jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
    return Solution(
        np.concatenate(kept_times), saved, state, end=now, status=status, steps=accepted, rejected=rejected,
        evaluations=_evaluations_per_step(solver) * (accepted + rejected), wall_time=clock.perf_counter() - began,
    )  # fmt: skip


def settle(
    field: Field,
    start: State,
    settled: Callable[[Array, State, Args], Array],
    *,
    args: Args = None,
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
    # Convergence may take any number of time scales: each block is twice as long as the one before.
    edges = scale * 2.0 ** np.arange(0, max(2, int(np.ceil(np.log2(limit / scale)))))
    solution = solve(
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
    return solution.end, solution.halted


def from_zero(times: ArrayLike) -> tuple[np.ndarray, int]:
    """Put the start in front of the given times where it is missing, and say how many were added."""
    checked = check_times(times)
    assert checked is not None
    return (checked, 0) if checked[0] == 0 else (np.concatenate([[0.0], checked]), 1)


def _whole_state(t: Array, state: State, args: object) -> State:
    return state


def _nothing(t: Array, state: object, args: object) -> Array:
    return t


def _increasing(times: ArrayLike) -> np.ndarray:
    """Refuse to go back in time: where diffrax's own check gives NaN (commands), a flow would only seem to diverge."""
    checked = np.asarray(times, dtype=float)
    if (np.diff(checked) < 0).any():
        raise SaddlesError.must_be("times", "increasing numbers", times)
    return checked


def _blocks(times: np.ndarray) -> list[np.ndarray]:
    return [times[i : i + BLOCK] for i in range(0, len(times), BLOCK)]


def _status(
    codes: tuple[Array, Array, Array], steps: int, max_steps: int, now: float, seen: float, whole: bool
) -> Status:
    """Why a block ended: `seen` is the last good instant, `whole` whether every instant of the block was good."""
    halted, spent, failed = (bool(code) for code in codes)
    if halted:
        return Status(Ending.STOPPED, HALTED)
    # diffrax counts the steps of one block only, so the total over all blocks is compared here.
    if spent or steps >= max_steps:
        return Status(Ending.STOPPED, f"{steps} solver steps taken by time {now:.6g}")
    return FINISHED if whole and not failed else Status(Ending.DIVERGED, f"near time {seen:.6g}")


def _good_rows(times: Array, saved: Any, count: int) -> int:
    """How many of the first `count` instants were reached, which are finite in `times`, with finite observations."""
    fine = np.isfinite(np.asarray(times)[:count])
    for leaf in jax.tree.leaves(saved):
        fine &= np.isfinite(np.asarray(leaf[:count])).reshape(count, -1).all(axis=1)
    return count if fine.all() else int(np.argmin(fine))
