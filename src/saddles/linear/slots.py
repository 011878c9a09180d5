"""Cells of a phase diagram on a GPU: many side by side, in slots that are refilled as cells end.

What is done to arrays on the device is done inside few compiled programs: single operations are compiled one by one,
for every shape, which took longer than the cells.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.linear.cell import RUNNING, SPENT, Cell, Truth, advance, begin, summary
from saddles.solvers.top_eigenvalue import top_eigenvalue

Blocks = tuple[np.ndarray, np.ndarray]
"""A `Factor` in NumPy."""
Indices = Array | np.ndarray

SLOTS = 256
"""Cells that a GPU works on at a time."""
CHUNK = 8
"""Steps of a GPU between two looks at which cells are done: fewer wait for the host, more run on after the end."""
BATCHES = (512, 64, 8)
"""Cells that a GPU works on at a time once their twins are done: few sizes, each of which is a compiled program. It
takes as long for one cell as for the last."""
NARROW = 8
"""Networks with at most this part of the most hidden units are worked on apart at the end."""


def _go(cell: Cell, truth: Truth, both: bool) -> Cell:
    """Advance, but leave the notes of a cell that is done (or alone, where both are followed) as they are."""
    moved = advance(cell, truth, both)
    frozen = (cell.ending != RUNNING) | (both & ~cell.joint)
    kept = jax.tree.map(lambda old, new: jnp.where(frozen, old, new), cell, moved)
    return kept._replace(twin=moved.twin)  # the largest array; where a cell is done nobody looks at it


@partial(jax.jit, static_argnums=(2,), donate_argnums=(0,))
def _chunk(batch: Cell, truth: Truth, count: int) -> Cell:
    return jax.lax.fori_loop(0, count, lambda i, b: jax.vmap(lambda c: _go(c, truth, True))(b), batch)


class Choice(NamedTuple):
    """For each of several cells: the index of its width, σ and the learning rate."""

    width: Indices
    sigma: Array | np.ndarray
    rate: Array | np.ndarray

    def some(self, cells: np.ndarray) -> "Choice":
        """Those of some cells."""
        return Choice(*(column[cells] for column in self))


class Starts(NamedTuple):
    """Of all widths, with columns of zeros up to the same number of hidden units."""

    inner: Float[Array, "width row hidden"]
    outer: Float[Array, "width column hidden"]
    twin: Float[Array, "width stacked hidden"]


def _stacked(blocks: Sequence[np.ndarray], hidden: int) -> np.ndarray:
    return np.stack([np.pad(block, ((0, 0), (0, hidden - block.shape[1]))) for block in blocks])


@partial(jax.jit, static_argnums=(2,))
def _begin_all(starts: Starts, chosen: Choice, shape: tuple[int, ...]) -> Cell:
    def one(choice: Choice) -> Cell:
        inner, outer, twin = (block[choice.width] for block in starts)
        return begin((inner, outer), twin, jnp.asarray(choice.sigma), jnp.asarray(choice.rate), shape)

    return jax.vmap(one)(chosen)


@partial(jax.jit, static_argnums=(1,))
def _empty_store(batch: Cell, total: int) -> Cell:
    """One row more than cells: where slots write that have nothing to put away, and that batches are filled up with."""
    return jax.tree.map(lambda a: jnp.zeros((total + 1, *a.shape[1:]), a.dtype), batch._replace(twin=None))


@partial(jax.jit, donate_argnums=(0, 1))
def _turn_over(
    store: Cell, batch: Cell, starts: Starts, rows: Indices, take: Indices, chosen: Choice
) -> tuple[Cell, Cell]:
    """Put the cells of the batch into rows of the store, and begin others in the slots that `take` names."""
    store = jax.tree.map(lambda kept, new: kept.at[rows].set(new), store, batch._replace(twin=None))
    fresh = _begin_all(starts, chosen, batch.best_matrix.shape[1:])
    return store, jax.tree.map(lambda old, new: jax.vmap(jnp.where)(take, new, old), batch, fresh)


def follow_in_slots(
    units: list[Blocks],
    twins: list[np.ndarray],
    cells: Sequence[tuple[int, float, float]],
    truth: Truth,
    tick: Callable[[int], None],
) -> dict[str, np.ndarray]:
    """Slots that are refilled as cells finish: one compiled program, always full.

    Cells whose twin is no longer followed are set aside and continue together at the end, without it.
    """
    hidden = np.array([inner.shape[1] for inner, _ in units])
    most = max(int(hidden.max()), *(twin.shape[1] for twin in twins))
    inner, outer = zip(*units, strict=True)
    starts = Starts(*(jnp.asarray(_stacked(blocks, most)) for blocks in (inner, outer, twins)))
    assert truth.observer.target is not None
    index, variance, rate = (np.array(column) for column in zip(*cells, strict=True))
    every = Choice(index, np.sqrt(variance), rate)
    slots, total = min(SLOTS, len(cells)), len(cells)
    holder, waiting, live = np.arange(slots), slots, np.ones(slots, dtype=bool)
    batch = _begin_all(starts, every.some(holder), truth.observer.target.shape)
    store = _empty_store(batch, total)
    while live.any():
        batch = _chunk(batch, truth, CHUNK)
        ending, joint = jax.device_get((batch.ending, batch.joint))
        leave = live & ((ending != RUNNING) | ~joint)
        if not leave.any():
            continue
        # Cells that stay are written to the spare row behind the last: one program for any number that leaves.
        rows = np.where(leave, holder, total)
        tick(int(leave.sum()))
        free = np.flatnonzero(leave)
        fill = free[: max(total - waiting, 0)]
        holder[fill] = np.arange(waiting, waiting + len(fill))
        waiting += len(fill)
        live[free[len(fill) :]] = False
        take = np.isin(np.arange(slots), fill)
        store, batch = _turn_over(store, batch, starts, rows, take, every.some(holder))
    # Its memory is needed for the batches of `_finish`.
    del batch
    store = _finish(store, hidden[index], truth)
    return {name: values[:total] for name, values in jax.device_get(_summaries(store)).items()}


def _finish(store: Cell, hidden: np.ndarray, truth: Truth) -> Cell:
    """Let the cells that are left continue alone, in batches that shrink as cells end.

    The row after the last cell of `store` is there to fill batches up. Narrow networks are kept apart: they run
    longest, and their steps cost a fraction.
    """
    ending = np.asarray(store.ending)[:-1]
    narrow = int(hidden.max()) // NARROW
    for group, columns in ((hidden <= narrow, narrow), (hidden > narrow, int(hidden.max()))):
        lone = np.flatnonzero(group & (ending == RUNNING))
        while len(lone):
            size = next((size for size in reversed(BATCHES) if size >= len(lone)), BATCHES[0])
            enough = BATCHES[BATCHES.index(size) + 1] if size > BATCHES[-1] else 0
            some = lone[:size]
            # The batch is filled up with the spare row, whose cell `_alone` marks as ended.
            rows = np.concatenate([some, np.full(size - len(some), len(hidden))])
            store = _alone(store, truth, rows, len(some), enough, columns)
            lone = lone[np.asarray(store.ending)[lone] == RUNNING]
    return store


@partial(jax.jit, static_argnums=(5,), donate_argnums=(0,))
def _alone(store: Cell, truth: Truth, rows: Indices, count: int | Array, enough: int | Array, columns: int) -> Cell:
    """Descent without its twin of the first `count` of these rows, until at most `enough` of them are left.

    Only the first `columns` hidden units of these networks are not 0.
    """
    inner, outer = store.descent
    batch = jax.tree.map(lambda kept: kept[rows], store._replace(descent=None))
    ending = jnp.where(jnp.arange(len(rows)) < count, batch.ending, SPENT)
    batch = batch._replace(descent=(inner[rows, :, :columns], outer[rows, :, :columns]), ending=ending)
    step = jax.vmap(lambda c: _go(c, truth, False))
    batch = jax.lax.while_loop(lambda b: jnp.sum(b.ending == RUNNING) > enough, step, batch)
    one, other = batch.descent
    descent = inner.at[rows, :, :columns].set(one), outer.at[rows, :, :columns].set(other)
    rest = jax.tree.map(lambda kept, new: kept.at[rows].set(new), *(c._replace(descent=None) for c in (store, batch)))
    return rest._replace(descent=descent)


@jax.jit
def _summaries(store: Cell) -> dict[str, Array]:
    """With the stable rank in place of the matrices, which are much to carry to the host."""
    seen = jax.vmap(summary)(store)
    matrices = seen.pop("best_matrix")
    first = top_eigenvalue(jnp.swapaxes(matrices, 1, 2) @ matrices)
    return seen | {"stable_rank": jnp.sum(matrices**2, (1, 2)) / jnp.where(first > 0, first, 1.0)}
