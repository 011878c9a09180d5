"""What a flow does after a perturbation, beside what it would have done without: Assumptions 4.4 and 4.5, watched."""

import numpy as np

from saddles.diagonal.risk import check_network, risk_of
from saddles.diagonal.scale import scale_of
from saddles.diagonal.task import check_task
from saddles.runtime.precision import in_double_precision
from saddles.solvers.log_scale import LogScale
from saddles.solvers.plateau import follow

NEGLIGIBLE = 1e-5
"""Weights below this are not perturbed (Boix-Adserà et al., appendix A)."""


@in_double_precision
def perturbed_flows(
    model: object,
    task: object,
    log_scale: np.ndarray,
    *,
    clock: np.ndarray,
    noise: float,
    draw: np.random.Generator,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Follow a flow from where it stands, unperturbed and with noise on u and v.

    Weights above 1e-5 get independent Gaussian noise; the others keep their place in log-scale coordinates.

    Args:
        model, task: of the flow.
        log_scale: one row of the flow's variable `log_scale`, shape (coordinate,).
        clock: gradient times after the perturbation, from 0, shape (time,).
        noise: its standard deviation.
        draw: draws it.
        seed: of the flow.

    Returns:
        β without and with the perturbation, (time, coordinate) each.
    """
    network, log_alpha = check_network(model, perturbed_flows), scale_of(model)
    risk = risk_of(network, check_task(task, model))
    start = LogScale.from_weights(*network.start(task, seed), log_alpha, network.powers)
    shift = log_scale * log_alpha - start.log_p
    here = LogScale(start.log_p + shift, start.log_q - shift, start.sign_p, start.sign_q)
    u, v = here.weights(np.zeros_like(shift))
    felt = np.maximum(np.abs(u), np.abs(v)) > NEGLIGIBLE
    moved = LogScale.from_weights(u + noise * draw.normal(size=u.shape), v + noise * draw.normal(size=v.shape))
    names = ("log_p", "log_q", "sign_p", "sign_q")
    there = LogScale(*(np.where(felt, getattr(moved, name), getattr(here, name)) for name in names))
    shifts = [follow(risk.force, risk.columns, c, clock[-1], times=clock).shifts for c in (here, there)]
    return here.beta(shifts[0]), there.beta(shifts[1])
