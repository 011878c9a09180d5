"""How a run of the margin lab is labelled; simulation and theory bring their own weights to it."""

from typing import Any

import numpy as np

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.margins import combine, dual_norm, kkt_residuals, primal_norm

KEEPABLE = ("factors", "accumulated")
"""Variables that are kept on request: K and Q; φ."""

UNIT = "rescaled time, ∫|c|dt"


def weights_variable(weights: np.ndarray) -> dict[str, Any]:
    """`beta` or `weights`, by its axes."""
    if weights.ndim == 2:
        return {"beta": (("time", "coordinate"), weights)}
    return {"weights": (("time", "row", "column"), weights)}


def describe_weights(weights: np.ndarray, task: Any) -> dict[str, Any]:
    """Margin and norms of weights (time, …)."""
    margin = np.array([task.margins(one).min() for one in weights])
    nuclear = np.array([primal_norm(one, "nuclear") for one in weights])
    frobenius = np.array([primal_norm(one, "frobenius") for one in weights])
    named = {"margin": margin, "nuclear_norm": nuclear, "frobenius_norm": frobenius}
    return {name: (("time",), values) for name, values in named.items()} | {
        "left": (("constraint", "coordinate"), task.left),
        "right": (("constraint", "coordinate"), task.right),
    }


def optimality(weights: np.ndarray, sums: np.ndarray, task: Any, norm: str) -> dict[str, Any]:
    """The three KKT residuals with the proof's multipliers, and the certificate of φ/‖Bφ‖.

    Multipliers of the proof: φ/ln μ for K and Q apart (NaN where μ ≤ 1), φ/‖Bφ‖ for one matrix, whose weights are
    ½Bφ themselves. `dual_objective` is Σφ/‖Bφ‖ in the dual norm, a lower bound of the optimum at every time (φ ≥ 0);
    `certified_gap` is how far the norm at unit margin is above it, relative to the norm.
    """
    rows = [_optimality(one, np.asarray(phi), task, norm) for one, phi in zip(weights, sums, strict=True)]
    names = ("kkt_feasibility", "kkt_stationarity", "kkt_slackness", "dual_objective", "certified_gap",
             "dual_stationarity", "dual_slackness")  # fmt: skip
    return {name: (("time",), np.array(values)) for name, values in zip(names, np.array(rows).T, strict=True)}


def _optimality(weights: np.ndarray, phi: np.ndarray, task: Any, norm: str) -> tuple[float, ...]:
    margin = task.margins(weights).min()
    fair = np.maximum(phi, 0.0)
    size = dual_norm(combine(fair, task.left, task.right, weights.ndim == 1), norm)
    if not size > 0:
        return 1.0, *[np.nan] * 6
    dual = fair / size
    with np.errstate(divide="ignore", invalid="ignore"):
        proof = dual if norm == "frobenius" else phi / np.log(margin) if margin > 1 else np.full_like(phi, np.nan)
    feasible, stationary, slack = kkt_residuals(weights, task.left, task.right, proof, norm) if margin > 0 and (
        np.isfinite(proof).all()
    ) else (1.0 if margin <= 0 else 0.0, np.nan, np.nan)  # fmt: skip
    if not margin > 0:
        return feasible, stationary, slack, dual.sum(), np.nan, np.nan, np.nan
    _, again, loose = kkt_residuals(weights, task.left, task.right, dual, norm)
    gap = 1 - dual.sum() * margin / primal_norm(weights, norm)
    return feasible, stationary, slack, dual.sum(), gap, again, loose


def to_trajectory(variables: dict[str, Any], clock: np.ndarray, model: Any, task: Any, **facts: Any) -> Trajectory:
    """Give arrays their names and provenance."""
    n, length, dim = task.shape
    coords = {
        "coordinate": np.arange(dim),
        "sequence": ("constraint", np.repeat(np.arange(n), length - 1)),
        "token": ("constraint", task.others.ravel()),
        **facts.pop("coords", {}),
    }
    data = f"Tokens(n={n}, length={length}, dim={dim})"
    return make_trajectory(variables, clock, unit=UNIT, coords=coords, lab="margin", model=model, task=data, **facts)
