"""One cell of a phase diagram on its way: descent and its self-consistent twin, step by step, until it is done.

A cell keeps the best test error so far, the matrix there, and the distance between the two dynamics.

**When a cell is done.** Once the train error is so small that ‖A − A*‖ ≥ ‖E‖ − ‖A − A* − E‖ exceeds the best test error
seen, no later step can be better: descent lowers the train error (it is checked that it did), so the best lies behind
for certain, and nothing is gained by fitting the rest of the noise. Where that never happens (a width below the rank),
a cell is done when train and test error changed by less than 1e-4 over 50 steps, after the train error has left its
start. The twin is followed until some steps past the best test error; from there on descent continues alone.

**Why a loop of its own.** A step is the lab's (`descended` with the slopes of the network and of the theory), but
`saddles.solvers.descent.iterate` runs a number of steps that is known beforehand and hands rows to Python every 32.
A cell ends by what it sees, after 40 steps or after 4,000: here the whole cell is one compiled loop.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from saddles.linear.observe import Observer
from saddles.linear.simulate import slope
from saddles.linear.theory import represented_rows, slope_rows
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

RUNNING, CERTIFIED, FLATTENED, DIVERGED, SPENT = range(5)
ENDINGS = ("running", "certified", "flat", "diverged", "steps spent")

Number = Float[Array, ""]
Whole = Int[Array, ""]


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


def advance(cell: Cell, truth: Truth, both: bool = True) -> Cell:
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
    # The triangle inequality of the module's docstring, as mean squares: √(test error) ≥ ‖E‖/√(d_in d_out) − √(train
    # error).
    floor = jnp.maximum(truth.noise - jnp.sqrt(train), 0.0) ** 2
    # At step 0 this reads an empty place of the ring; `certified` asks for a later step.
    falls = train <= cell.trains[(cell.step - 1) % WINDOW]
    certified = (floor > best) & falls & (cell.step > 0)
    left = train < LEFT * cell.trains[WINDOW]
    still = (jnp.abs(train - before) < FLAT * train) & (jnp.abs(test - was) < FLAT * test)
    flat = (cell.step >= WINDOW) & left & still
    trains = cell.trains.at[slot].set(train)
    # The first look fills the whole ring, its last place included, which keeps the first train error from here on.
    trains = jnp.where(cell.step == 0, jnp.full_like(trains, train), trains)
    # The first that holds counts: a run that diverged must not be called flat.
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


def begin(unit: Factor, twin: Rows, sigma: Number, rate: Number, shape: tuple[int, ...]) -> Cell:
    """A cell at its start: unit factors times σ, before any look."""
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


def summary(cell: Cell) -> dict[str, Array]:
    """What is kept of a cell that is done."""
    return {
        "best_test_error": cell.best,
        "best_step": cell.best_step,
        "best_matrix": cell.best_matrix,
        "distance_at_best": cell.gap_at_best,
        "distance_most": cell.gap_most,
        "steps": cell.step - 1,
        "ending": cell.ending,
    }
