"""The dynamics of the two-layer network, through its reduced factor."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from saddles.linear.observe import Observer, check_finite
from saddles.linear.task import MatrixTask
from saddles.solvers.dynamics import Dynamics
from saddles.solvers.two_layer import Cost, Factor, Matrix, pushed, represented

FITTED = 1e-2
"""A flow has converged when ‖∇C‖_F has fallen to this part of its first value …"""

STILL = 1e-3
"""… or, where the width cannot fit the cost, when the speed of its directions, each in units of what is there of
it (or every saddle would count as the end), has fallen to this part."""


def slope(state: Factor, observer: Observer) -> Factor:
    """−∇L."""
    return pushed(state, observer.cost.gradient(represented(state)))


def observe(state: Factor, observer: Observer) -> dict[str, Array]:
    """What is saved of a network."""
    return observer.factor(*state)


def _norm(state: Factor) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(block**2) for block in state))


class Converged(eqx.Module):
    """The criterion of convergence that `TwoLayer.simulate` states."""

    gradient: Float[Array, ""]
    pace: Float[Array, ""]

    def __call__(self, state: Factor, observer: Observer) -> Bool[Array, ""]:
        gradient = observer.cost.gradient(represented(state))
        fitted = jnp.linalg.norm(gradient) <= FITTED * self.gradient
        return fitted | (_pace(state, gradient) <= STILL * self.pace) if _is_narrow(state) else fitted


def _is_narrow(state: Factor) -> bool:
    inner, outer = state
    return inner.shape[1] < min(inner.shape[0], outer.shape[0])


def _pace(state: Factor, gradient: Matrix) -> Float[Array, ""]:
    """‖MQ‖_F of L' = ML, L both layers and Q a basis of its columns: a direction that is small yet counts in full.

    The relative speed of the whole is small at every saddle.
    """
    layers, change = (jnp.concatenate(blocks) for blocks in (state, pushed(state, gradient)))
    # With L = QR, MQ = L'R⁻¹: its transpose solves RᵀX = L'ᵀ, and Q itself is not needed.
    upper = jnp.linalg.qr(layers, mode="r")
    return jnp.linalg.norm(jax.scipy.linalg.solve_triangular(upper, change.T, trans=1))


@eqx.filter_jit
def _at_start(state: Factor, cost: Cost) -> tuple[Float[Array, ""], ...]:
    """Cost, ‖∇C‖_F, relative speed, and that of the directions of a narrow network."""
    matrix = represented(state)
    gradient = cost.gradient(matrix)
    speed = _norm(pushed(state, gradient)) / _norm(state)
    return cost(matrix), jnp.linalg.norm(gradient), speed, _pace(state, gradient) if _is_narrow(state) else speed


def dynamics_of(
    start: tuple[np.ndarray, np.ndarray], task: MatrixTask, observer: Observer, precision: str
) -> Dynamics[Factor, Observer]:
    """The training problem from given weights, ready for a method."""
    state = jnp.asarray(start[0], dtype=precision), jnp.asarray(start[1], dtype=precision)
    cost, gradient, speed, pace = _at_start(state, observer.cost)
    check_finite(cost, task)
    return Dynamics(state, observer, slope, observe, rested=Converged(gradient, pace), pace=float(1 / speed))
