"""Many cells of a phase diagram at once: networks of one width and many variances, trained together.

A cell is a network of the lab with its own start. Cells of one width are one compiled program, batched over variances.
A step of gradient descent has the rate 1/|λ|, λ the largest eigenvalue of the Hessian by size, followed by one power
step a step: near the saddle of a small start it is the size of the target and not of the tangent kernel, whose inverse
would overshoot it by the ratio of both.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.networks.forward import outputs
from saddles.networks.model import Perceptron
from saddles.networks.observe import half_mean_square
from saddles.networks.task import Regression
from saddles.protocols import ArrayLike

Weights = tuple[Float[Array, "..."], ...]

FIRST_POWER_STEPS = 20
"""Power steps before the first step of descent."""
FORGET = 0.9
"""The followed |λ| falls by at most this factor a step: it must not jump where power steps lose their vector."""


class Cell(NamedTuple):
    """One network on its way."""

    weights: Weights
    direction: Weights
    """The eigenvector that is followed, of norm 1."""
    curvature: Float[Array, ""]
    """|λ|."""


class Data(NamedTuple):
    """The task on the device."""

    inputs: Float[Array, "sample into"]
    targets: Float[Array, "sample output"]
    test_inputs: Float[Array, "test into"]
    test_targets: Float[Array, "test output"]


def _norm(tree: Weights) -> Float[Array, ""]:
    return jnp.sqrt(sum(jnp.sum(part**2) for part in tree))


def _scaled(tree: Weights, by: Float[Array, ""]) -> Weights:
    return jax.tree.map(lambda part: by * part, tree)


def _step(cell: Cell, data: Data, activation: str, moving: Float[Array, ""]) -> Cell:
    """One power step, and one step of descent where `moving` is 1."""

    def loss(weights: Weights) -> Float[Array, ""]:
        return half_mean_square(outputs(weights, data.inputs, activation), data.targets)

    slope, bent = jax.jvp(jax.grad(loss), (cell.weights,), (cell.direction,))
    size = _norm(bent)
    curvature = jnp.maximum(size, FORGET * cell.curvature)
    tiny = jnp.finfo(size.dtype).tiny
    rate = moving / jnp.maximum(curvature, tiny)
    return Cell(
        jax.tree.map(lambda weight, down: weight - rate * down, cell.weights, slope),
        _scaled(bent, 1 / jnp.maximum(size, tiny)),
        curvature,
    )


@partial(jax.jit, static_argnames="activation")
def _advance(cells: Cell, data: Data, activation: str, steps: int | Array, moving: Float[Array, ""]) -> Cell:
    """`steps` is not static: all counts share one compiled program."""

    def one(cell: Cell) -> Cell:
        return jax.lax.fori_loop(0, steps, lambda _, now: _step(now, data, activation, moving), cell)

    return jax.vmap(one)(cells)


@partial(jax.jit, static_argnames="activation")
def _observe(cells: Cell, starts: Weights, data: Data, activation: str) -> dict[str, Array]:
    def one(cell: Cell, start: Weights) -> dict[str, Array]:
        def value(weights: Weights) -> Array:
            return outputs(weights, data.inputs, activation)

        # Differences of nearly equal numbers: what a GPU's short formats lose would be read as a remainder.
        with jax.default_matmul_precision("highest"):
            change = jax.tree.map(jnp.subtract, cell.weights, start)
            before, linear = jax.jvp(value, (start,), (change,))
            now = value(cell.weights)
            tested = outputs(cell.weights, data.test_inputs, activation)
        moved, tiny = now - before, jnp.finfo(now.dtype).tiny  # at the start, 0/0 has the limit 0
        right = jnp.argmax(tested, 1) == jnp.argmax(data.test_targets, 1)
        gram = change[0].T @ change[0]
        return {
            "linearity": jnp.linalg.norm(moved - linear) / jnp.maximum(jnp.linalg.norm(moved), tiny),
            "loss": half_mean_square(now, data.targets) / half_mean_square(0 * now, data.targets),
            "test_loss": half_mean_square(tested, data.test_targets) / half_mean_square(0 * tested, data.test_targets),
            "test_accuracy": jnp.mean(right.astype(now.dtype)),
            "stable_rank": jnp.trace(gram) / jnp.maximum(jnp.linalg.eigvalsh(gram)[-1], tiny),
        }

    return jax.vmap(one)(cells, starts)


def follow_row(
    task: Regression,
    width: int,
    variances: ArrayLike,
    *,
    activation: str,
    layers: int = 2,
    seed: int = 0,
    steps: int,
    saved: int,
    precision: str = "float32",
) -> dict[str, np.ndarray]:
    """Train networks of one width from one draw at several variances.

    Args:
        steps: of gradient descent.
        saved: instants at which they are looked at, besides the start; it divides `steps`.

    Returns:
        (time, variance) each: `linearity` e (0 at the start), `loss` and `test_loss` over those of f = 0,
        `test_accuracy`, and `stable_rank` of the change of W_1.
    """
    arrays = (task.inputs, task.targets, task.test_inputs, task.test_targets)
    data = Data(*(jnp.asarray(part, dtype=precision) for part in arrays))
    unit = Perceptron(width, 1.0, activation, layers).start(task, seed)
    sigmas = np.sqrt(np.asarray(variances))
    starts = tuple(jnp.asarray(sigmas[:, None, None] * part[None], dtype=precision) for part in unit)
    draw = np.random.default_rng([seed, 33])
    direction = tuple(jnp.asarray(np.broadcast_to(draw.normal(size=part.shape), (len(sigmas), *part.shape)),
                                  dtype=precision) for part in unit)  # fmt: skip
    cells = Cell(starts, direction, jnp.zeros(len(sigmas), dtype=precision))
    still, moving = (jnp.asarray(number, dtype=precision) for number in (0.0, 1.0))
    cells = _advance(cells, data, activation, FIRST_POWER_STEPS, still)
    rows = [_observe(cells, starts, data, activation)]
    for _ in range(saved):
        cells = _advance(cells, data, activation, steps // saved, moving)
        rows.append(_observe(cells, starts, data, activation))
    return {name: np.stack([np.asarray(row[name], dtype=float) for row in rows]) for name in rows[0]}
