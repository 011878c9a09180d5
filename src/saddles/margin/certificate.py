"""A solution of a max-margin problem that proves itself, and the proof that there is none.

    min ‖W‖  s.t. (left_k)ᵀ W right_k ≥ 1        max Σλ  s.t. ‖Σ λ_k left_k right_kᵀ‖_dual ≤ 1, λ ≥ 0

Any W with a positive margin becomes feasible when it is divided by its margin, and any λ ≥ 0 becomes dual feasible when
it is divided by ‖Σλ_k left_k right_kᵀ‖_dual. Both objectives are computed here, from W, λ and the data alone: it does
not matter who found them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin.separation import factor, hull
from saddles.margin.task import Tokens
from saddles.measures.margins import combine, constraint_margins, dual_norm, primal_norm

Weights = Float[np.ndarray, "row *column"]
"""W (row, column), or a diagonal's β (row,)."""

Multipliers = Float[np.ndarray, "constraint"]
"""λ, one for each constraint."""

FEASIBLE = 1e-9
"""Constraints may miss 1 by this much. Dividing by the margin makes the least one 1 up to the rounding of two products,
which is 1e-16 times their condition; more than 1e-9 means that the margin itself is round-off."""

POSITIVE = 1e-12
"""Multipliers (of sum 1) above this are counted as positive in a message."""

NAMED = 3
"""Constraints that a message names."""


class InfeasibleError(SaddlesError):
    """No W separates: `multipliers` λ ≥ 0 with Σλ = 1 and Σ λ_k left_k right_kᵀ = 0 prove it (Gordan's theorem)."""

    def __init__(self, sentence: str, multipliers: Multipliers, residual: float) -> None:
        super().__init__(sentence)
        self.multipliers, self.residual = multipliers, residual


@arguments_explained
@dataclass(frozen=True, eq=False)
class Certified:
    """A solution with its certificate.

    `solution` is W (row, column), or β where the problem was diagonal, at margin 1; `objective` its norm;
    `dual_objective` a lower bound of the optimum, from `multipliers` (constraint,), dual feasible; `gap` =
    (objective − dual_objective)/objective; `feasible` whether every constraint is met to 1e-9.
    """

    problem: str
    diagonal: bool
    solution: Weights
    objective: float
    dual_objective: float
    gap: float
    feasible: bool
    multipliers: Multipliers
    solver: str
    iterations: int = 0
    wall_time: float = 0.0


def certify(
    task: Tokens,
    problem: str,
    weights: Weights,
    multipliers: Multipliers,
    *,
    solver: str,
    iterations: int = 0,
    wall_time: float = 0.0,
) -> Certified:
    """Scale a candidate and its multipliers to feasibility and state both objectives."""
    diagonal = weights.ndim == 1
    margin = constraint_margins(weights, task.left, task.right).min()
    if not margin > 0:
        raise SaddlesError(
            f"A candidate must separate the optimal tokens; {solver} returned one with margin {margin:.3g}. The data "
            "may be barely separable: see check_assumptions(task), or use method='primal_dual' with more iterations."
        )
    unit = weights / margin
    # Solvers return slightly negative multipliers. Cutting them costs a little of the bound, never its validity: any
    # λ ≥ 0 of dual norm at most 1 bounds the optimum from below.
    fair = np.maximum(multipliers, 0.0)
    size = dual_norm(combine(fair, task.left, task.right, diagonal), problem)
    dual = fair / size if size > 0 else fair
    objective, bound = primal_norm(unit, problem), float(dual.sum())
    return Certified(
        problem, diagonal, unit, objective, bound, (objective - bound) / objective,
        bool(constraint_margins(unit, task.left, task.right).min() >= 1 - FEASIBLE), dual, solver, iterations,
        wall_time,
    )  # fmt: skip


def refuse_infeasible(task: Tokens, diagonal: bool) -> None:
    """Raise `InfeasibleError` with its certificate if no (diagonal) W separates the data."""
    distance, proof = hull(factor(task.left, task.right, diagonal))
    if distance > 0:
        return
    residual = float(np.abs(combine(proof, task.left, task.right, diagonal)).max())
    others = task.shape[1] - 1
    named = ", ".join(
        f"{proof[k]:.3g} at sequence {k // others} token {task.others.ravel()[k]}"
        for k in np.argsort(proof)[::-1][:NAMED]
    )
    kind = "diagonal W" if diagonal else "W"
    advice = "Use a full W, more coordinates, or fewer sequences" if diagonal else "Leave out a sequence that they name"
    raise InfeasibleError(
        f"The data must be separable, and no {kind} separates them: multipliers of sum 1 "
        f"({np.count_nonzero(proof > POSITIVE)} of them positive, the largest {named}) combine the constraints to 0 "
        f"within {residual:.1e}. {advice}.", proof, residual,
    )  # fmt: skip
