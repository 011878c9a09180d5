"""Many cells of a phase diagram at once: descent and its self-consistent twin, each until it is done.

All cells share one task and one seed, so the start of a cell depends on its width alone, up to the scale σ: √σ² times a
unit factor, on the side of the theory too (Ĉ1, Ĉ2 scale with A and σ²w together).

How a cell is followed, and when it is done: `saddles.linear.cell`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.linear.cell import RUNNING, Number, Truth, advance, begin, summary
from saddles.linear.model import TwoLayer
from saddles.linear.observe import observer_of
from saddles.linear.slots import Blocks, follow_in_slots
from saddles.linear.task import Denoising, check_task
from saddles.linear.theory import SelfConsistent
from saddles.runtime.precision import in_double_precision
from saddles.solvers.self_consistent import Rows
from saddles.solvers.two_layer import Factor

THREADS = 2
"""Cells that a CPU works on at a time: products of this size do not fill more than one core each."""


@eqx.filter_jit
def _whole_cell(unit: Factor, twin: Rows, sigma: Number, rate: Number, truth: Truth) -> dict[str, Array]:
    assert truth.observer.target is not None
    cell = begin(unit, twin, sigma, rate, truth.observer.target.shape)
    # Two loops and not one with a condition inside: without the twin a step costs about half.
    cell = jax.lax.while_loop(lambda c: (c.ending == RUNNING) & c.joint, lambda c: advance(c, truth), cell)
    cell = jax.lax.while_loop(lambda c: c.ending == RUNNING, lambda c: advance(c, truth, both=False), cell)
    return summary(cell)


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
    # Doubling sizes up to the full one: at most seven programs, and above the smallest size no network is more than
    # doubled.
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
    return (follow_in_slots if batched() else _on_cores)(units, twins, cells, truth, tick)


def _largest_singular_value(matrix: np.ndarray) -> float:
    """By Lanczos: a tenth of the time of a full decomposition, to rounding."""
    from scipy.sparse.linalg import svds  # a fifth of what a run on a GPU spends on imports, and of no use there

    # Lanczos has nothing to begin with in a matrix of zeros, and no room in one of two rows.
    if not matrix.any() or min(matrix.shape) < 3:
        return float(np.linalg.norm(matrix, 2))
    # A fixed start, or the last digits would differ from call to call.
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
    whole = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    matrices = whole.pop("best_matrix")
    largest = np.array([_largest_singular_value(matrix) for matrix in matrices])
    whole["stable_rank"] = np.sum(matrices**2, axis=(1, 2)) / np.where(largest > 0, largest, 1.0) ** 2
    return whole
