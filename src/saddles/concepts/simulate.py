"""The dynamics of the lab's networks: which way they move, and what is observed of them.

Everything runs in the frame of the concepts, which changes nothing: loss and updates are equivariant under the
rotation. Slopes come from automatic differentiation of the one loss (`saddles.concepts.observe`); the theories have
equations of their own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.concepts.observe import expected_loss, point_loss
from saddles.concepts.task import Identity
from saddles.solvers.dynamics import Dynamics

LEARNED = 1e-4
"""A flow has converged once its loss is this part of that of W = 0."""

PATIENCE = 1e5
"""Time scales of the fastest entry after which a flow that has not learned is given up. Plateaus last a logarithm of
the initial scale of them; a rank-deficient start never learns."""

NO_FLOOR = 1e-300
"""Absolute error of the flow of U: none. Entries of 1e-40 grow to 1, so errors count relative to each entry."""

Layers = list[tuple[Array, Array | None]]
"""(weights out × in, biases or None) of each layer in the concepts' frame, the first with s input columns."""
DrawnLayers = list[tuple[np.ndarray, np.ndarray | None]]
"""The same in the network's frame, as a model draws them: the first layer has d input columns."""


class Problem(eqx.Module):
    """What a network is trained on and tested at, in the frame of the concepts."""

    inputs: Float[Array, "point s"] | None
    """Points on which the loss of a network that is not linear is measured; None where the moment is enough."""
    moment: Float[Array, "s s"]
    test_points: Float[Array, "test s"]
    beyond: Float[Array, "out rest"]
    """Columns of the first layer beyond s, which never change."""
    activation: str = eqx.field(static=True)


def forward(layers: Layers, inputs: Float[Array, "point s"], activation: str) -> Float[Array, "point d"]:
    """Outputs of a network at some points, both in the concepts' frame."""
    state = inputs
    for depth, (weights, biases) in enumerate(layers):
        if depth and activation == "relu":
            state = jax.nn.relu(state)
        state = state @ weights.T
        if biases is not None:
            state = state + biases[None, :]
    return state


def is_linear(layers: Layers | DrawnLayers, activation: str) -> bool:
    """Whether the network is a matrix."""
    return activation == "linear" and all(biases is None for _, biases in layers)


def mean_loss(layers: Layers, inputs: Float[Array, "point s"], activation: str) -> Float[Array, ""]:
    """The mean of ½‖f(x) − x‖² over some points; the target is 0 beyond the concepts."""
    output = forward(layers, inputs, activation)
    target = jnp.pad(inputs, ((0, 0), (0, output.shape[1] - inputs.shape[1])))
    return point_loss(output, target).mean()


def jacobian(layers: Layers, beyond: Float[Array, "out rest"] | None = None) -> Float[Array, "d columns"]:
    """The matrix that a linear network is: its first s columns, or all of them with those of the first layer."""
    first = layers[0][0] if beyond is None else jnp.concatenate([layers[0][0], beyond], axis=1)
    return forward([(first, None), *layers[1:]], jnp.eye(first.shape[1], dtype=first.dtype), "linear").T


def network_loss(layers: Layers, problem: Problem) -> Float[Array, ""]:
    """The training loss: exact where the network is linear, else on the problem's points."""
    if is_linear(layers, problem.activation) or problem.inputs is None:
        return expected_loss(jacobian(layers), problem.moment)
    return mean_loss(layers, problem.inputs, problem.activation)


def network_slope(layers: Layers, problem: Problem) -> Layers:
    """−∇L of a network."""
    return jax.tree.map(jnp.negative, jax.grad(network_loss)(layers, problem))


def observe_network(layers: Layers, problem: Problem) -> dict[str, Array]:
    """Outputs at the test points, the loss, and the Jacobian of a linear network."""
    observed = {
        "outputs": forward(layers, problem.test_points, problem.activation),
        "loss": network_loss(layers, problem),
    }
    if is_linear(layers, problem.activation):
        observed["jacobian"] = jacobian(layers, problem.beyond)
    return observed


def network_learned(layers: Layers, problem: Problem) -> Array:
    """Whether the loss has fallen far enough."""
    return network_loss(layers, problem) <= LEARNED * jnp.trace(problem.moment) / 2


def weights_slope(weights: Float[Array, "d d"], moment: Float[Array, "s s"]) -> Float[Array, "d d"]:
    """−∇L of f = W x."""
    return -jax.grad(expected_loss)(weights, moment)


def observe_weights(weights: Float[Array, "d d"], moment: Float[Array, "s s"]) -> dict[str, Array]:
    """W, which is the Jacobian, and its loss."""
    return {"jacobian": weights, "loss": expected_loss(weights, moment)}


def weights_learned(weights: Float[Array, "d d"], moment: Float[Array, "s s"]) -> Array:
    """Whether the loss has fallen far enough."""
    return expected_loss(weights, moment) <= LEARNED * jnp.trace(moment) / 2


def factor_slope(factor: Float[Array, "d hidden"], moment: Float[Array, "s s"]) -> Float[Array, "d hidden"]:
    """−∇L of f = U Uᵀ x with respect to U."""
    return -jax.grad(lambda U: expected_loss(U @ U.T, moment))(factor)


def observe_factor(factor: Float[Array, "d hidden"], moment: Float[Array, "s s"]) -> dict[str, Array]:
    """W = U Uᵀ and its loss."""
    return observe_weights(factor @ factor.T, moment)


def factor_learned(factor: Float[Array, "d hidden"], moment: Float[Array, "s s"]) -> Array:
    """Whether the loss has fallen far enough."""
    return weights_learned(factor @ factor.T, moment)


def weights_dynamics(task: Identity, weights: np.ndarray, precision: str) -> Dynamics[Array, Array]:
    """Training of f = W x from W(0), given in the network's frame."""
    return Dynamics(
        jnp.asarray(task.to_concepts(weights), dtype=precision), jnp.asarray(task.moment, dtype=precision),
        weights_slope, observe_weights, rested=weights_learned, pace=_pace(task), limit=PATIENCE * _pace(task),
        title="flow",
    )  # fmt: skip


def factor_dynamics(task: Identity, factor: np.ndarray, precision: str) -> Dynamics[Array, Array]:
    """Training of f = U Uᵀ x from U(0), given in the network's frame."""
    return Dynamics(
        jnp.asarray(task.rotation.T @ factor, dtype=precision), jnp.asarray(task.moment, dtype=precision),
        factor_slope, observe_factor, rested=factor_learned, pace=_pace(task), limit=PATIENCE * _pace(task),
        atol=NO_FLOOR, title="flow",
    )  # fmt: skip


def network_dynamics(task: Identity, layers: DrawnLayers, activation: str, precision: str) -> Dynamics[Layers, Problem]:
    """Full-batch training of a network: on the second moment where it is linear, else on the task's samples."""
    points = None if is_linear(layers, activation) else task.latent
    start, problem = in_concept_frame(task, layers, activation, points, task.target[None], precision)
    return Dynamics(
        start, problem, network_slope, observe_network, rested=network_learned, pace=_pace(task),
        limit=PATIENCE * _pace(task), title="flow",
    )  # fmt: skip


def in_concept_frame(
    task: Identity, layers: DrawnLayers, activation: str, points: np.ndarray | None, test_points: np.ndarray,
    precision: str,
) -> tuple[Layers, Problem]:  # fmt: skip
    """A network and what it is trained on, turned into the frame of the concepts.

    The data have only s coordinates there, so the columns of the first layer beyond s get no gradient and stay as they
    were drawn: a step costs what a network with s inputs costs, and is the same step.

    Args:
        points: for the loss, shape (point, s); test_points: shape (test, d); both in the frame of the concepts.
    """
    turn, s, own = task.rotation, task.concepts, list(layers)
    own[0] = (own[0][0] @ turn, own[0][1])
    weights, biases = own[-1]  # of a single layer, both sides are turned
    own[-1] = (turn.T @ weights, None if biases is None else turn.T @ biases)
    (first, biases), *rest = own
    arrays = ([(first[:, :s], biases), *rest], (points, task.moment, test_points[:, :s], first[:, s:]))
    start, parts = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=precision), arrays)
    inputs, moment, tests, beyond = parts
    return start, Problem(inputs, moment, tests, beyond, activation)


def _pace(task: Identity) -> float:
    """The time scale of the fastest entry of the pair, which grows like e^{4 a t}."""
    return 1 / (4 * float(np.linalg.eigvalsh(task.moment).max()))
