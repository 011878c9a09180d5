"""Predictors: Theorem 4.1 for one layer, equation 4.3 for the symmetric pair, and the pivot law."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.concepts.lemmas import assumptions
from saddles.concepts.model import OneLayer, SymmetricTwoLayer
from saddles.concepts.observe import PAPER_CLOCK, to_trajectory
from saddles.concepts.task import Identity
from saddles.core.trajectory import FINISHED, Trajectory
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.solvers.ode import SAVED_TIMES, from_zero, settle, solve


@dataclass(frozen=True)
class OneLayerTheory:
    """Theorem 4.1, exact for gradient flow on f = W z from any W(0).

        f(z)_k = 1{k≤s} (1 − e^{−a_k t}) z_k + Σ_i e^{−a_i t} w_ki(0) z_i,

    the sum over all i ≤ d. The paper stops it at s, which is exact only where z_i = 0 beyond s,
    as at x̂. On finitely many samples the same formula holds in the eigenvectors of their second
    moment, and that is used. `growth` and `noise_term` (time, coordinate) are its two parts at x̂.
    """


@dataclass(frozen=True)
class TwoLayerTheory:
    """Gradient flow of the symmetric pair as an equation for W = UUᵀ (equation 4.3, in gradient time).

        W' = 2 (AW + WA) − (AW² + W²A + 2WAW).

    In W the small entries live by cancellation beside entries of order 1, so starts with entries
    below about 1e-12 are lost to rounding: simulate those (the flow of U keeps them).

    Args:
        rtol: relative error a step.
        power: integrate A^power instead of A. The authors' public theory scripts use 2 where the
            text has 1; 1 is the gradient flow.
    """

    rtol: float = 1e-9
    power: int = 1


Theory = OneLayerTheory | TwoLayerTheory


def one_layer(weights: np.ndarray, strengths: np.ndarray, times: np.ndarray) -> np.ndarray:
    """W(t) = I − e^{−At} + W(0) e^{−At} for diagonal A, shape (time, d, d)."""
    decay = np.exp(-np.asarray(times)[:, None] * strengths)
    rest = -np.expm1(-np.asarray(times)[:, None] * strengths)
    return weights[None] * decay[:, None, :] + rest[:, :, None] * np.eye(len(strengths))


def field(
    weights: Float[Array, "row column"], moment: Float[Array, "row column"], clock: str = "gradient"
) -> Float[Array, "row column"]:
    """W' of the symmetric pair: by default of gradient flow, or in the paper's clock, which is half of it.

    Gradient flow gives 2(AW+WA) − (AW²+W²A+2WAW); equations 4.3 and D.2 print half of that.
    """
    if clock not in ("gradient", "paper"):
        raise SaddlesError.about(f"clock={clock!r} came", "gradient or paper is meant", "leave it out")
    AW = moment @ weights
    both = AW + AW.T
    square = AW @ weights
    slope = 2 * both - (square + square.T + 2 * weights @ AW)
    return slope if clock == "gradient" else slope / PAPER_CLOCK


def predict(
    model: Any,
    task: Identity,
    theory: Theory,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Predict the gradient flow of a `OneLayer` or `SymmetricTwoLayer` on the task.

    Without times the flow is followed until the loss has fallen to 1e-4 of its first value.
    `jacobian` and `terms` (the three of equation 4.3) can be kept.
    """
    if isinstance(theory, OneLayerTheory) and isinstance(model, OneLayer):
        return _one(model, task, theory, times, seed, keep)
    if isinstance(theory, TwoLayerTheory) and isinstance(model, SymmetricTwoLayer):
        with on_device(device):
            return _two(model, task, theory, times, keep, precision)
    raise SaddlesError.about(
        f"{type(theory).__name__} for {type(model).__name__} came",
        "OneLayerTheory predicts OneLayer and TwoLayerTheory SymmetricTwoLayer",
        "pair them so",
    )


def _one(model: OneLayer, task: Identity, theory: OneLayerTheory, times: Any, seed: int, keep: Any) -> Trajectory:
    start = task.to_concepts(model.start(task.size, seed))
    s, d = task.concepts, task.size
    values, vectors = np.linalg.eigh(task.moment) if task.samples else (task.strengths[:s], np.eye(s))
    if times is None:
        times = np.linspace(0.0, float(np.log(1e2) / np.min(values)), SAVED_TIMES)
    clock = np.asarray(times, dtype=float)
    from_zero(clock)
    strengths = np.concatenate([values, np.zeros(d - s)])
    basis = np.eye(d)
    basis[:s, :s] = vectors
    jacobian = basis @ one_layer(basis.T @ start @ basis, strengths, clock) @ basis.T
    growth = (-np.expm1(-clock[:, None] * strengths) * (basis.T @ task.target)) @ basis.T
    parts = {
        "growth": (("time", "coordinate"), growth),
        "noise_term": (("time", "coordinate"), jacobian @ task.target - growth),
    }
    return to_trajectory(
        task, clock, jacobian=jacobian, keep=keep, extra=parts, kind="predicted", model=model, theory=theory, seed=seed,
        status=FINISHED,
    )  # fmt: skip


def _slope(t: Any, weights: Array, moment: Array) -> Array:
    return field(weights, moment)


def _loss(weights: Array, moment: Array) -> Array:
    gap = weights - jnp.eye(weights.shape[0], dtype=weights.dtype)
    return jnp.sum((gap @ moment) * gap) / 2


def _learned(t: Any, weights: Array, moment: Array) -> Array:
    start = jnp.trace(moment) / 2
    return _loss(weights, moment) <= 1e-4 * start


def _two(
    model: SymmetricTwoLayer, task: Identity, theory: TwoLayerTheory, times: Any, keep: Any, precision: str
) -> Trajectory:
    start = jnp.asarray(task.to_concepts(model.product(task.size)), dtype=precision)
    padded = np.zeros((task.size, task.size))
    padded[: task.concepts, : task.concepts] = np.linalg.matrix_power(task.moment, theory.power)
    moment = jnp.asarray(padded, dtype=precision)
    settled = True
    if times is None:
        speed = 4 * np.abs(np.linalg.eigvalsh(padded)).max()
        end, settled = settle(_slope, start, _learned, args=moment, scale=float(1 / speed), limit=float(1e5 / speed))
        times = np.linspace(0.0, end, SAVED_TIMES)
    clock, added = from_zero(times)
    atol = max(theory.rtol * float(jnp.sqrt(jnp.mean(start**2))), 1e-15)
    found = solve(_slope, start, clock, args=moment, rtol=theory.rtol, atol=atol, title="theory")
    return to_trajectory(
        task,
        found.times[added:],
        jacobian=found.saved[added:],
        strengths=np.diag(padded) if task.samples is None else None,
        keep=keep,
        kind="predicted",
        model=model,
        theory=theory,
        assumptions=assumptions(model, task).reason,
        status=found.status if settled else "stopped: not learned within the limit of time",
        wall_time=found.wall_time,
        gradient_evaluations=found.evaluations,
    )


def pivots(weights: Any, strengths: Any, order: str = "greedy") -> tuple[np.ndarray, np.ndarray]:
    """The pivot law: when each major entry of W = UUᵀ grows, from W(0) alone.

        t_p = log(1 / S_p) / (4 a_p) in gradient time,

    S_p the pivot of W(0) (squared Cholesky diagonal) once the concepts learned before p are
    eliminated: while W is small W(t) = e^{2At} W(0) e^{2At}, whose pivots are e^{4 a_p t} S_p.

    Args:
        weights: W(0) in the concepts' frame, shape (..., d, d); positive semidefinite.
        strengths: a, shape (..., s) with s ≤ d.
        order: "signal" eliminates by descending a (ties: the lower index first). "greedy" always
            eliminates next the concept whose own t is the earliest, which matters where a strong
            concept starts from nearly nothing.

    Returns:
        (times, pivots), shapes (..., s). A pivot below 1e-13 of w_pp(0) is taken for 0 and its time
        is infinite: W(0) has no rank left for p, and the flow preserves rank. `pivots_of_factor`
        tells such pivots apart down to 1e-26.

    Found for this project; not in the paper.
    """
    a = np.asarray(strengths, dtype=float)
    s = a.shape[-1]
    W = np.array(np.asarray(weights, dtype=float)[..., :s, :s]).reshape(-1, s, s)

    def eliminate(W: np.ndarray, p: np.ndarray, pivot: np.ndarray) -> np.ndarray:
        row = W[np.arange(len(W)), p]
        scale = np.where(pivot > 0, 1 / np.where(pivot > 0, pivot, 1.0), 0.0)
        return W - scale[:, None, None] * row[:, :, None] * row[:, None, :]

    return _eliminate(W, a, order, lambda W: np.diagonal(W, axis1=1, axis2=2), eliminate, 1e-13)


def pivots_of_factor(factor: Any, strengths: Any, order: str = "greedy") -> tuple[np.ndarray, np.ndarray]:
    """The same from U(0), shape (..., d, hidden), by orthogonalising its rows: no squares, no lost digits."""
    a = np.asarray(strengths, dtype=float)
    s = a.shape[-1]
    U = np.array(np.asarray(factor, dtype=float)[..., :s, :])
    U = U.reshape(-1, s, U.shape[-1])

    def eliminate(U: np.ndarray, p: np.ndarray, pivot: np.ndarray) -> np.ndarray:
        row = U[np.arange(len(U)), p]
        norm = np.sqrt(np.where(pivot > 0, pivot, 1.0))[:, None]
        unit = np.where(pivot[:, None] > 0, row / norm, 0.0)
        for _ in range(2):
            U = U - np.einsum("nih,nh->ni", U, unit)[:, :, None] * unit[:, None, :]
        return U

    return _eliminate(U, a, order, lambda U: np.sum(U**2, axis=2), eliminate, 1e-26)


def _eliminate(
    state: np.ndarray, strengths: np.ndarray, order: str, read: Any, eliminate: Any, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Take one concept after another out of a stack of states; `read` gives the pivots that are left."""
    if order not in ("signal", "greedy"):
        raise SaddlesError.about(f"order={order!r} came", "signal or greedy is meant", "leave it out")
    a = strengths.reshape(-1, strengths.shape[-1])
    rows = np.arange(len(a))
    floor = tolerance * read(state)
    found, when = np.zeros_like(a), np.full_like(a, np.inf)
    left = np.ones_like(a, dtype=bool)
    for _ in range(a.shape[1]):
        pivot = read(state)
        pivot = np.where(pivot > floor, pivot, 0.0)
        with np.errstate(divide="ignore"):
            own = -np.log(pivot) / (4 * a)
        key = own if order == "greedy" else -a
        key = np.where(left, np.minimum(key, np.finfo(float).max), np.inf)
        p = np.argmin(key, axis=1)
        found[rows, p], when[rows, p] = pivot[rows, p], own[rows, p]
        left[rows, p] = False
        state = eliminate(state, p, pivot[rows, p])
    return when.reshape(strengths.shape), found.reshape(strengths.shape)
