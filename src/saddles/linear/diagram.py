"""Many cells of a phase diagram at once: descent and its self-consistent twin, each until it is done.

All cells share one task and one seed, so the start of a cell depends on its width alone, up to the scale σ: √σ² times a
unit factor, on the side of the theory too (Ĉ1, Ĉ2 scale with A and σ²w together). A cell keeps the best test error so
far, the matrix there, and the distance between the two dynamics.

**When a cell is done.** Once the train error is so small that ‖A − A*‖ ≥ ‖E‖ − ‖A − A* − E‖ exceeds the best test error
seen, no later step can be better: descent lowers the train error (it is checked that it did), so the best lies behind
for certain, and nothing is gained by fitting the rest of the noise. Where that never happens (a width below the rank),
a cell is done when train and test error changed by less than 1e-4 over 50 steps, after the train error has left its
start. The twin is followed until some steps past the best test error; from there on descent continues alone.

**Why a loop of its own.** A step is the lab's (`descended` with the slopes of the network and of the theory), but
`saddles.solvers.descent.iterate` runs a number of steps that is known beforehand and hands rows to Python every 32.
A cell ends by what it sees, after 40 steps or after 4,000: here the whole cell is one compiled loop.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.sparse.linalg import svds

from saddles.linear.model import TwoLayer
from saddles.linear.observe import Observer, observer_of
from saddles.linear.simulate import slope
from saddles.linear.task import Denoising, check_task
from saddles.linear.theory import SelfConsistent, represented_rows, slope_rows
from saddles.runtime.precision import in_double_precision
from saddles.solvers.descent import DIVERGED_AT, descended
from saddles.solvers.self_consistent import Rows
from saddles.solvers.two_layer import Factor, represented

WINDOW = 50
"""Steps over which a cell must not have changed …"""
FLAT = 1e-4
"""… by more than this part, to count as flat."""
LEFT = 0.99
"""A cell has left its start when the train error is below this part of the first one."""
NOTICE = 1e-9
"""A best test error counts as new if it is smaller by this part: not by rounding."""

THREADS = 2
"""Cells that a CPU works on at a time: products of this size do not fill more than one core each."""
SLOTS = 256
"""Cells that a GPU works on at a time."""
CHUNK = 8
"""Steps of a GPU between two looks at which cells are done: fewer wait for the host, more run on after the end."""
SMALL_BATCH = 8
"""Batches of up to this many cells are not halved any more when cells end: a GPU takes as long for half of them."""

RUNNING, CERTIFIED, FLATTENED, DIVERGED, SPENT = range(5)
ENDINGS = ("running", "certified", "flat", "diverged", "steps spent")

Number = Float[Array, ""]
Whole = Int[Array, ""]
Blocks = tuple[np.ndarray, np.ndarray]
"""A `Factor` in NumPy."""


class Cell(NamedTuple):
    """One cell on its way."""

    descent: Factor
    twin: Rows | None
    """None where the twin is no longer needed."""
    rate: Number
    step: Whole
    ending: Whole
    joint: Bool[Array, ""]
    """The twin is still followed."""
    trains: Float[Array, " window"]
    """Train errors of the last `WINDOW` steps, in a ring, and behind them the first one."""
    tests: Float[Array, " window"]
    best: Number
    best_step: Whole
    best_matrix: Float[Array, "row column"]
    gap_at_best: Number
    gap_most: Number


class Truth(NamedTuple):
    """What the cells are measured against."""

    observer: Observer
    noise: Number
    """‖E‖/√(d_in d_out)."""
    limit: Whole
    follow: Whole


def _advance(cell: Cell, truth: Truth, both: bool = True) -> Cell:
    """Look at both dynamics, note what is best, and take one step of each (or of descent alone).

    A = W2 W1 is written down here and in the slope; the compiler computes it once.
    """
    observer = truth.observer
    matrix = represented(cell.descent)
    seen = observer.matrix(matrix)
    train, test = seen["loss"], seen["test_error"]
    twin, gap = cell.twin, jnp.asarray(jnp.nan)
    if both and twin is not None:
        gap = jnp.where(cell.joint, jnp.mean((matrix - represented_rows(twin, observer)) ** 2), jnp.nan)
        twin = descended(slope_rows, twin, observer, cell.rate)
    slot = cell.step % WINDOW
    before, was = cell.trains[slot], cell.tests[slot]
    better = test < (1 - NOTICE) * cell.best
    best = jnp.where(better, test, cell.best)
    floor = jnp.maximum(truth.noise - jnp.sqrt(train), 0.0) ** 2
    falls = train <= cell.trains[(cell.step - 1) % WINDOW]
    certified = (floor > best) & falls & (cell.step > 0)
    left = train < LEFT * cell.trains[WINDOW]
    still = (jnp.abs(train - before) < FLAT * train) & (jnp.abs(test - was) < FLAT * test)
    flat = (cell.step >= WINDOW) & left & still
    trains = cell.trains.at[slot].set(train)
    trains = jnp.where(cell.step == 0, jnp.full_like(trains, train), trains)
    ending = jnp.select(
        [~jnp.isfinite(train) | (train > DIVERGED_AT * trains[WINDOW]), certified, flat, cell.step >= truth.limit],
        [DIVERGED, CERTIFIED, FLATTENED, SPENT],
        RUNNING,
    )
    return Cell(
        descent=descended(slope, cell.descent, observer, cell.rate),
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


def _begin(unit: Factor, twin: Rows, sigma: Number, rate: Number, shape: tuple[int, ...]) -> Cell:
    number = jnp.zeros(())
    return Cell(
        descent=(sigma * unit[0], sigma * unit[1]),
        twin=sigma * twin,
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


def _summary(cell: Cell) -> dict[str, Array]:
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
def _whole_cell(unit: Factor, twin: Rows, sigma: Number, rate: Number, truth: Truth) -> dict[str, Array]:
    assert truth.observer.target is not None
    cell = _begin(unit, twin, sigma, rate, truth.observer.target.shape)
    cell = jax.lax.while_loop(lambda c: (c.ending == RUNNING) & c.joint, lambda c: _advance(c, truth), cell)
    cell = jax.lax.while_loop(lambda c: c.ending == RUNNING, lambda c: _advance(c, truth, both=False), cell)
    return _summary(cell)


def unit_starts(widths: Sequence[int], task: Denoising, seed: int) -> tuple[list[Blocks], list[np.ndarray]]:
    """The starts of descent (as two blocks) and of its twin (stacked) at variance 1, for each width."""
    units, twins = [], []
    for width in widths:
        model = TwoLayer(width, 1.0)
        inner, outer = model.start(task, seed)
        units.append(_padded(inner, outer))
        twins.append(SelfConsistent().factor(outer @ inner.T, model.threshold))
    return units, twins


def _padded(inner: np.ndarray, outer: np.ndarray) -> Blocks:
    """Add zero columns up to one of few sizes: nothing changes but the number of compiled programs."""
    hidden, most = inner.shape[1], inner.shape[0] + outer.shape[0]
    size = min(most, next(s for s in (most * 2**-k for k in range(6, -1, -1)) if s >= hidden))
    more = int(np.ceil(size)) - hidden
    return np.pad(inner, ((0, 0), (0, more))), np.pad(outer, ((0, 0), (0, more)))


def batched() -> bool:
    """Whether cells are computed side by side, as on a GPU, or one after the other."""
    return jax.devices()[0].platform != "cpu"


@in_double_precision
def follow_cells(
    task: Denoising,
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
        task: the same for all cells.
        widths: the widths that occur.
        cells: (index of the width, variance, rate) of each.
        seed: draws the initial weights, the same for all cells.
        limit: most steps of a cell.
        follow: steps past the best test error for which the twin is followed.
        tick: called with the number of cells that have just been finished.

    Returns arrays over cells: best_test_error, best_step, stable_rank, distance_at_best, distance_most (both mean
    squares over entries, the latter while the twin was followed; NaN if the best test error is only after that),
    steps, ending (index into `ENDINGS`).
    """
    units, twins = unit_starts(widths, task, seed)
    noise = np.sqrt(np.mean((task.observed - task.target) ** 2))
    observer = observer_of(check_task(task), (), 0, "float64", ("singular_value",))
    truth = Truth(observer, jnp.asarray(noise), jnp.asarray(limit), jnp.asarray(follow))
    whole = (_on_gpu if batched() else _on_cores)(units, twins, cells, truth, tick)
    matrices = whole.pop("best_matrix")
    largest = np.array([_largest_singular_value(matrix) for matrix in matrices])
    whole["stable_rank"] = np.sum(matrices**2, axis=(1, 2)) / np.where(largest > 0, largest, 1.0) ** 2
    return whole


def _largest_singular_value(matrix: np.ndarray) -> float:
    """By Lanczos: a tenth of the time of a full decomposition, to rounding."""
    if not matrix.any() or min(matrix.shape) < 3:
        return float(np.linalg.norm(matrix, 2))
    values = svds(matrix, k=1, v0=np.ones(min(matrix.shape)), return_singular_vectors=False)
    return float(np.asarray(values)[0])


def _on_cores(
    units: list[Blocks],
    twins: list[np.ndarray],
    cells: Sequence[tuple[int, float, float]],
    truth: Truth,
    tick: Callable[[int], None],
) -> dict[str, np.ndarray]:
    """A cell at a time on each of a few threads."""
    there: tuple[list[Factor], list[Rows]] = jax.device_put((units, twins))

    @in_double_precision  # which is switched on per thread
    def one(cell: tuple[int, float, float]) -> dict[str, np.ndarray]:
        index, variance, rate = cell
        row = _whole_cell(there[0][index], there[1][index], jnp.sqrt(variance), jnp.asarray(rate), truth)
        numbers = {name: np.asarray(value) for name, value in row.items()}
        tick(1)
        return numbers

    pool = ThreadPoolExecutor(THREADS)
    try:
        rows = list(pool.map(one, cells))
    finally:
        pool.shutdown(cancel_futures=True)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _go(cell: Cell, truth: Truth, both: bool) -> Cell:
    """Advance, but leave the notes of a cell that is done (or alone, where both are followed) as they are."""
    moved = _advance(cell, truth, both)
    frozen = (cell.ending != RUNNING) | (both & ~cell.joint)
    kept = jax.tree.map(lambda old, new: jnp.where(frozen, old, new), cell, moved)
    return kept._replace(twin=moved.twin)  # the largest array; where a cell is done nobody looks at it


@partial(jax.jit, static_argnums=(2,), donate_argnums=(0,))
def _chunk(batch: Cell, truth: Truth, count: int) -> Cell:
    return jax.lax.fori_loop(0, count, lambda i, b: jax.vmap(lambda c: _go(c, truth, True))(b), batch)


@partial(jax.jit, donate_argnums=(0,))
def _alone(batch: Cell, truth: Truth, enough: int | Array) -> Cell:
    """Descent without its twin, until at most `enough` cells are left."""
    step = jax.vmap(lambda c: _go(c, truth, False))
    return jax.lax.while_loop(lambda b: jnp.sum(b.ending == RUNNING) > enough, step, batch)


class Choice(NamedTuple):
    """For each of several cells: the index of its width, σ and the learning rate."""

    width: Array
    sigma: Array
    rate: Array


def _some(chosen: Choice, cells: np.ndarray) -> Choice:
    return jax.tree.map(lambda column: column[cells], chosen)


@partial(jax.jit, static_argnums=(3,))
def _begin_all(units: tuple[Array, Array], twins: Array, chosen: Choice, shape: tuple[int, ...]) -> Cell:
    def one(choice: Choice) -> Cell:
        inner, outer, twin = units[0][choice.width], units[1][choice.width], twins[choice.width]
        return _begin((inner, outer), twin, choice.sigma, choice.rate, shape)

    return jax.vmap(one)(chosen)


@partial(jax.jit, donate_argnums=(0,))
def _refill(batch: Cell, units: tuple[Array, Array], twins: Array, take: Array, chosen: Choice) -> Cell:
    fresh = _begin_all(units, twins, chosen, batch.best_matrix.shape[1:])
    return jax.tree.map(lambda old, new: jnp.where(take.reshape(-1, *[1] * (old.ndim - 1)), new, old), batch, fresh)


@partial(jax.jit, donate_argnums=(0,))
def _put_away(store: Cell, batch: Cell, rows: Array) -> Cell:
    return jax.tree.map(lambda kept, new: kept.at[rows].set(new), store, batch._replace(twin=None))


def _stacked(blocks: Sequence[np.ndarray], hidden: int) -> Array:
    """All widths in one array, with columns of zeros up to the same number of hidden units."""
    return jnp.stack([jnp.pad(block, ((0, 0), (0, hidden - block.shape[1]))) for block in blocks])


def _on_gpu(
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
    factors = _stacked([inner for inner, _ in units], most), _stacked([outer for _, outer in units], most)
    stacked = _stacked(twins, most)
    assert truth.observer.target is not None
    shape = truth.observer.target.shape
    index, variance, rate = (np.array(column) for column in zip(*cells, strict=True))
    every = Choice(jnp.asarray(index), jnp.sqrt(variance), jnp.asarray(rate))
    slots, total = min(SLOTS, len(cells)), len(cells)
    holder, waiting, live = np.arange(slots), slots, np.ones(slots, dtype=bool)
    batch = _begin_all(factors, stacked, _some(every, np.arange(slots)), shape)
    # one row more than cells: where slots write that have nothing to put away, and a cell to fill batches up with
    store = jax.tree.map(lambda a: jnp.zeros((total + 1, *a.shape[1:]), a.dtype), batch._replace(twin=None))
    while live.any():
        batch = _chunk(batch, truth, CHUNK)
        leave = live & ((np.asarray(batch.ending) != RUNNING) | ~np.asarray(batch.joint))
        if not leave.any():
            continue
        store = _put_away(store, batch, jnp.asarray(np.where(leave, holder, total)))
        tick(int(leave.sum()))
        free = np.flatnonzero(leave)
        fill = free[: max(total - waiting, 0)]
        holder[fill] = np.arange(waiting, waiting + len(fill))
        waiting += len(fill)
        live[free[len(fill) :]] = False
        take = jnp.asarray(np.isin(np.arange(slots), fill))
        batch = _refill(batch, factors, stacked, take, _some(every, holder))
    store = _finish(store._replace(ending=store.ending.at[total].set(SPENT)), hidden[index], truth)
    return {name: np.asarray(values)[:total] for name, values in _summaries(store).items()}


def _finish(store: Cell, hidden: np.ndarray, truth: Truth) -> Cell:
    """Let the cells that are left continue alone; each time half of them are done, with half the batch.

    The row after the last cell of `store` is a cell that is done, to fill batches up.
    """
    total = len(hidden)
    lone = np.flatnonzero(np.asarray(store.ending)[:total] == RUNNING)
    most = int(hidden[lone].max()) if len(lone) else 0
    inner, outer = store.descent
    store = store._replace(descent=(inner[:, :, :most], outer[:, :, :most]))
    while len(lone):
        size = 1 << (len(lone) - 1).bit_length()  # powers of two, so that few programs are compiled
        rows = np.concatenate([lone, np.full(size - len(lone), total)])
        batch = jax.tree.map(lambda kept, r=rows: kept[r], store)
        batch = _alone(batch, truth, size // 2 if size > SMALL_BATCH else 0)
        store = jax.tree.map(lambda kept, new, r=rows: kept.at[r].set(new), store, batch)
        lone = lone[np.asarray(store.ending)[lone] == RUNNING]
    return store


_summaries = jax.jit(jax.vmap(_summary))
