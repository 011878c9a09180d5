"""What training does after a perturbation, beside what it would have done without: Assumptions 4.4 and 4.5, watched."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.diagonal.method import Descent, SmallStart
from saddles.diagonal.risk import Mean, Risk, check_network, risk_of
from saddles.diagonal.scale import scale_of
from saddles.diagonal.simulate import product_slope, product_slope_on
from saddles.diagonal.task import check_task
from saddles.errors import SaddlesError
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
    risk, here, there = _places(model, task, log_scale, noise, draw, seed)
    shifts = [follow(risk.force, risk.columns, c, clock[-1], times=clock).shifts for c in (here, there)]
    return here.beta(shifts[0]), there.beta(shifts[1])


@in_double_precision
def perturbed_descents(
    model: object,
    task: object,
    log_scales: np.ndarray,
    *,
    clock: np.ndarray,
    noise: float,
    draws: Sequence[np.random.Generator],
    method: Descent,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The same with descent on u and v themselves, from several places of a flow at once.

    All runs see the same batches, so that only the perturbation tells two of them apart.

    Args:
        model, task, clock, noise, seed: as in `perturbed_flows`.
        log_scales: rows of the flow's variable `log_scale`, shape (start, coordinate).
        draws: one generator for each of them.
        method: learning rate, batch and steps.

    Returns:
        β without and with the perturbation, (time, start, coordinate) each.
    """
    rows = [_places(model, task, row, noise, draw, seed) for row, draw in zip(log_scales, draws, strict=True)]
    mean = rows[0][0].mean
    places = [*(here for _, here, _ in rows), *(there for _, _, there in rows)]
    weights = [place.weights(np.zeros(place.log_p.shape)) for place in places]
    begin = (jnp.asarray(np.stack([u for u, _ in weights])), jnp.asarray(np.stack([v for _, v in weights])))
    training = SmallStart(
        begin, mean, _slopes, _see, title="descent after perturbations", slope_on=_slopes_on,
        samples=len(mean.inputs), seed=seed,
    )  # fmt: skip
    path = method.follow(training, clock)
    if not path.status.ok:
        raise SaddlesError(f"Descent with a learning rate of {method.rate:.4g} {path.status}. Lower the rate.")
    beta = path.saved["beta"]
    return beta[:, : len(rows)], beta[:, len(rows) :]


Runs = tuple[Float[Array, "run coordinate"], Float[Array, "run coordinate"]]
"""u and v of several runs."""


def _slopes(state: Runs, mean: Mean) -> Runs:
    return jax.vmap(product_slope, (0, None))(state, mean)


def _slopes_on(state: Runs, mean: Mean, chosen: Array) -> Runs:
    return jax.vmap(product_slope_on, (0, None, None))(state, mean, chosen)


def _see(state: Runs, mean: Mean) -> dict[str, Array]:
    beta = state[0] * state[1]
    return {"beta": beta, "loss": jax.vmap(mean)(beta).max()}


def _places(
    model: object, task: object, log_scale: np.ndarray, noise: float, draw: np.random.Generator, seed: int
) -> tuple[Risk, LogScale, LogScale]:
    """The risk, and where a flow stands without and with noise on its weights above 1e-5."""
    network, log_alpha = check_network(model, perturbed_flows), scale_of(model)
    risk = risk_of(network, check_task(task, model))
    start = LogScale.from_weights(*network.start(task, seed), log_alpha, network.powers)
    # `log_scale` is log_α|p|, so that this is S; a `LogScale` moved by it counts its own S from here.
    shift = log_scale * log_alpha - start.log_p
    here = LogScale(start.log_p + shift, start.log_q - shift, start.sign_p, start.sign_q)
    u, v = here.weights(np.zeros_like(shift))
    felt = np.maximum(np.abs(u), np.abs(v)) > NEGLIGIBLE
    moved = LogScale.from_weights(u + noise * draw.normal(size=u.shape), v + noise * draw.normal(size=v.shape))
    names = ("log_p", "log_q", "sign_p", "sign_q")
    there = LogScale(*(np.where(felt, getattr(moved, name), getattr(here, name)) for name in names))
    return risk, here, there
