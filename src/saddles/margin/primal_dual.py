"""A first-order solver of the max-margin problems, for data that interior-point methods do not fit.

Over-relaxed primal-dual iteration (Chambolle and Pock; Condat) on min_W max_{λ≥0} ‖W‖ + Σ λ_k (1 − left_kᵀ W right_k):

    W ← prox_{τ‖·‖}(W + τ Aᵀλ),   λ ← max(0, λ + σ(1 − A(2W⁺ − W))),   both over-relaxed by 1.9.

The prox of the nuclear norm needs the eigenvectors of MᵀM only. Constraints are scaled to unit length. Each time the
gap has halved the iteration restarts, from its mean since the last restart where that is better than its last point,
and the step ratio ω = √(σ/τ) is set to the geometric mean of itself and |Δλ|/|ΔW| since then (as PDLP does: at the
right ratio both move alike). The best primal and dual points so far are the certificate, so none of the constants below
can make a result wrong; they decide how soon it comes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, Multipliers, Weights, certify, refuse_infeasible
from saddles.margin.task import Tokens
from saddles.measures.margins import dual_norm, primal_norm
from saddles.runtime.progress import bar
from saddles.runtime.threads import one_thread

Point = tuple[Weights, Multipliers]
"""W and λ."""

# Over-relaxation. It converges below 2 (Condat 2013, Theorem 3.3); the closer to 2 the faster, in practice.
RELAXATION = 1.9

# √(τσ) ‖A‖. Convergence needs at most 1; the rest covers that power iteration finds ‖A‖ from below.
STEP = 0.98

# Iterations between two looks at the certificate, which costs more than an iteration.
CHECK = 20

# A restart is due where the gap has fallen to this part of the gap at the last one. Restarts make the iteration
# linearly convergent for linear programs (Applegate et al. 2021, PDLP): the mean is better than the last point while
# the iterates circle around the solution, which is what the bilinear term makes them do.
HALVED = 0.5

# Restart even without such progress after this many iterations and this part of all so far. The part is PDLP's
# artificial restart; without it a wrong step ratio, which is only mended at a restart, may stay for ever. The number
# keeps early restarts from averaging over too few iterates.
PATIENCE, ARTIFICIAL = 400, 0.36

# A dual bound this many times the first one looks unbounded, as it is where the data are not separable. It only
# triggers the search for a proof; where there is none the iteration goes on.
UNBOUNDED = 1e9

# ‖A‖ by power iteration until it changes by less than this part; that is well within `STEP`.
POWER_ITERATIONS, POWER_TOLERANCE = 100, 1e-4

# Stands for 0 in a denominator.
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Constraints:
    """A: W ↦ scaled margins, and its adjoint, without forming d² × constraints; β instead of W where diagonal.

    Constraints are divided by their lengths |left_k||right_k| (so the right-hand sides 1 become `bound`): the dual step
    is one number for all of them, and would otherwise be set by the longest. W is measured in units of the shortest, so
    that neither A nor `bound`, hence no step, knows how large the data are.
    """

    task: Tokens
    diagonal: bool

    def __post_init__(self) -> None:
        if (self.lengths == 0).any():
            k, others = int(np.argmin(self.lengths)), self.task.shape[1] - 1
            raise SaddlesError(
                f"Every constraint must depend on W, but query or token difference is 0 at sequence {k // others}, "
                f"token {self.task.others.ravel()[k]}. Leave that sequence out."
            )

    @cached_property
    def lengths(self) -> Multipliers:
        """|left_k||right_k|, or |left_k ⊙ right_k| where W is diagonal."""
        left, right = self.task.left, self.task.right
        if self.diagonal:
            return np.linalg.norm(left * right, axis=1)
        return np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)

    @cached_property
    def bound(self) -> Multipliers:
        """The right-hand sides of the scaled constraints, at most 1."""
        return self.lengths.min() / self.lengths

    @cached_property
    def tokens(self) -> Float[np.ndarray, "sequence other coordinate"]:
        """The scaled token differences, sequence by sequence: all constraints of one share its query."""
        n, length, dim = self.task.shape
        return np.ascontiguousarray((self.task.left / self.lengths[:, None]).reshape(n, length - 1, dim))

    @cached_property
    def matrix(self) -> Float[np.ndarray, "constraint coordinate"]:
        """A itself where W is diagonal: few enough numbers to write it out."""
        return self.task.left / self.lengths[:, None] * self.task.right

    def apply(self, weights: Weights) -> Multipliers:
        """A W."""
        if self.diagonal:
            return self.matrix @ weights
        return np.matmul(self.tokens, (self.task.z @ weights.T)[:, :, None]).ravel()

    def adjoint(self, multipliers: Multipliers) -> Weights:
        """Aᵀλ."""
        if self.diagonal:
            return multipliers @ self.matrix
        n, others, _ = self.tokens.shape
        return np.matmul(multipliers.reshape(n, 1, others), self.tokens)[:, 0].T @ self.task.z

    def norm(self) -> float:
        """‖A‖ by power iteration on AAᵀ, from below by a per mille at most in practice."""
        v = np.random.default_rng(0).normal(size=len(self.bound))
        size = 1.0
        for _ in range(POWER_ITERATIONS):
            v = self.apply(self.adjoint(v))
            before, size = size, float(np.linalg.norm(v))
            v = v / size
            if abs(size / before - 1) < POWER_TOLERANCE:
                break
        return size**0.5


def shrink_entries(matrix: Weights, step: float) -> Weights:
    """The prox of step·‖·‖_1."""
    return np.sign(matrix) * np.maximum(np.abs(matrix) - step, 0.0)


def shrink_values(matrix: Weights, step: float) -> Weights:
    """The prox of step·‖·‖_*: singular values lowered by `step`, from the eigendecomposition of MᵀM."""
    if matrix.ndim == 1:
        return shrink_entries(matrix, step)
    # M = UΣVᵀ has MᵀM = VΣ²Vᵀ, so that U is not needed: UΣ'Vᵀ = M V (Σ'/Σ) Vᵀ. Squaring halves the digits of singular
    # values near 0, but those are cut off. It is faster than a singular value decomposition.
    squares, vectors = np.linalg.eigh(matrix.T @ matrix)
    kept = squares > step**2
    chosen = vectors[:, kept]
    return (matrix @ chosen * (1 - step / np.sqrt(squares[kept]))) @ chosen.T


def shrink_whole(matrix: Weights, step: float) -> Weights:
    """The prox of step·‖·‖_F."""
    size = float(np.linalg.norm(matrix))
    return matrix * max(0.0, 1 - step / size) if size > 0 else matrix


PROX: dict[str, Callable[[Weights, float], Weights]] = {
    "l1": shrink_entries, "nuclear": shrink_values, "frobenius": shrink_whole,
}  # fmt: skip


def first_order(task: Tokens, problem: str, diagonal: bool, tolerance: float, max_iterations: int) -> Certified:
    """Solve by the primal-dual iteration until the relative gap is at most `tolerance`.

    It ends with what it has after `max_iterations`: the gap of the certificate says how good that is, and `max_margin`
    judges it.
    """
    began, a = time.perf_counter(), Constraints(task, diagonal)
    with one_thread(task.shape[2]):
        best, done = _iterate(a, problem, tolerance, max_iterations)
    if best.weights is None:
        refuse_infeasible(task, diagonal)
        raise SaddlesError(
            f"{max_iterations} iterations found no separating W: the data are barely separable. Raise max_iterations "
            "or use method='interior_point'."
        )
    return certify(
        task, problem, best.weights, best.multipliers * a.bound, solver="primal-dual", iterations=done,
        wall_time=time.perf_counter() - began,
    )  # fmt: skip


def _iterate(a: Constraints, problem: str, tolerance: float, max_iterations: int) -> tuple["Best", int]:
    dim = a.task.shape[2]
    point = np.zeros(dim if a.diagonal else (dim, dim)), np.zeros(len(a.bound))
    anchor, total, count, mark, done = point, point, 0, np.inf, 0
    # `anchor` is the point of the last restart, `mark` its gap; `total` sums `count` iterates since then.
    best, step, ratio, prox = Best(a, problem), STEP / a.norm(), 1.0, PROX[problem]
    with bar(f"{problem} problem, digits of the gap", -np.log10(tolerance)) as progress:
        for done in range(1, max_iterations + 1):
            (weights, multipliers), tau, sigma = point, step / ratio, step * ratio
            w = prox(weights + tau * a.adjoint(multipliers), tau)
            lam = np.maximum(0.0, multipliers + sigma * (a.bound - a.apply(2 * w - weights)))
            point = weights + RELAXATION * (w - weights), multipliers + RELAXATION * (lam - multipliers)
            # What is averaged and looked at are the points before over-relaxation: they alone are outputs of the prox
            # (of low rank, or sparse) and of the projection (λ ≥ 0).
            total, count = (total[0] + w, total[1] + lam), count + 1
            if done % CHECK:
                continue
            mean = total[0] / count, total[1] / count
            last, average = best.look(w, lam), best.look(*mean)
            progress.reach(-np.log10(best.gap) if best.gap > 0 else -np.log10(tolerance))
            if best.gap <= tolerance:
                break
            if min(last, average) < HALVED * mark or count >= max(PATIENCE, ARTIFICIAL * done):
                # PDLP's weight update: smoothed by the geometric mean, for one restart's |Δλ|/|ΔW| is noisy.
                moved = [float(np.linalg.norm(new - old)) for new, old in zip(point, anchor, strict=True)]
                ratio = float(np.sqrt(ratio * moved[1] / moved[0])) if min(moved) > 0 else ratio
                point = mean if average < last else point
                anchor, mark, count = point, min(last, average), 0
                total = np.zeros_like(point[0]), np.zeros_like(point[1])
    return best, done


class Best:
    """The best primal and dual points so far, and the gap between them."""

    def __init__(self, constraints: Constraints, problem: str) -> None:
        self._a, self._problem, self._first = constraints, problem, 0.0
        self.weights: Weights | None = None
        self.multipliers = np.zeros(len(constraints.bound))
        self.objective, self.bound = np.inf, 0.0

    @property
    def gap(self) -> float:
        """Relative, 1 where nothing separates yet."""
        return (self.objective - self.bound) / self.objective if np.isfinite(self.objective) else 1.0

    def look(self, weights: Weights, multipliers: Multipliers) -> float:
        """Take candidates over where they are better; returns their own gap (1 where the weights do not separate)."""
        # Both are scaled to feasibility first, as in `certify`; `_a.adjoint` has the scaled constraints, hence λ·bound.
        margin = (self._a.apply(weights) / self._a.bound).min()
        value = primal_norm(weights, self._problem) / margin if margin > 0 else np.inf
        if value < self.objective:
            self.objective, self.weights = value, weights
        size = dual_norm(self._a.adjoint(multipliers), self._problem)
        bound = float(multipliers @ self._a.bound) / max(size, TINY)
        if bound > self.bound:
            self.bound, self.multipliers = bound, multipliers
            self._first = self._first or bound
            if bound > UNBOUNDED * self._first:
                refuse_infeasible(self._a.task, self._a.diagonal)
                self._first = bound  # separable after all: do not ask again soon
        return (value - bound) / value if np.isfinite(value) else 1.0
