"""The fully connected network of this lab as a function of its weights, and its tangent kernel."""

from collections.abc import Sequence
from functools import partial

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


@partial(jax.jit, static_argnames="activation")
def tangent_kernel(
    weights: Sequence[Float[Array, "_ _"]],
    inputs: Float[Array, "sample into"],
    others: Float[Array, "other into"],
    activation: str,
) -> Float[Array, "row column"]:
    """J'Jᵀ between outputs of others (rows) and of inputs (columns), layer by layer.

    The gradient of output k at x for W_l is δ_l^k h_{l−1}ᵀ, h the activations and δ what comes back, so that

        Θ = Σ_l ⟨h'_{l−1}, h_{l−1}⟩ ⟨δ'_l, δ_l⟩.

    That is n² o² w products for n samples with o outputs, where column by column takes n² o w d of them, several times.
    """
    pairs = zip(_layers(weights, others, activation), _layers(weights, inputs, activation), strict=True)
    shape = len(others), len(inputs), len(weights[-1])
    kernel = jnp.zeros((shape[0], shape[2], shape[1], shape[2]), dtype=weights[0].dtype)
    for (into, back), (into_here, back_here) in pairs:
        flat, flat_here = (part.reshape(-1, part.shape[-1]) for part in (back, back_here))
        across = (flat @ flat_here.T).reshape(kernel.shape)
        kernel = kernel + (into @ into_here.T)[:, None, :, None] * across
    return kernel.reshape(shape[0] * shape[2], shape[1] * shape[2])


def _layers(
    weights: Sequence[Float[Array, "_ _"]], inputs: Float[Array, "sample into"], activation: str
) -> list[tuple[Float[Array, "sample _"], Float[Array, "sample output _"]]]:
    """What enters each layer, and the derivatives of the outputs by what leaves it before φ."""
    entered, slopes = [inputs], []
    for weight in weights[:-1]:
        before = entered[-1] @ weight.T
        value, slope = jax.jvp(lambda at: activated(activation, at), (before,), (jnp.ones_like(before),))
        entered.append(value)
        slopes.append(slope)
    count = len(weights[-1])
    back = [jnp.broadcast_to(jnp.eye(count, dtype=inputs.dtype), (len(inputs), count, count))]
    for weight, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
        back.append((back[-1] @ weight) * slope[:, None, :])
    return list(zip(entered, reversed(back), strict=True))
