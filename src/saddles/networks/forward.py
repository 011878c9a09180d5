"""The fully connected network of this lab as a function of its weights."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

ACTIVATIONS = ("relu", "tanh", "linear")


def activated(name: str, hidden: Array) -> Array:
    """φ, entry by entry."""
    if name == "relu":
        return jax.nn.relu(hidden)
    return jnp.tanh(hidden) if name == "tanh" else hidden


def outputs(
    weights: Sequence[Float[Array, "_ _"]], inputs: Float[Array, "sample into"], activation: str
) -> Float[Array, "sample output"]:
    """W_L φ(… φ(W_1 x)), one row for each sample, without biases."""
    hidden = inputs
    for weight in weights[:-1]:
        hidden = activated(activation, hidden @ weight.T)
    return hidden @ weights[-1].T
