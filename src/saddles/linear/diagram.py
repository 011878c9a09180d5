"""Many cells of a phase diagram at once: descent and its self-consistent twin, each until it is done.

All cells share one task and one seed, so the start of a cell depends on its width alone, up to
the scale σ: √σ² times a unit factor, on the side of the theory too (Ĉ1, Ĉ2 scale with A and
σ²w together). A cell keeps the best test error so far, the matrix there, and the distance
between the two dynamics.

**When a cell is done.** Once the train error is so small that ‖A − A*‖ ≥ ‖E‖ − ‖A − A* − E‖
exceeds the best test error seen, no later step can be better: descent lowers the train error
(it is checked that it did), so the best lies behind for certain, and nothing is gained by
fitting the rest of the noise. Where that never happens (a width below the rank), a cell is done
when train and test error changed by less than 1e-4 over 50 steps, after the train error has
left its start. The twin is followed until some steps past the best test error; what descent does
after that, alone, is only waited for.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import svds

import saddles.runtime.float64  # noqa: F401
from saddles.linear.layout import transposed
from saddles.linear.model import TwoLayer
from saddles.linear.simulate import Factor
from saddles.linear.theory import SelfConsistent

WINDOW = 50
FLAT = 1e-4
NOTICE = 1e-9
"""A best test error counts as new if it is smaller by this share: not by rounding."""

SLOTS = 256
"""Cells that a GPU works on at a time."""

RUNNING, CERTIFIED, FLATTENED, DIVERGED, SPENT = range(5)
ENDINGS = ("running", "certified", "flat", "diverged", "steps spent")


class Cell(NamedTuple):
    """One cell on its way."""

    descent: Factor
    twin: Factor
    rate: Any
    step: Any
    ending: Any
    joint: Any
    trains: Any
    tests: Any
    best: Any
    best_step: Any
    best_matrix: Any
    gap_at_best: Any
    gap_most: Any


class Truth(NamedTuple):
    """What the cells are measured against."""

    cost: Any
    target: Any
    noise: Any
    limit: Any
    follow: Any


def _advance(cell: Cell, truth: Truth, both: bool = True) -> Cell:
    """Look at both dynamics, note what is best, and take one step of each (or of descent alone)."""
    matrix = cell.descent[1] @ transposed(cell.descent[0])
    train = truth.cost(matrix)
    test = jnp.mean((matrix - truth.target) ** 2)
    twin, gap = cell.twin, jnp.asarray(jnp.nan)
    if both:
        mirror = cell.twin[1] @ transposed(cell.twin[0])
        gap = jnp.where(cell.joint, jnp.mean((matrix - mirror) ** 2), jnp.nan)
        twin = _moved(cell.twin, truth.cost.gradient(mirror), cell.rate)
    slot = cell.step % WINDOW
    before, was = cell.trains[slot], cell.tests[slot]
    better = test < (1 - NOTICE) * cell.best
    best = jnp.where(better, test, cell.best)
    floor = jnp.maximum(truth.noise - jnp.sqrt(train), 0.0) ** 2
    falls = train <= cell.trains[(cell.step - 1) % WINDOW]
    certified = (floor > best) & falls & (cell.step > 0)
    left = train < 0.99 * cell.trains[WINDOW]
    still = (jnp.abs(train - before) < FLAT * train) & (jnp.abs(test - was) < FLAT * test)
    flat = (cell.step >= WINDOW) & left & still
    trains = cell.trains.at[slot].set(train)
    trains = jnp.where(cell.step == 0, jnp.full_like(trains, train), trains)
    ending = jnp.select(
        [~jnp.isfinite(train) | (train > 1e8 * trains[WINDOW]), certified, flat, cell.step >= truth.limit],
        [DIVERGED, CERTIFIED, FLATTENED, SPENT],
        RUNNING,
    )
    return Cell(
        descent=_moved(cell.descent, truth.cost.gradient(matrix), cell.rate),
        twin=twin,
        rate=cell.rate,
        step=cell.step + 1,
        ending=ending,
        trains=trains,
        tests=cell.tests.at[slot].set(test),
        joint=cell.joint & (better | ~left | (cell.step < cell.best_step + truth.follow)),
        best=best,
        best_step=jnp.where(better, cell.step, cell.best_step),
        best_matrix=jnp.where(better, matrix, cell.best_matrix),
        gap_at_best=jnp.where(better, gap, cell.gap_at_best),
        gap_most=jnp.fmax(gap, cell.gap_most),
    )


def _moved(factor: Factor, gradient: Any, rate: Any) -> Factor:
    inner, outer = factor
    return inner - rate * (transposed(gradient) @ outer), outer - rate * (gradient @ inner)


def _begin(unit: Factor, twin: Factor, sigma: Any, rate: Any, shape: tuple[int, int]) -> Cell:
    number = jnp.zeros(())
    return Cell(
        descent=(sigma * unit[0], sigma * unit[1]),
        twin=(sigma * twin[0], sigma * twin[1]),
        rate=rate,
        step=jnp.zeros((), dtype=int),
        ending=jnp.zeros((), dtype=int),
        joint=jnp.ones((), dtype=bool),
        trains=jnp.full(WINDOW + 1, jnp.inf),
        tests=jnp.full(WINDOW, jnp.inf),
        best=number + jnp.inf,
        best_step=jnp.zeros((), dtype=int),
        best_matrix=jnp.zeros(shape),
        gap_at_best=number + jnp.inf,
        gap_most=number,
    )


def _summary(cell: Cell) -> dict[str, Any]:
    return {
        "best_test_error": cell.best,
        "best_step": cell.best_step,
        "best_matrix": cell.best_matrix,
        "distance_at_best": cell.gap_at_best,
        "distance_most": cell.gap_most,
        "steps": cell.step - 1,
        "ending": cell.ending,
    }


@eqx.filter_jit
def _whole_cell(unit: Factor, twin: Factor, sigma: Any, rate: Any, truth: Truth) -> dict[str, Any]:
    cell = _begin(unit, twin, sigma, rate, truth.target.shape)
    cell = jax.lax.while_loop(lambda c: (c.ending == RUNNING) & c.joint, lambda c: _advance(c, truth), cell)
    cell = jax.lax.while_loop(lambda c: c.ending == RUNNING, lambda c: _advance(c, truth, both=False), cell)
    return _summary(cell)


def unit_starts(widths: Sequence[int], shape: tuple[int, int], seed: int) -> tuple[list[Factor], list[Factor]]:
    """The starts of descent and of its twin at variance 1, for each width."""
    units, twins = [], []
    for width in widths:
        model = TwoLayer(width, 1.0)
        inner, outer = model.start(shape, seed)
        stacked = SelfConsistent().factor(outer @ inner.T, model.threshold)
        units.append(_padded(inner, outer))
        twins.append((stacked[: shape[1]], stacked[shape[1] :]))
    return units, twins


def _padded(inner: np.ndarray, outer: np.ndarray) -> Factor:
    """Add zero columns up to one of few sizes: nothing changes but the number of compiled programs."""
    hidden, most = inner.shape[1], inner.shape[0] + outer.shape[0]
    size = min(most, next(s for s in (most * 2**-k for k in range(6, -1, -1)) if s >= hidden))
    more = int(np.ceil(size)) - hidden
    return tuple(np.pad(block, ((0, 0), (0, more))) for block in (inner, outer))  # type: ignore[return-value]


def follow_cells(
    task: Any,
    widths: Sequence[int],
    cells: Sequence[tuple[int, float, float]],
    *,
    seed: int,
    limit: int,
    follow: int = 20,
    tick: Callable[[int], None] = lambda count: None,
) -> dict[str, np.ndarray]:
    """Run every cell to its end.

    Args:
        task: a `Denoising` task, the same for all cells.
        widths: the widths that occur.
        cells: (index of the width, variance, rate) of each.
        seed: draws the initial weights, the same for all cells.
        limit: most steps of a cell.
        follow: steps past the best test error for which the twin is followed.
        tick: called with the number of cells that have just been finished.

    Returns arrays over cells: best_test_error, best_step, stable_rank, distance_at_best,
    distance_most (both mean squares over entries, the latter while the twin was followed; NaN if
    the best test error came only after that), steps, ending (index into `ENDINGS`).
    """
    units, twins = unit_starts(widths, task.shape, seed)
    noise = np.sqrt(np.mean((task.observed - task.target) ** 2))
    truth = jax.device_put(Truth(task.cost, task.target, noise, np.asarray(limit), np.asarray(follow)))
    on_cpu = jax.devices()[0].platform == "cpu"
    whole = (_on_cores if on_cpu else _on_gpu)(units, twins, cells, truth, tick)
    matrices = whole.pop("best_matrix")
    largest = np.array([_largest_singular_value(matrix) for matrix in matrices])
    whole["stable_rank"] = np.sum(matrices**2, axis=(1, 2)) / np.where(largest > 0, largest, 1.0) ** 2
    return whole


def _largest_singular_value(matrix: np.ndarray) -> float:
    """By Lanczos: a tenth of the time of a full decomposition, to rounding."""
    if not matrix.any() or min(matrix.shape) < 3:
        return float(np.linalg.norm(matrix, 2))
    start = np.ones(min(matrix.shape))
    found: Any = svds(matrix, k=1, v0=start, return_singular_vectors=False)
    return float(found[0])


def _on_cores(units: Any, twins: Any, cells: Any, truth: Truth, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    """A cell at a time on each of two threads: products of this size do not fill more than one core each."""
    units, twins = jax.device_put(units), jax.device_put(twins)

    def one(cell: tuple[int, float, float]) -> dict[str, Any]:
        index, variance, rate = cell
        found = _whole_cell(units[index], twins[index], jnp.sqrt(variance), jnp.asarray(rate), truth)
        found = {name: np.asarray(value) for name, value in found.items()}
        tick(1)
        return found

    pool = ThreadPoolExecutor(2)
    try:
        rows = list(pool.map(one, cells))
    finally:
        pool.shutdown(cancel_futures=True)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _go(cell: Cell, truth: Truth, both: bool) -> Cell:
    """Advance, but leave the notes of a cell that is done (or alone, where both are followed) as they are."""
    moved = _advance(cell, truth, both)
    frozen = (cell.ending != RUNNING) | (both & ~cell.joint)
    notes = jax.tree.map(lambda old, new: jnp.where(frozen, old, new), cell[2:], moved[2:])
    descent = jax.tree.map(lambda old, new: jnp.where(frozen, old, new), cell.descent, moved.descent)
    return Cell(descent, moved.twin, *notes)


@partial(jax.jit, static_argnums=(2,), donate_argnums=(0,))
def _chunk(batch: Cell, truth: Any, count: int) -> Cell:
    return jax.lax.fori_loop(0, count, lambda i, b: jax.vmap(lambda c: _go(c, truth, True))(b), batch)


@partial(jax.jit, donate_argnums=(0,))
def _alone(batch: Cell, truth: Any, enough: Any) -> Cell:
    """Descent without its twin, until at most `enough` cells are left."""
    step = jax.vmap(lambda c: _go(c, truth, False))
    return jax.lax.while_loop(lambda b: jnp.sum(b.ending == RUNNING) > enough, step, batch)


@partial(jax.jit, static_argnums=(5,))
def _begin_all(units: Any, twins: Any, index: Any, sigma: Any, rate: Any, shape: tuple[int, int]) -> Cell:
    def one(i: Any, s: Any, r: Any) -> Cell:
        unit, twin = jax.tree.map(lambda blocks: blocks[i], (units, twins))
        return _begin(unit, twin, s, r, shape)

    return jax.vmap(one)(index, sigma, rate)


@partial(jax.jit, donate_argnums=(0,))
def _refill(batch: Cell, units: Any, twins: Any, take: Any, index: Any, sigma: Any, rate: Any) -> Cell:
    fresh = _begin_all(units, twins, index, sigma, rate, batch.best_matrix.shape[1:])
    return jax.tree.map(lambda old, new: jnp.where(take.reshape(-1, *[1] * (old.ndim - 1)), new, old), batch, fresh)


@partial(jax.jit, donate_argnums=(0,))
def _put_away(store: Cell, batch: Cell, rows: Any) -> Cell:
    return jax.tree.map(lambda kept, new: kept.at[rows].set(new), store, batch._replace(twin=()))


def _on_gpu(units: Any, twins: Any, cells: Any, truth: Truth, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    """Slots that are refilled as cells finish: one compiled program, always full.

    Cells whose twin is no longer followed go on together at the end, without it.
    """
    most = max(unit[0].shape[1] for unit in (*units, *twins))
    hidden = np.array([unit[0].shape[1] for unit in units])
    units, twins = (
        jax.tree.map(lambda *blocks: jnp.stack([jnp.pad(b, ((0, 0), (0, most - b.shape[1]))) for b in blocks]), *side)
        for side in (units, twins)
    )
    slots, total = min(SLOTS, len(cells)), len(cells)
    index, sigma, rate = (np.array(column) for column in zip(*cells, strict=True))
    sigma = np.sqrt(sigma)
    holder, waiting, live = np.arange(slots), slots, np.ones(slots, dtype=bool)
    batch = _begin_all(units, twins, index[:slots], sigma[:slots], rate[:slots], truth.target.shape)
    store = jax.tree.map(lambda a: jnp.zeros((total + 1, *a.shape[1:]), a.dtype), batch._replace(twin=()))
    while live.any():
        batch = _chunk(batch, truth, 8)
        leave = live & ((np.asarray(batch.ending) != RUNNING) | ~np.asarray(batch.joint))
        if not leave.any():
            continue
        store = _put_away(store, batch, np.where(leave, holder, total))
        tick(int(leave.sum()))
        free = np.flatnonzero(leave)
        fill = free[: max(total - waiting, 0)]
        holder[fill] = np.arange(waiting, waiting + len(fill))
        waiting += len(fill)
        live[free[len(fill) :]] = False
        take = np.isin(np.arange(slots), fill)
        batch = _refill(batch, units, twins, take, index[holder], sigma[holder], rate[holder])
    store = _finish(store._replace(ending=store.ending.at[total].set(SPENT)), hidden[index], truth)
    return {name: np.asarray(values)[:total] for name, values in _summaries(store).items()}


def _finish(store: Cell, hidden: np.ndarray, truth: Truth) -> Cell:
    """Let the cells that are left go on alone; each time half of them are done, go on with half the batch.

    The row after the last cell of `store` is a cell that is done, to fill batches up.
    """
    total = len(hidden)
    lone = np.flatnonzero(np.asarray(store.ending)[:total] == RUNNING)
    most = int(hidden[lone].max()) if len(lone) else 0
    store = store._replace(descent=tuple(block[:, :, :most] for block in store.descent))
    while len(lone):
        size = 1 << (len(lone) - 1).bit_length()
        rows = np.concatenate([lone, np.full(size - len(lone), total)])
        batch = jax.tree.map(lambda kept, r=rows: kept[r], store)
        batch = _alone(batch, truth, size // 2 if size > 8 else 0)
        store = jax.tree.map(lambda kept, new, r=rows: kept.at[r].set(new), store, batch)
        lone = lone[np.asarray(store.ending)[lone] == RUNNING]
    return store


_summaries = jax.jit(jax.vmap(_summary))
