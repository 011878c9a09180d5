"""Training of a fully connected network: its loss, its gradient, and how linear its change is."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from saddles.networks.forward import outputs
from saddles.networks.observe import Data, half_mean_square
from saddles.solvers.dynamics import Dynamics

Weights = tuple[Float[Array, "_ _"], ...]

FITTED = 1e-3
"""A flow has converged when the gradient's norm has fallen to this part of its first value."""


class Training(eqx.Module):
    """What the functions below need besides the weights."""

    data: Data
    start: Weights
    gradient: Float[Array, ""]
    """‖∇L‖ at the start."""
    activation: str = eqx.field(static=True)


def loss(weights: Weights, training: Training) -> Float[Array, ""]:
    """(1/2n) Σ ‖f(x) − y‖²."""
    data = training.data
    return half_mean_square(outputs(weights, data.inputs, training.activation), data.targets)


def slope(weights: Weights, training: Training) -> Weights:
    """−∇L."""
    return jax.tree.map(jnp.negative, jax.grad(loss)(weights, training))


def observe(weights: Weights, training: Training) -> dict[str, Array]:
    """Losses, accuracy and the linearity of the change so far."""
    data = training.data
    values = outputs(weights, data.inputs, training.activation)
    seen = data.scores(values, outputs(weights, data.test_inputs, training.activation))
    # A flow moves weights in float64, also from a start in float32.
    start = jax.tree.map(lambda first, now: first.astype(now.dtype), training.start, weights)
    change = jax.tree.map(jnp.subtract, weights, start)
    before, linear = jax.jvp(lambda at: outputs(at, data.inputs, training.activation), (start,), (change,))
    moved = values - before
    size = jnp.linalg.norm(moved)
    # 0 at the start: the limit of a remainder of second order over a change of first order.
    return seen | {
        "linearity": jnp.where(size > 0, jnp.linalg.norm(moved - linear) / jnp.where(size > 0, size, 1.0), 0.0)
    }


def _norm(weights: Weights) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(part**2) for part in weights))


def _rested(weights: Weights, training: Training) -> Array:
    return _norm(slope(weights, training)) <= FITTED * training.gradient


def _first_norm(start: Weights, training: Training) -> Float[Array, ""]:
    """‖∇L‖; compiled as one program, since outside of one every operation is compiled for every width."""
    return _norm(slope(start, training))


def dynamics_of(start: Weights, data: Data, activation: str) -> Dynamics[Weights, Training]:
    """The training problem, ready for a method."""
    training = Training(data, start, jnp.zeros((), start[0].dtype), activation)
    first = eqx.filter_jit(_first_norm)(start, training)
    training = Training(data, start, first, activation)
    return Dynamics(start, training, slope, observe, rested=_rested, pace=float(eqx.filter_jit(_norm)(start) / first))
