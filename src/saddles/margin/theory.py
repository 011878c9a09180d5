"""What the flows converge to: the max-margin problem of each parametrisation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saddles.core.trajectory import Trajectory
from saddles.core.validation import check_keep
from saddles.errors import SaddlesError
from saddles.margin.convex import PROBLEMS, max_margin
from saddles.margin.model import DiagonalAttention, FactoredAttention, JointAttention
from saddles.margin.observe import KEEPABLE, describe_weights, to_trajectory, weights_variable

EXPECTED = {DiagonalAttention: "l1", FactoredAttention: "nuclear", JointAttention: "frobenius"}
"""Theorem 4.1, Theorem 5.1 (beyond its data: an expectation), and Tarzanagh et al. for one matrix."""


@dataclass(frozen=True)
class MaxMargin:
    """The limit of W/μ(W): the solution of a max-margin problem.

    Args:
        problem: "l1", "nuclear", "frobenius" or "aligned"; None is the one of the model.
        method: "auto", "interior_point" or "primal_dual" (see `max_margin`).
        tolerance: relative gap of the primal-dual solver.
    """

    problem: str | None = None
    method: str = "auto"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.problem is not None and self.problem not in PROBLEMS:
            raise SaddlesError.about(
                f"problem={self.problem!r} came", f"{', '.join(PROBLEMS)} are solved", "None is the model's own"
            )


def predict(
    model: Any,
    task: Any,
    theory: Any,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """The limit of the margin-normalised direction, at the one time ∞, with its certificate.

    Variables: `beta` or `weights` at margin 1, `margin`, `nuclear_norm`, `frobenius_norm`, `objective`,
    `dual_objective`, `gap` (time), and `multipliers` (constraint).
    """
    check_keep(keep, KEEPABLE)
    if not isinstance(theory, MaxMargin):
        raise SaddlesError.about(f"{type(theory).__name__} came as a theory", "MaxMargin is known here", "use it")
    if type(model) not in EXPECTED:
        raise SaddlesError.about(
            f"{type(model).__name__} came as a model", "a model of saddles.margin is needed", "see its docstring"
        )
    began = time.perf_counter()
    found = max_margin(
        task, theory.problem or EXPECTED[type(model)], diagonal=isinstance(model, DiagonalAttention) or None,
        method=theory.method, tolerance=theory.tolerance,
    )  # fmt: skip
    weights = found.solution[None]
    variables = weights_variable(weights) | describe_weights(weights, task)
    for name in ("objective", "dual_objective", "gap"):
        variables[name] = (("time",), np.array([getattr(found, name)]))
    variables["multipliers"] = (("constraint",), found.multipliers)
    return to_trajectory(
        variables, np.array([np.inf]), model, task, theory=theory, seed=seed, kind="predicted", solver=found.solver,
        wall_time=time.perf_counter() - began,
    )  # fmt: skip
