"""Discrete dynamics: apply a step many times, observe now and then, stop when it diverges."""

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import saddles.runtime.float64  # noqa: F401
from saddles.core.trajectory import DIVERGED, FINISHED
from saddles.runtime.progress import bar

BLOCK = 32
"""Saved steps in one compiled call."""


@dataclass(frozen=True)
class Iteration:
    """What an iteration gave: `saved` has one row for each of `steps`."""

    steps: np.ndarray
    saved: Any
    state: Any
    status: str
    wall_time: float


@eqx.filter_jit
def _block(step: Any, observe: Any, state: Any, args: Any, stride: Any, count: int) -> Any:
    def one(state: Any, _: Any) -> Any:
        state = jax.lax.fori_loop(0, stride, lambda i, s: step(s, args), state)
        return state, observe(state, args)

    return jax.lax.scan(one, state, None, length=count)


def iterate(
    step: Callable[[Any, Any], Any],
    start: Any,
    steps: int,
    *,
    args: Any = None,
    observe: Callable[[Any, Any], Any],
    guard: str | None = None,
    save_every: int = 1,
    title: str = "descending",
) -> Iteration:
    """Apply `state = step(state, args)` and save `observe(state, args)` every few steps.

    Args:
        steps: how many steps; the start and every `save_every`-th step are saved, and the last.
        observe: returns a dictionary of arrays.
        guard: the entry of `observe` that must stay finite and below 1e8 times its first
            value; when it does not, the run ends there, keeps the rows before, and its
            status begins with "stopped: diverged".
    """
    began = clock.perf_counter()
    state = jax.tree.map(jnp.asarray, start)
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[None], eqx.filter_jit(observe)(state, args))
    strides = [(save_every, steps // save_every), (steps % save_every, 1 if steps % save_every else 0)]
    counts, kept, status = [np.zeros(1, dtype=int)], [first], FINISHED
    limit = None if guard is None else 1e8 * max(float(np.abs(first[guard][0])), 1e-300)
    with bar(title, max(steps, 1)) as progress:
        for stride, rows in strides:
            while rows > 0 and status == FINISHED:
                count = min(rows, BLOCK)
                state, saved = _block(step, observe, state, args, jnp.asarray(stride), count)
                saved = jax.tree.map(np.asarray, saved)
                good = count if guard is None or limit is None else _good_rows(saved[guard], limit)
                done = counts[-1][-1] + stride * np.arange(1, count + 1)
                if good < count:
                    status = f"{DIVERGED} at step {done[good]}"
                counts.append(done[:good])
                kept.append(jax.tree.map(lambda leaf, n=good: leaf[:n], saved))
                rows -= count
                progress.reach(float(done[-1]))
                if good == 0:
                    break
    return Iteration(
        steps=np.concatenate(counts),
        saved=jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept),
        state=state,
        status=status,
        wall_time=clock.perf_counter() - began,
    )


def _good_rows(values: np.ndarray, limit: float) -> int:
    fine = np.isfinite(values) & (np.abs(values) < limit)
    return len(values) if fine.all() else int(np.argmin(fine))
