"""How a run of the margin lab is labelled; simulation and theory bring their own weights to it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.margin.task import Tokens
from saddles.measures.margins import Multipliers, Weights, combine, dual_norm, kkt_residuals, primal_norm

UNIT = "rescaled time, ∫|c|dt"

WeightsOverTime = Float[np.ndarray, "time row *column"]
"""W (time, row, column), or the β of a diagonal layer (time, coordinate)."""

Clock = Float[np.ndarray, "time"]


def weights_variable(weights: WeightsOverTime) -> dict[str, Variable]:
    """`beta` or `weights`, by its axes."""
    if weights.ndim == 2:
        return {"beta": (("time", "coordinate"), weights)}
    return {"weights": (("time", "row", "column"), weights)}


def describe_weights(weights: WeightsOverTime, task: Tokens) -> dict[str, Variable]:
    """Margin and norms over time, and the constraints they are about."""
    return {
        "margin": np.array([task.margins(one).min() for one in weights]),
        "nuclear_norm": np.array([primal_norm(one, "nuclear") for one in weights]),
        "frobenius_norm": np.array([primal_norm(one, "frobenius") for one in weights]),
        "left": (("constraint", "coordinate"), task.left),
        "right": (("constraint", "coordinate"), task.right),
    }


def optimality(
    weights: WeightsOverTime, sums: Float[np.ndarray, "time constraint"], task: Tokens, norm: str
) -> dict[str, Variable]:
    """The three KKT residuals with the proof's multipliers, and the certificate of φ/‖Bφ‖.

    Multipliers of the proof: φ/ln μ for K and Q apart (NaN where μ ≤ 1), φ/‖Bφ‖ for one matrix, whose weights are
    ½Bφ themselves. `dual_objective` is Σφ/‖Bφ‖ in the dual norm, a lower bound of the optimum at every time (φ ≥ 0);
    `certified_gap` is how far the norm at unit margin is above it, relative to the norm.
    """
    rows = [_optimality(one, phi, task, norm) for one, phi in zip(weights, sums, strict=True)]
    names = ("kkt_feasibility", "kkt_stationarity", "kkt_slackness", "dual_objective", "certified_gap",
             "dual_stationarity", "dual_slackness")  # fmt: skip
    return dict(zip(names, np.array(rows).T, strict=True))


def _optimality(weights: Weights, phi: Multipliers, task: Tokens, norm: str) -> tuple[float, ...]:
    margin = float(task.margins(weights).min())
    fair = np.maximum(phi, 0.0)  # φ ≥ 0 but for rounding, and the bound needs it exactly
    size = dual_norm(combine(fair, task.left, task.right, weights.ndim == 1), norm)
    if not size > 0:  # at the start of the flow φ is 0 and bounds nothing
        return 1.0, *[np.nan] * 6
    dual = fair / size
    bound = float(dual.sum())
    if not margin > 0:
        return 1.0, np.nan, np.nan, bound, np.nan, np.nan, np.nan
    # At unit margin every constraint is met by construction. Below μ = 1 the proof's φ/ln μ is not defined.
    residuals = (0.0, np.nan, np.nan)
    if norm == "frobenius" or margin > 1:
        proof = dual if norm == "frobenius" else phi / np.log(margin)
        residuals = kkt_residuals(weights, task.left, task.right, proof, norm)
    _, stationarity, slackness = kkt_residuals(weights, task.left, task.right, dual, norm)
    gap = 1 - bound * margin / primal_norm(weights, norm)
    return *residuals, bound, gap, stationarity, slackness


def to_trajectory(
    variables: Mapping[str, Variable],
    clock: Clock,
    model: object,
    task: Tokens,
    *,
    coords: Mapping[str, object] | None = None,
    **facts: Any,  # as `make_trajectory` takes them
) -> Trajectory:
    """Give arrays their names and provenance."""
    n, length, dim = task.shape
    axes = {
        "coordinate": np.arange(dim),
        "sequence": ("constraint", np.repeat(np.arange(n), length - 1)),
        "token": ("constraint", task.others.ravel()),
    }
    return make_trajectory(
        variables, clock, unit=UNIT, coords=axes | dict(coords or {}), lab="margin", model=model,
        task=f"Tokens(n={n}, length={length}, dim={dim})", **facts,
    )  # fmt: skip
