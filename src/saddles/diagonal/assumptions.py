"""The three assumptions of Theorem C.4 as numbers, stage by stage."""

from typing import Any

import numpy as np
import xarray as xr

from saddles.diagonal.rest import flow_to_rest
from saddles.diagonal.risk import Risk, risk_of
from saddles.errors import SaddlesError

KINDS = ("4.3 gap", "4.3 unequal start", "4.3 exits", "4.4", "4.5")

FLAT = 1e-8
"""Curvatures below this part of the largest count as flat; gaps and exit forces below it as none."""

NEAR = 1e-3
"""A perturbed flow ends at the same point if u differs by less than this part of its norm."""


def check_assumptions(
    model: Any, task: Any, predicted: xr.Dataset, *, radius: float = 1e-2, trials: int = 2, seed: int = 0
) -> xr.Dataset:
    """Check Assumptions 4.3, 4.4 and 4.5 at every stage that `Incremental` predicted.

    Numbers, each of which must be positive (4.5: at most 1e-3):
    4.3 gap: relative gap between the two smallest Δ (0 for a tie);
    4.3 unequal start: smallest | |u₀|−|v₀| |;
    4.3 exits: smallest |g_i| / max|g(0)| of coordinates that leave (∞ where none does);
    4.4: smallest over largest eigenvalue of the Hessian of u ↦ L(u, s⊙u) on the support after the stage
    (the paper's inequality lacks −L(θ^k) on the left);
    4.5: distance of the endpoint, relative to |u|, after the flow is started from u^k + ũ, ũ of norm up to
    `radius`, on the support and i_k, with ũ_{i_k} > 0 and signs s^{k+1}.

    Args:
        predicted: what `predict(model, task, Incremental(...))` gave.
        radius, trials, seed: of the perturbations of 4.5; trials=0 leaves it out.

    Returns:
        `value` and `verdict` ("holds", "fails" or "not checked"), both (assumption, stage).
    """
    if "stage_beta" not in predicted:
        raise SaddlesError.about(
            f"a trajectory with {sorted(map(str, predicted.data_vars))[:4]} came", "a predicted one is needed",
            "pass the result of predict(model, task, Incremental())",
        )  # fmt: skip
    risk = risk_of(model, task)
    betas = predicted["stage_beta"].values
    count = len(betas)
    u, v = model.start(seed)
    values = np.full((len(KINDS), count), np.nan)
    values[0] = np.where(predicted["stage_tie"] > 1, 0.0, predicted["stage_gap"])
    values[1] = np.abs(np.abs(u) - np.abs(v)).min()
    values[2] = predicted["stage_exit_force"]
    draw = np.random.default_rng([seed, 37])
    for stage in range(count):
        values[3, stage] = curvature(risk, betas[stage])
        before = betas[stage - 1] if stage else np.zeros(model.coordinates)
        new, side = int(predicted["stage_coordinate"][stage]), int(predicted["stage_sign"][stage])
        if trials and int(predicted["stage_tie"][stage]) == 1:
            values[4, stage] = max(_robust(risk, before, new, side, betas[stage], radius, draw) for _ in range(trials))
    fine = values > np.array([FLAT, 0.0, FLAT, FLAT, -np.inf])[:, None]
    fine[4] = values[4] <= NEAR
    verdict = np.where(np.isnan(values), "not checked", np.where(fine, "holds", "fails"))
    return xr.Dataset(
        {"value": (("assumption", "stage"), values), "verdict": (("assumption", "stage"), verdict)},
        coords={"assumption": list(KINDS), "stage": np.arange(count)},
    )


def curvature(risk: Risk, beta: np.ndarray) -> float:
    """Smallest over largest eigenvalue of ∇²_u L(u, s⊙u) = 4 diag(u) S ∇²L S diag(u) on the support."""
    chosen = np.flatnonzero(beta)
    root = np.sign(beta[chosen]) * np.sqrt(np.abs(beta[chosen]))
    block = risk.columns(beta, chosen)[chosen]
    values = np.linalg.eigvalsh(4 * root[:, None] * (block + block.T) / 2 * root)
    return float(values[0] / np.abs(values).max())


def _robust(
    risk: Risk, before: np.ndarray, new: int, side: int, after: np.ndarray, radius: float, draw: np.random.Generator
) -> float:
    signs = np.sign(before)
    signs[new] = side
    chosen = np.flatnonzero(signs)
    noise = draw.normal(size=len(chosen))
    noise *= radius * draw.uniform() / np.linalg.norm(noise)
    u = np.sqrt(np.abs(before[chosen])) + noise
    u[chosen == new] = np.abs(noise[chosen == new])
    begin = np.zeros_like(before)
    begin[chosen] = signs[chosen] * np.maximum(np.abs(u), 1e-12) ** 2
    end = flow_to_rest(risk, begin, signs)
    roots = np.sqrt(np.abs(end.beta)) * np.sign(end.beta), np.sqrt(np.abs(after)) * np.sign(after)
    return float(np.linalg.norm(roots[0] - roots[1]) / np.linalg.norm(roots[1]))
