"""The three assumptions of Theorem C.4 as numbers, stage by stage."""

import numpy as np

from saddles.core.assumptions import Assumption, Assumptions
from saddles.core.trajectory import Trajectory
from saddles.diagonal.rest import flow_to_rest
from saddles.diagonal.risk import Risk, check_network, risk_of
from saddles.diagonal.task import check_task
from saddles.errors import SaddlesError
from saddles.runtime.precision import in_double_precision

FLAT = 1e-8
"""Curvatures below this part of the largest count as flat; gaps and exit forces below it as none."""

NEAR = 1e-3
"""A perturbed flow ends at the same point if u differs by less than this part of its norm."""


@in_double_precision
def check_assumptions(
    model: object, task: object, predicted: Trajectory, *, radius: float = 1e-2, trials: int = 2, seed: int = 0
) -> Assumptions:
    """Check Assumptions 4.3, 4.4 and 4.5 at every stage that `Incremental` predicted.

    One entry per assumption and stage, in order (`checks.about("4.4")` are those of 4.4), and one for the start:
    4.3 start: smallest | |u₀|−|v₀| |, which must be positive;
    4.3 gap: relative gap between the two smallest Δ (0 for a tie), positive;
    4.3 exits: smallest |g_i| / max|g(0)| of coordinates that leave (∞ where none does), positive;
    4.4: smallest over largest eigenvalue of the Hessian of u ↦ L(u, s⊙u) on the support after the stage, positive
    (the paper's inequality lacks −L(θ^k) on the left);
    4.5: distance of the endpoint, relative to |u|, after the flow is started from u^k + ũ, ũ of norm up to
    `radius`, on the support and i_k, with ũ_{i_k} > 0 and signs s^{k+1}; at most 1e-3. It is not checked at a tie.

    Args:
        predicted: what `predict(model, task, Incremental(...))` gave.
        radius, trials: size and number of the perturbations of 4.5; trials=0 leaves it out.
        seed: of the initial weights and of the perturbations.
    """
    network = check_network(model, check_assumptions)
    if "stage_beta" not in predicted:
        raise SaddlesError(
            "`predicted` must be a prediction of Incremental, with `stage_beta`; got a trajectory with "
            f"{', '.join(sorted(map(str, predicted.data_vars))[:4])}. Pass predict(model, task, Incremental())."
        )
    if predicted.sizes["coordinate"] != network.coordinates:
        raise SaddlesError(
            f"`predicted` must be a prediction of this model, which has {network.coordinates} coordinates; it has "
            f"{predicted.sizes['coordinate']}."
        )
    risk = risk_of(network, check_task(task, model))
    u, v = network.start(task, seed)
    draw = np.random.default_rng([seed, 37])
    betas, ties = predicted["stage_beta"].values, predicted["stage_tie"].values
    gaps = np.where(ties > 1, 0.0, predicted["stage_gap"].values)
    unequal = float(np.abs(np.abs(u) - np.abs(v)).min())
    checks = [Assumption("4.3 start", unequal > 0, unequal, "smallest ||u₀|−|v₀||, must be positive")]
    for stage, gap in enumerate(gaps):
        checks.append(_positive("4.3 gap", stage, float(gap), "relative gap between the two smallest Δ"))
    for stage, force in enumerate(predicted["stage_exit_force"].values):
        checks.append(_positive("4.3 exits", stage, float(force), "smallest |g| of a coordinate that left"))
    for stage, beta in enumerate(betas):
        checks.append(_positive("4.4", stage, curvature(risk, beta), "smallest over largest curvature"))
    for stage, beta in enumerate(betas):
        before = betas[stage - 1] if stage else np.zeros(network.coordinates)
        new, side = int(predicted["stage_coordinate"][stage]), int(predicted["stage_sign"][stage])
        ran = trials if ties[stage] == 1 else 0
        apart = [_distance(risk, before, new, side, beta, radius, draw) for _ in range(ran)]
        worst = max(apart, default=np.nan)
        words = f"stage {stage}: distance of the perturbed flow's end, must be at most {NEAR:g}"
        checks.append(Assumption("4.5", worst <= NEAR if apart else None, worst, words))
    return Assumptions(tuple(checks))


def _positive(name: str, stage: int, value: float, words: str) -> Assumption:
    return Assumption(name, value > FLAT, value, f"stage {stage}: {words}, must exceed {FLAT:g}")


def curvature(risk: Risk, beta: np.ndarray) -> float:
    """Smallest over largest eigenvalue of ∇²_u L(u, s⊙u) = 4 diag(u) S ∇²L S diag(u) on the support."""
    chosen = np.flatnonzero(beta)
    root = np.sign(beta[chosen]) * np.sqrt(np.abs(beta[chosen]))
    block = risk.columns(beta, chosen)[chosen]
    # `eigvalsh` reads one triangle: a block that is symmetric but for round-off is averaged with its transpose first.
    values = np.linalg.eigvalsh(4 * root[:, None] * (block + block.T) / 2 * root)
    return float(values[0] / np.abs(values).max())


def _distance(
    risk: Risk, before: np.ndarray, new: int, side: int, after: np.ndarray, radius: float, draw: np.random.Generator
) -> float:
    """How far from `after` the flow ends when it starts from a perturbed `before`."""
    signs = np.sign(before)
    signs[new] = side
    chosen = np.flatnonzero(signs)
    noise = draw.normal(size=len(chosen))
    # A random direction, and a length between 0 and `radius`: the assumption is about every start nearby.
    noise *= radius * draw.uniform() / np.linalg.norm(noise)
    u = np.sqrt(np.abs(before[chosen])) + noise
    # Assumption 4.5 perturbs the new coordinate to the side on which it grows: its sign is in `signs`.
    u[chosen == new] = np.abs(noise[chosen == new])
    begin = np.zeros_like(before)
    begin[chosen] = signs[chosen] * np.maximum(np.abs(u), 1e-12) ** 2  # not 0, where the flow would stay
    end = flow_to_rest(risk, begin, signs)
    roots = np.sqrt(np.abs(end.beta)) * np.sign(end.beta), np.sqrt(np.abs(after)) * np.sign(after)
    return float(np.linalg.norm(roots[0] - roots[1]) / np.linalg.norm(roots[1]))
