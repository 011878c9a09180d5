"""Two-layer linear networks with any input covariance: the formula of Conjecture 4.1, and many flows at once.

The loss is E‖y − Σ a_i (w_iᵀx)‖² with y = Bx; every a_i and w_i starts with norm α.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.runtime.precision import in_double_precision
from saddles.solvers.ode import solve

Problems = Float[np.ndarray, "problem row column"]


class Stages(NamedTuple):
    """Plateaus L_0, … and slopes of the stage times against log(1/α), problems first."""

    plateaus: np.ndarray
    slopes: np.ndarray


def conjectured(inputs: np.ndarray, truth: np.ndarray) -> Stages:
    """Conjecture 4.1 for one problem: Σ_xx and B.

    With U_k the leading eigenvectors of Σ_yx Σ_xx⁻¹ Σ_yxᵀ, eigenvalues μ, plateau k has the loss Σ_{i>k} μ_i, and in
    units of ½ log(1/α) Δτ_k = (1 − Σ_{i=0}^{k−2} σ^(i)_{k−i} Δτ_{i+1}) / σ^(k−1)_1, σ^(i)_j being the j-th singular
    value of P⊥_{U_i} Σ_yx.
    """
    cross = truth @ inputs
    values, vectors = np.linalg.eigh(cross @ np.linalg.solve(inputs, cross.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(truth.shape)
    singular = []
    for known in range(count):
        rest = cross - vectors[:, :known] @ (vectors[:, :known].T @ cross)
        singular.append(np.linalg.svd(rest, compute_uv=False))
    waits: list[float] = []
    for k in range(1, count + 1):
        grown = sum(singular[i][k - i - 1] * waits[i] for i in range(k - 1))
        waits.append((1 - grown) / singular[k - 1][0])
    plateaus = np.array([values[k:count].sum() for k in range(count + 1)])
    return Stages(plateaus, np.cumsum(waits) / 2)


class _Problem(NamedTuple):
    inputs: Array
    cross: Array
    power: Array
    span: Array


def _slope(t: Array, state: tuple[Array, Array], args: _Problem) -> tuple[Array, Array]:
    outer, inner = state  # (problem, neuron, row), (problem, neuron, column)
    matrix = jnp.einsum("pnr,pnc->prc", outer, inner)
    push = 2 * args.span[:, None, None] * (args.cross - matrix @ args.inputs)
    return jnp.einsum("prc,pnc->pnr", push, inner), jnp.einsum("prc,pnr->pnc", push, outer)


def _loss(t: Array, state: tuple[Array, Array], args: _Problem) -> Array:
    matrix = jnp.einsum("pnr,pnc->prc", *state)
    return args.power - jnp.sum(matrix * (2 * args.cross - matrix @ args.inputs), axis=(1, 2))


@in_double_precision
def flows(
    inputs: Problems, truths: Problems, spans: np.ndarray, scale: float, neurons: int, rows: int, seed: int
) -> np.ndarray:
    """Losses (time, problem) at `rows` instants, evenly over each problem's own span of time.

    Args:
        inputs, truths: Σ_xx and B of each problem.
        spans: the end of each flow; the clocks are stretched so that all end together.
        scale: α.
    """
    draw = np.random.default_rng([seed, 62])
    cross = truths @ inputs
    power = np.einsum("prc,pcd,prd->p", truths, inputs, truths)
    state = []
    for size in (truths.shape[1], truths.shape[2]):
        part = draw.normal(size=(len(truths), neurons, size))
        state.append(jnp.asarray(scale * part / np.linalg.norm(part, axis=2, keepdims=True)))
    args = _Problem(*(jnp.asarray(part) for part in (inputs, cross, power, spans)))
    done = solve(_slope, tuple(state), np.linspace(0, 1, rows), args=args, observe=_loss, rtol=1e-7,
                 title=f"linear networks from {scale:g}")  # fmt: skip
    return done.saved
