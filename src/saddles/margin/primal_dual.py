"""A first-order solver of the max-margin problems, for data that interior-point methods do not fit.

Over-relaxed primal-dual iteration (Chambolle and Pock; Condat) on min_W max_{λ≥0} ‖W‖ + Σ λ_k (1 − left_kᵀ W right_k):

    W ← prox_{τ‖·‖}(W + τ Aᵀλ),   λ ← max(0, λ + σ(1 − A(2W⁺ − W))),   both over-relaxed by 1.9.

The prox of the nuclear norm needs the eigenvectors of MᵀM only. Constraints are scaled to unit length. Each time the
gap has halved the iteration starts again, from its mean since the last start where that is better than its last point,
and the step ratio ω = √(σ/τ) is set to the geometric mean of itself and |Δλ|/|ΔW| since then (as PDLP does: at the
right ratio both move alike). The best primal and dual points so far are the certificate.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, certify, refuse_infeasible
from saddles.measures.margins import dual_norm, primal_norm
from saddles.runtime.progress import bar
from saddles.runtime.threads import one_thread

RELAXATION = 1.9
CHECK = 20
"""Iterations between two looks at the certificate."""
PATIENCE = 400
"""Iterations after which it starts again even if the gap has not halved (or 0.36 of all, if that is more)."""
UNBOUNDED = 1e9
"""A dual bound this many times the first one is taken as unbounded: the data are not separable."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """A: W ↦ scaled margins, and its adjoint, without forming d² × constraints; β instead of W where diagonal."""

    task: Any
    diagonal: bool

    def __post_init__(self) -> None:
        n, length, dim = self.task.shape
        sizes = np.linalg.norm(self.task.left, axis=1) * np.linalg.norm(self.task.right, axis=1)
        if self.diagonal:
            sizes = np.linalg.norm(self.task.diagonal, axis=1)
        if (sizes == 0).any():
            raise SaddlesError.about(
                f"constraint {int(np.argmin(sizes))} came without any effect", "query and token difference are not 0",
                "leave that sequence out",
            )  # fmt: skip
        scaled = self.task.left / sizes[:, None]
        for name, value in (
            ("bound", 1 / sizes),
            ("tokens", np.ascontiguousarray(scaled.reshape(n, length - 1, dim))),
            ("matrix", scaled * self.task.right if self.diagonal else None),
        ):
            object.__setattr__(self, name, value)

    bound: Any = None
    tokens: Any = None
    matrix: Any = None

    def apply(self, weights: np.ndarray) -> np.ndarray:
        """A W."""
        if self.diagonal:
            return self.matrix @ weights
        return np.matmul(self.tokens, (self.task.z @ weights.T)[:, :, None]).ravel()

    def adjoint(self, multipliers: np.ndarray) -> np.ndarray:
        """Aᵀλ."""
        if self.diagonal:
            return multipliers @ self.matrix
        n, others, _ = self.tokens.shape
        return np.matmul(multipliers.reshape(n, 1, others), self.tokens)[:, 0].T @ self.task.z

    def norm(self) -> float:
        """‖A‖ by power iteration, from below by a per mille at most in practice; steps keep 2 % in hand."""
        v = np.random.default_rng(0).normal(size=len(self.bound))
        size = 1.0
        for _ in range(100):
            v = self.apply(self.adjoint(v))
            before, size = size, float(np.linalg.norm(v))
            v = v / size
            if abs(size / before - 1) < 1e-4:
                break
        return size**0.5


def shrink_entries(matrix: np.ndarray, step: float) -> np.ndarray:
    """The prox of step·‖·‖_1."""
    return np.sign(matrix) * np.maximum(np.abs(matrix) - step, 0.0)


def shrink_values(matrix: np.ndarray, step: float) -> np.ndarray:
    """The prox of step·‖·‖_*: singular values lowered by `step`, from the eigendecomposition of MᵀM."""
    if matrix.ndim == 1:
        return shrink_entries(matrix, step)
    squares, vectors = np.linalg.eigh(matrix.T @ matrix)
    kept = squares > step**2
    chosen = vectors[:, kept]
    return (matrix @ chosen * (1 - step / np.sqrt(squares[kept]))) @ chosen.T


def shrink_whole(matrix: np.ndarray, step: float) -> np.ndarray:
    """The prox of step·‖·‖_F."""
    size = float(np.linalg.norm(matrix))
    return matrix * max(0.0, 1 - step / size) if size > 0 else matrix


PROX: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "l1": shrink_entries, "nuclear": shrink_values, "frobenius": shrink_whole,
}  # fmt: skip


def first_order(
    task: Any, problem: str, diagonal: bool, tolerance: float = 1e-4, max_iterations: int = 100_000
) -> Certified:
    """Solve by the primal-dual iteration until the relative gap is at most `tolerance`.

    It ends with what it has after `max_iterations`: the gap of the certificate says how good that is.
    """
    began, a = time.perf_counter(), Constraints(task, diagonal)
    with one_thread(task.shape[2]):
        best, done = _iterate(a, problem, tolerance, max_iterations)
    if best.weights is None:
        refuse_infeasible(task, diagonal)
        raise SaddlesError.about(
            f"{max_iterations} iterations passed without a separating W", "the data are hardly separable",
            "raise max_iterations or use method='small'",
        )  # fmt: skip
    return certify(
        task, problem, best.weights, best.multipliers * a.bound, solver="primal-dual", iterations=done,
        wall_time=time.perf_counter() - began,
    )  # fmt: skip


def _iterate(a: Constraints, problem: str, tolerance: float, max_iterations: int) -> tuple["Best", int]:
    dim = a.task.shape[2]
    point = np.zeros(dim if a.diagonal else (dim, dim)), np.zeros(len(a.bound))
    anchor, total, count, mark, done = point, point, 0, np.inf, 0
    best, step, ratio, prox = Best(a, problem), 0.98 / a.norm(), 1.0, PROX[problem]
    with bar(f"{problem} problem, digits of the gap", -np.log10(tolerance)) as progress:
        for done in range(1, max_iterations + 1):
            (weights, multipliers), tau, sigma = point, step / ratio, step * ratio
            w = prox(weights + tau * a.adjoint(multipliers), tau)
            lam = np.maximum(0.0, multipliers + sigma * (a.bound - a.apply(2 * w - weights)))
            point = weights + RELAXATION * (w - weights), multipliers + RELAXATION * (lam - multipliers)
            total, count = (total[0] + w, total[1] + lam), count + 1
            if done % CHECK:
                continue
            mean = total[0] / count, total[1] / count
            last, average = best.look(w, lam), best.look(*mean)
            progress.reach(-np.log10(best.gap) if best.gap > 0 else -np.log10(tolerance))
            if best.gap <= tolerance:
                break
            if min(last, average) < 0.5 * mark or count >= max(PATIENCE, 0.36 * done):
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
        self.weights: np.ndarray | None = None
        self.multipliers = np.zeros(len(constraints.bound))
        self.objective, self.bound = np.inf, 0.0

    @property
    def gap(self) -> float:
        """Relative, 1 where nothing separates yet."""
        return (self.objective - self.bound) / self.objective if np.isfinite(self.objective) else 1.0

    def look(self, weights: np.ndarray, multipliers: np.ndarray) -> float:
        """Take candidates over where they are better; returns their own gap (1 where the weights do not separate)."""
        margin = (self._a.apply(weights) / self._a.bound).min()
        value = primal_norm(weights, self._problem) / margin if margin > 0 else np.inf
        if value < self.objective:
            self.objective, self.weights = value, weights
        size = dual_norm(self._a.adjoint(multipliers), self._problem)
        bound = float(multipliers @ self._a.bound) / max(size, 1e-300)
        if bound > self.bound:
            self.bound, self.multipliers = bound, multipliers
            self._first = self._first or bound
            if bound > UNBOUNDED * self._first:
                refuse_infeasible(self._a.task, self._a.diagonal, multipliers * self._a.bound)
        return (value - bound) / value if np.isfinite(value) else 1.0
