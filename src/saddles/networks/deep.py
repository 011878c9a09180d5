"""Descent of deep networks of several widths and variances in one compiled program for each depth.

A narrower network is the widest one with zeros: a hidden unit whose weights are all 0 has no gradient, since φ(0) = 0,
and stays what it is. The rate of a step is 1/|λ|, followed as in `saddles.networks.diagram`.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.networks.forward import outputs
from saddles.networks.model import Perceptron
from saddles.networks.observe import half_mean_square
from saddles.networks.task import Regression
from saddles.protocols import ArrayLike

Weights = tuple[Float[Array, "_ _"], ...]
Stacked = tuple[Float[Array, "network _ _"], ...]

WARM_UP = 20
"""Power steps before the first step of descent."""
FORGET = 0.9
"""The followed |λ| falls by at most this factor a step: it must not jump where power steps lose their vector."""


def follow_deep(
    task: Regression,
    widths: Sequence[int],
    variances: ArrayLike,
    *,
    layers: int,
    activation: str,
    seed: int = 0,
    steps: int,
    precision: str = "float32",
) -> dict[str, np.ndarray]:
    """Train f(x; θ) − f(x; θ₀) for networks of one depth, each width from one draw, at several variances.

    The first outputs are subtracted: where they are larger than the target, a network must undo them first, and what
    its linearity then shows is its own noise.

    Args:
        widths: of all hidden layers.
        variances: of the entries at the start, (width, variance): each width has its own.
        layers: of weights, L.
        steps: of gradient descent.

    Returns:
        By width and variance, `linearity` e of the whole change on the training inputs, and `loss` over that of f = 0.
    """
    sigmas = np.sqrt(np.asarray(variances, dtype=float))
    most = max(widths)
    starts, lines = [], []
    for width, row in zip(widths, sigmas, strict=True):
        unit = Perceptron(width, 1.0, activation, layers).start(task, seed)
        draw = np.random.default_rng([seed, 35])
        line = [draw.normal(size=part.shape) for part in unit]
        starts += [_padded([sigma * part for part in unit], most) for sigma in row]
        lines += [_padded(line, most)] * len(row)
    first, direction = (
        tuple(jnp.asarray(np.stack(parts), dtype=precision) for parts in zip(*stacks, strict=True))
        for stacks in (starts, lines)
    )
    data = [jnp.asarray(part, dtype=precision) for part in (task.inputs, task.targets)]
    found = _followed(first, direction, *data, activation, steps)
    return {name: np.asarray(values, dtype=float).reshape(sigmas.shape) for name, values in found.items()}


def _padded(weights: Sequence[np.ndarray], width: int) -> list[np.ndarray]:
    """All hidden layers as wide as given, with zeros."""
    last = len(weights) - 1
    padding = [
        ((0, 0 if at == last else width - len(part)), (0, 0 if at == 0 else width - part.shape[1]))
        for at, part in enumerate(weights)
    ]
    return [np.pad(part, room) for part, room in zip(weights, padding, strict=True)]


@partial(jax.jit, static_argnames="activation")
@jax.default_matmul_precision("highest")
def _followed(
    first: Stacked, direction: Stacked, inputs: Array, targets: Array, activation: str, steps: int | Array
) -> dict[str, Array]:
    one = partial(_run, inputs=inputs, targets=targets, activation=activation, steps=steps)
    return jax.vmap(one)(first, direction)


def _run(
    start: Weights, direction: Weights, inputs: Array, targets: Array, activation: str, steps: int | Array
) -> dict[str, Array]:
    first = outputs(start, inputs, activation)

    def value(weights: Weights) -> Float[Array, "sample output"]:
        return outputs(weights, inputs, activation) - first

    def loss(weights: Weights) -> Float[Array, ""]:
        return half_mean_square(value(weights), targets)

    tiny = jnp.finfo(inputs.dtype).tiny

    def step(number: int | Array, now: tuple[Weights, Weights, Array]) -> tuple[Weights, Weights, Array]:
        weights, along, before = now
        slope, bent = jax.jvp(jax.grad(loss), (weights,), (along,))
        size = jnp.sqrt(sum(jnp.sum(part**2) for part in bent))
        curvature = jnp.maximum(size, FORGET * before)
        rate = jnp.where(number >= WARM_UP, 1 / jnp.maximum(curvature, tiny), 0.0)
        moved = jax.tree.map(lambda weight, down: weight - rate * down, weights, slope)
        return moved, jax.tree.map(lambda part: part / jnp.maximum(size, tiny), bent), curvature

    unit = jnp.sqrt(sum(jnp.sum(part**2) for part in direction))
    along = jax.tree.map(lambda part: part / unit, direction)
    end = jax.lax.fori_loop(0, steps + WARM_UP, step, (start, along, jnp.zeros((), inputs.dtype)))[0]
    linear = jax.jvp(value, (start,), (jax.tree.map(jnp.subtract, end, start),))[1]
    moved = value(end)
    return {
        "linearity": jnp.linalg.norm(moved - linear) / jnp.maximum(jnp.linalg.norm(moved), tiny),
        "loss": loss(end) / half_mean_square(0 * targets, targets),
    }
