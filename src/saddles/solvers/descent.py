"""Discrete dynamics: apply a step many times, observe now and then, stop when it diverges."""

import time as clock
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from saddles.core.status import FINISHED, Ending, Status
from saddles.runtime.precision import in_double_precision
from saddles.runtime.progress import bar

BLOCK = 32
"""Saved steps in one compiled call: between calls Python sees Ctrl-C, the progress bar and divergence."""

DIVERGED_AT = 1e8
"""A guarded number that has risen to this many times its first size counts as diverged: it is on its way to infinity,
and stopping here keeps the rows before it finite. A fall is what descent is for: a cost without its constant begins as
small as the weights do, and ends far below 0."""

State = TypeVar("State")
Args = TypeVar("Args")


@dataclass(frozen=True)
class Iteration:
    """What an iteration gave: `saved` has one row for each of `steps`."""

    steps: np.ndarray
    saved: dict[str, np.ndarray]
    state: Any  # the pytree that `start` was
    status: Status
    wall_time: float


def descended(slope: Callable[[State, Args], State], state: State, args: Args, rate: Array) -> State:
    """One step of gradient descent, all parameters at once: state + rate · slope(state, args)."""
    return jax.tree.map(lambda leaf, move: leaf + rate * move, state, slope(state, args))


@eqx.filter_jit
def _block(
    step: Callable[[State, Args], State],
    observe: Callable[[State, Args], dict[str, Array]],
    state: State,
    args: Args,
    strides: Int[Array, " row"],
) -> tuple[State, dict[str, Array]]:
    """One row for each stride, after so many steps; strides are traced, so that one program serves all blocks."""

    def one(state: State, stride: Int[Array, ""]) -> tuple[State, dict[str, Array]]:
        state = jax.lax.fori_loop(0, stride, lambda i, s: step(s, args), state)
        return state, observe(state, args)

    return jax.lax.scan(one, state, strides)


@in_double_precision
def iterate(
    step: Callable[[State, Args], State],
    start: State,
    steps: int,
    *,
    args: Args = None,
    observe: Callable[[State, Args], dict[str, Array]],
    guard: str | None = None,
    save_every: int = 1,
    title: str = "descending",
) -> Iteration:
    """Apply `state = step(state, args)` and save `observe(state, args)` every few steps.

    Args:
        steps: how many steps; the start and every `save_every`-th step are saved, and the last.
        observe: returns a dictionary of arrays.
        guard: the entry of `observe` that must stay finite and below `DIVERGED_AT` times its first size; when it
            does not, the run ends there and keeps the rows before, with status `diverged`.
    """
    began = clock.perf_counter()
    state = jax.tree.map(jnp.asarray, start)
    # The start is a row after no step: a program of its own for it would be compiled for every shape.
    strides = np.full(1 + -(-steps // save_every), save_every)
    strides[0] = 0
    if steps % save_every:
        strides[-1] = steps % save_every
    counts, kept, status, taken, limit = [], [], FINISHED, 0, None
    with bar(title, max(steps, 1)) as progress:
        for block, count in _blocks(strides):
            state, saved = _block(step, observe, state, args, jnp.asarray(block))
            saved = jax.tree.map(np.asarray, saved)
            if limit is None and guard is not None:
                # For a guarded number that starts at 0 the limit would be 0, and every row would count as diverged.
                limit = DIVERGED_AT * max(float(np.abs(saved[guard][0])), np.finfo(float).tiny)
            good = count if guard is None or limit is None else _good_rows(saved[guard][:count], limit)
            if not kept:
                good = max(good, 1)  # the start is kept whatever it is
            done = taken + np.cumsum(block[:count])
            taken = int(done[-1])
            if good < count:
                status = Status(Ending.DIVERGED, f"at step {done[good]}")
            counts.append(done[:good])
            kept.append(jax.tree.map(lambda leaf, n=good: leaf[:n], saved))
            progress.reach(float(done[-1]))
            if not status.ok:
                break
    return Iteration(
        steps=np.concatenate(counts),
        saved=jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept),
        state=state,
        status=status,
        wall_time=clock.perf_counter() - began,
    )


def _blocks(strides: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Blocks of one length, and how many rows of each are meant.

    A last block of another length would be compiled on its own, which takes longer than many a run: it is filled up
    with strides of 0 instead, which take no step. There are fewer of those than blocks.
    """
    count = -(-len(strides) // BLOCK)
    size = -(-len(strides) // count) if count else 1
    for at in range(0, len(strides), size):
        part = strides[at : at + size]
        yield np.pad(part, (0, size - len(part))), len(part)


def _good_rows(values: np.ndarray, limit: float) -> int:
    fine = np.isfinite(values) & (values < limit)
    return len(values) if fine.all() else int(np.argmin(fine))
