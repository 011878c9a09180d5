"""What the flows converge to: the max-margin problem of each parametrisation."""

from dataclasses import dataclass

import numpy as np

from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin.convex import METHODS, PROBLEMS, RENAMED, max_margin
from saddles.margin.observe import describe_weights, to_trajectory, weights_variable
from saddles.margin.task import Tokens, check_task


@arguments_explained
@dataclass(frozen=True)
class MaxMargin:
    """The limit of W/μ(W): the solution of a max-margin problem.

    Args:
        problem: "l1", "nuclear", "frobenius" or "aligned"; None is the `norm` of the model.
        method: "auto", "interior_point" or "primal_dual" (see `max_margin`).
        tolerance: relative gap of the primal-dual solver.
    """

    problem: str | None = None
    method: str = "auto"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.problem is not None and self.problem not in PROBLEMS:
            raise SaddlesError.unknown("problem", self.problem, PROBLEMS)
        if self.method not in (*METHODS, *RENAMED):
            raise SaddlesError.unknown("method", self.method, METHODS)

    def predict(self, model: object, task: Tokens) -> Trajectory:
        """The limit of the margin-normalised direction, at the one time ∞, with its certificate.

        It needs nothing of the model but its `norm`, and `diagonal` where W is.

        Variables: `beta` or `weights` at margin 1, `margin`, `nuclear_norm`, `frobenius_norm`, `objective`,
        `dual_objective`, `gap` (time), and `multipliers` (constraint).
        """
        problem = self.problem or getattr(model, "norm", None)
        if problem not in PROBLEMS:
            raise SaddlesError(
                f"MaxMargin is for models with a `norm` ('l1', 'nuclear' or 'frobenius'), such as those of "
                f"saddles.margin; got {type(model).__name__}. Name the problem: MaxMargin('nuclear')."
            )
        check_task(task)
        diagonal = getattr(model, "diagonal", False) or None  # None leaves it to the problem: "l1" is about a β
        solved = max_margin(task, problem, diagonal=diagonal, method=self.method, tolerance=self.tolerance)
        weights = solved.solution[None]
        variables = weights_variable(weights) | describe_weights(weights, task)
        for name in ("objective", "dual_objective", "gap"):
            variables[name] = np.array([getattr(solved, name)])
        variables["multipliers"] = (("constraint",), solved.multipliers)
        return to_trajectory(
            variables, np.array([np.inf]), model, task, theory=self, kind="predicted", solver=solved.solver,
            wall_time=solved.wall_time,
        )  # fmt: skip
