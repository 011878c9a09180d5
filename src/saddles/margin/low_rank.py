"""The max-margin problem with a constraint on the rank, (W*-SVM) for d_e < d: min ‖W‖_* over rank(W) ≤ m.

‖W‖_* is the least ½(|K|² + |Q|²) of all W = KQᵀ, so the problem is smooth in K and Q, and not convex. A local solver
(SLSQP) is started from several points. What it finds bounds the optimum from above; the dual of the problem without the
constraint bounds it from below, and where the two meet the solution is proven.

For m = 1 it is proven always: W = kqᵀ separates only if qᵀz_i has some sign s_i in every sequence, and for given signs
(s_i leftᵀk)(s_i qᵀz_i) ≥ 1 with both factors positive is a convex set. All signs are tried, each by one convex problem.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import optimize

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, certify
from saddles.margin.convex import max_margin
from saddles.margin.task import Tokens
from saddles.runtime.threads import one_thread

Matrix = Float[np.ndarray, "_ _"]
Vector = Float[np.ndarray, "..."]

PROVEN = 1e-5
"""A gap below this is that of the solvers."""

MOST_SIGNS = 12
"""Sequences up to which all signs are tried for rank 1: 2^11 convex problems of some milliseconds."""

STEPS, PRECISION = 500, 1e-13
"""Steps of the local solver at most, and the change of its objective at which it stops."""


@arguments_explained
@dataclass(frozen=True, eq=False)
class RankConstrained:
    """The best W of rank m that was found.

    `best` has W at margin 1, its nuclear norm, and as `dual_objective` the bound without the constraint;
    `objectives` (start,) what each start led to, infinite where it does not separate; `proven` whether `best` is the
    optimum for certain.
    """

    rank: int
    best: Certified
    objectives: Vector
    proven: bool


def low_rank_margin(
    task: Tokens, rank: int, *, starts: int = 20, seed: int = 0, convex: Certified | None = None
) -> RankConstrained:
    """Solve min ‖W‖_* s.t. rank(W) ≤ m and (x_i,opt − x_il)ᵀ W z_i ≥ 1 for all i and l ≠ opt(i).

    Args:
        rank: m.
        starts: random K and Q that the local solver starts from, besides the truncated solution without the
            constraint; for rank 1 the signs take their place (up to 12 sequences).
        seed: of the random starts.
        convex: the solution without the constraint, where it is known already.

    Fails where no start leads to a W that separates.
    """
    if not 1 <= rank <= task.shape[2]:
        raise SaddlesError.must_be("rank", f"between 1 and the {task.shape[2]} coordinates of a token", rank)
    whole = convex or max_margin(task, "nuclear")
    enumerated = rank == 1 and task.shape[0] <= MOST_SIGNS
    begins = _by_signs(task) if enumerated else _at_random(task, rank, starts, seed)
    with one_thread():
        found = [local_optimum(task, *pair) for pair in [truncated(whole.solution, rank), *begins]]
    sizes = np.array([np.inf if weights is None else unit_norm(task, weights) for weights in found])
    if not np.isfinite(sizes).any():
        raise SaddlesError(f"No W of rank {rank} that separates was found from {len(found)} starts. Raise the rank.")
    weights = found[int(sizes.argmin())]
    assert weights is not None
    best = certify(task, "nuclear", weights, whole.multipliers, solver="SLSQP", iterations=len(found))
    return RankConstrained(rank, best, sizes, bool(enumerated or best.gap <= PROVEN))


def local_optimum(task: Tokens, key: Matrix, query: Matrix) -> Matrix | None:
    """W = KQᵀ where the local solver ends, None where that does not separate."""
    lengths = np.linalg.norm(task.left, axis=1) * np.linalg.norm(task.right, axis=1)
    left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (task.left, task.right))
    bound = lengths.min() / lengths  # W in units of 1 / the shortest: no step knows how large the data are
    columns = key.shape[1]

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = x.reshape(2, -1, columns)
        return both[0], both[1]

    def margins(x: np.ndarray) -> np.ndarray:
        k, q = split(x)
        return ((left @ k) * (right @ q)).sum(1) - bound

    def slopes(x: np.ndarray) -> np.ndarray:
        k, q = split(x)
        by_key = left[:, :, None] * (right @ q)[:, None, :]
        by_query = right[:, :, None] * (left @ k)[:, None, :]
        return np.concatenate([by_key.reshape(len(left), -1), by_query.reshape(len(left), -1)], axis=1)

    # The start is brought to ‖KQᵀ‖ = 1, the order of what the scaled constraints ask for.
    size = np.sqrt(max(np.linalg.norm(key @ query.T), np.finfo(float).tiny))
    begin = np.concatenate([key.ravel(), query.ravel()]) / size
    done = optimize.minimize(
        lambda x: (0.5 * x @ x, x), begin, jac=True, method="SLSQP",
        constraints={"type": "ineq", "fun": margins, "jac": slopes}, options={"maxiter": STEPS, "ftol": PRECISION},
    )  # fmt: skip
    # Whether SLSQP claims success is not asked: what it leaves is judged by its own margin.
    k, q = split(done.x)
    weights = k @ q.T
    return weights if np.isfinite(weights).all() and task.margins(weights).min() > 0 else None


def unit_norm(task: Tokens, weights: Matrix) -> float:
    """‖W‖_* at margin 1."""
    return float(np.linalg.norm(weights, "nuc") / task.margins(weights).min())


def truncated(weights: Matrix, rank: int) -> tuple[Matrix, Matrix]:
    """K and Q of the best fit of a rank, balanced."""
    u, s, vt = np.linalg.svd(weights)
    root = np.sqrt(s[:rank])
    return u[:, :rank] * root, vt[:rank].T * root


def _at_random(task: Tokens, rank: int, starts: int, seed: int) -> list[tuple[Matrix, Matrix]]:
    draw, shape = np.random.default_rng([seed, 65]), (task.shape[2], rank)
    return [(draw.normal(size=shape), draw.normal(size=shape)) for _ in range(starts)]


def _by_signs(task: Tokens) -> list[tuple[Matrix, Matrix]]:
    """A feasible k and q for every choice of signs that has one; s and −s are the same W."""
    signs = itertools.product((1.0, -1.0), repeat=task.shape[0] - 1)
    pairs = (separating(task, np.array([1.0, *rest])) for rest in signs)
    return [pair for pair in pairs if pair is not None]


def separating(task: Tokens, signs: Vector) -> tuple[Matrix, Matrix] | None:
    """Some k and q for which kqᵀ separates and qᵀz_i has these signs, whatever their norms; None where there are none.

    A linear program for each of them finds a feasible point, and minimises nothing.
    """
    key = _above_one(np.repeat(signs, task.shape[1] - 1)[:, None] * task.left)
    query = _above_one(signs[:, None] * task.z)
    return None if key is None or query is None else (key[:, None], query[:, None])


def _above_one(rows: Matrix) -> Vector | None:
    """A vector whose products with all rows are positive, None where there is none."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = optimize.linprog(
        np.zeros(rows.shape[1]), A_ub=-unit, b_ub=-np.ones(len(rows)), bounds=(None, None), method="highs"
    )
    return found.x if found.status == 0 else None
