"""A solution of a max-margin problem that proves itself, and the proof that there is none.

    min ‖W‖  s.t. (left_k)ᵀ W right_k ≥ 1        max Σλ  s.t. ‖Σ λ_k left_k right_kᵀ‖_dual ≤ 1, λ ≥ 0

Any W with a positive margin becomes feasible when it is divided by its margin, and any λ ≥ 0 becomes dual feasible when
it is divided by ‖Σλ_k left_k right_kᵀ‖_dual. Both objectives are computed here, from W, λ and the data alone: it does
not matter who found them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.margin.generate import factor, hull
from saddles.measures.margins import combine, constraint_margins, dual_norm, primal_norm

FEASIBLE = 1e-9
"""Constraints may miss 1 by this much, rounding."""


class InfeasibleError(SaddlesError):
    """No W separates: `multipliers` λ ≥ 0 with Σλ = 1 and Σ λ_k left_k right_kᵀ = 0 prove it (Gordan's theorem)."""

    def __init__(self, sentence: str, multipliers: np.ndarray, residual: float) -> None:
        super().__init__(sentence)
        self.multipliers, self.residual = multipliers, residual


@dataclass(frozen=True, eq=False)
class Certified:
    """A solution with its certificate.

    `solution` is W (row, column), or β where the problem was diagonal, at margin 1; `objective` its norm;
    `dual_objective` a lower bound of the optimum, from `multipliers` (constraint,), dual feasible; `gap` =
    (objective − dual_objective)/objective; `feasible` whether every constraint is met to 1e-9.
    """

    problem: str
    diagonal: bool
    solution: np.ndarray
    objective: float
    dual_objective: float
    gap: float
    feasible: bool
    multipliers: np.ndarray
    solver: str
    iterations: int = 0
    wall_time: float = 0.0


def certify(
    task: Any, problem: str, weights: np.ndarray, multipliers: np.ndarray, *, solver: str, **facts: Any
) -> Certified:
    """Scale a candidate and its multipliers to feasibility and state both objectives."""
    diagonal = weights.ndim == 1
    margin = constraint_margins(weights, task.left, task.right).min()
    if not margin > 0:
        raise SaddlesError.about(
            f"a candidate with margin {margin:.3g} came from {solver}", "it must separate the optimal tokens",
            "the data may be hardly separable: see check(task), or use method='large' with more iterations",
        )  # fmt: skip
    unit = weights / margin
    fair = np.maximum(multipliers, 0.0)
    size = dual_norm(combine(fair, task.left, task.right, diagonal), problem)
    dual = fair / size if size > 0 else fair
    objective, bound = primal_norm(unit, problem), float(dual.sum())
    return Certified(
        problem, diagonal, unit, objective, bound, (objective - bound) / objective,
        bool(constraint_margins(unit, task.left, task.right).min() >= 1 - FEASIBLE), dual, solver, **facts,
    )  # fmt: skip


def refuse_infeasible(task: Any, diagonal: bool, weights: np.ndarray | None = None) -> None:
    """Raise `InfeasibleError` with its certificate if no (diagonal) W separates the data.

    Args:
        weights: a certificate that was found on the way, instead of looking for one.
    """
    distance, found = hull(factor(task, diagonal)) if weights is None else (0.0, weights)
    if distance > 0:
        return
    proof = found / found.sum()
    residual = float(np.abs(combine(proof, task.left, task.right, diagonal)).max())
    biggest = np.argsort(proof)[::-1][:3]
    others = task.shape[1] - 1
    named = ", ".join(f"{proof[k]:.3g} at sequence {k // others} token {task.others.ravel()[k]}" for k in biggest)
    kind = "diagonal W" if diagonal else "W"
    sentence = SaddlesError.about(
        f"data came that no {kind} separates",
        f"multipliers of sum 1 ({np.count_nonzero(proof > 1e-12)} of them positive, the largest {named}) combine the "
        f"constraints to 0 within {residual:.1e}",
        "leave out a sequence they name" if not diagonal else "use a full W, more coordinates, or fewer sequences",
    )
    raise InfeasibleError(str(sentence), proof, residual)
