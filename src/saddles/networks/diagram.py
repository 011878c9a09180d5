"""Many cells of a phase diagram at once: networks of many widths and variances, trained together.

A step of gradient descent has the rate 1/|λ|, λ the largest eigenvalue of the Hessian by size, followed by one power
step a step: near the saddle of a small start it is the size of the target and not of the tangent kernel, whose inverse
would overshoot it by the ratio of both.

**One program for all widths.** Hidden units stand in blocks, each of one network: a network has as many as it needs,
the last one filled up with units of weight 0, which stay at 0 (φ(0) = 0). Networks are dealt out to loads of about
equal size, each of which is one call of the same compiled program: the first layers of a load are one matrix
product, and outputs are summed over the blocks of a network. With a program for each width, a GPU would compile for
longer than it trains.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.networks.forward import activated
from saddles.networks.model import Perceptron
from saddles.networks.phases import crossing, predicted_border
from saddles.networks.task import Regression
from saddles.protocols import ArrayLike
from saddles.solvers.top_eigenvalue import top_eigenvalue

FIRST_POWER_STEPS = 20
"""Power steps before the first step of descent."""
FORGET = 0.9
"""The followed |λ| falls by at most this factor a step: it must not jump where power steps lose their vector."""
LARGEST_BLOCK = 128
"""Hidden units of a block at most: larger blocks waste more, smaller ones write more partial outputs."""
ROOM = {"cpu": 2**18, "gpu": 2**28}
"""Hidden activations (sample × unit) of a load: a core's cache wants few, a GPU many. A step holds about ten arrays
of this size."""


class Weights(NamedTuple):
    """Both layers of several networks, or a direction in that space, block by block."""

    inner: Float[Array, "block unit into"]
    outer: Float[Array, "block unit output"]


class Load(NamedTuple):
    """Networks on their way."""

    weights: Weights
    direction: Weights
    """The eigenvector that is followed, of norm 1 for each network."""
    curvature: Float[Array, " network"]
    """|λ|."""


class Owners(NamedTuple):
    """Which network a block belongs to."""

    of: Int[Array, " block"]
    among: Float[Array, "network block"]
    """1 where a block is a network's, else 0. A product with it sums over blocks, always in the same order."""

    def total(self, values: Float[Array, "block ..."]) -> Float[Array, "network ..."]:
        """Sum over the blocks of each network."""
        return jnp.tensordot(self.among, values, 1)


class Form(NamedTuple):
    """What a network computes, and what it minimises."""

    activation: str
    loss: str


class Data(NamedTuple):
    """The task on the device, one column for each sample."""

    inputs: Float[Array, "into sample"]
    targets: Float[Array, "output sample"]
    test_inputs: Float[Array, "into test"]
    test_targets: Float[Array, "output test"]


def _outputs(weights: Weights, inputs: Array, owners: Owners, form: Form) -> Float[Array, "network output sample"]:
    blocks, units, into = weights.inner.shape
    hidden = weights.inner.reshape(blocks * units, into) @ inputs
    seen = activated(form.activation, hidden).reshape(blocks, units, -1)
    return owners.total(jnp.einsum("buo,bus->bos", weights.outer, seen))


def _losses(values: Float[Array, "network output sample"], targets: Array, form: Form) -> Float[Array, " network"]:
    """(1/2n) Σ ‖f − y‖² of each, or the mean cross-entropy of the class that is the largest entry of y."""
    if form.loss == "squared":
        return jnp.sum((values - targets[None]) ** 2, (1, 2)) / (2 * targets.shape[1])
    right = jnp.argmax(targets, 0)[None, None]
    return jnp.mean(logsumexp(values, 1) - jnp.take_along_axis(values, right, 1)[:, 0], 1)


def _step(load: Load, data: Data, owners: Owners, form: Form, moving: Array) -> Load:
    """One power step, and one step of descent where `moving` is 1."""

    def loss(weights: Weights) -> Float[Array, ""]:
        # Networks share no weights: the Hessian of the sum acts on each as its own.
        return jnp.sum(_losses(_outputs(weights, data.inputs, owners, form), data.targets, form))

    slope, bent = jax.jvp(jax.grad(loss), (load.weights,), (load.direction,))
    size = jnp.sqrt(owners.total(jnp.sum(bent.inner**2, (1, 2)) + jnp.sum(bent.outer**2, (1, 2))))
    curvature = jnp.maximum(size, FORGET * load.curvature)
    tiny = jnp.finfo(size.dtype).tiny
    rate = (moving / jnp.maximum(curvature, tiny))[owners.of, None, None]
    shrink = (1 / jnp.maximum(size, tiny))[owners.of, None, None]
    return Load(
        Weights(*(weight - rate * down for weight, down in zip(load.weights, slope, strict=True))),
        Weights(*(shrink * part for part in bent)),
        curvature,
    )


# What a GPU's short formats lose in a product would be read as a remainder, and moves the border: float32 throughout.
@partial(jax.jit, static_argnames="form", donate_argnums=0)
@jax.default_matmul_precision("highest")
def _advance(load: Load, data: Data, owners: Owners, form: Form, steps: int | Array, moving: Array) -> Load:
    """`steps` is not static: all counts share one compiled program."""
    return jax.lax.fori_loop(0, steps, lambda _, now: _step(now, data, owners, form, moving), load)


@partial(jax.jit, static_argnames="form")
@jax.default_matmul_precision("highest")
def _observe(weights: Weights, start: Weights, data: Data, owners: Owners, form: Form) -> dict[str, Array]:
    def value(at: Weights) -> Array:
        return _outputs(at, data.inputs, owners, form)

    change = jax.tree.map(jnp.subtract, weights, start)
    before, linear = jax.jvp(value, (start,), (change,))
    now, tested = value(weights), _outputs(weights, data.test_inputs, owners, form)
    moved, tiny = now - before, jnp.finfo(now.dtype).tiny  # at the start, 0/0 has the limit 0
    right = jnp.argmax(tested, 1) == jnp.argmax(data.test_targets, 0)[None]
    gram = owners.total(jnp.einsum("bui,buj->bij", change.inner, change.inner))
    first = jnp.maximum(top_eigenvalue(gram), tiny)
    return {
        "linearity": _norms(moved - linear) / jnp.maximum(_norms(moved), tiny),
        "loss": _losses(now, data.targets, form) / _losses(0 * now, data.targets, form),
        "test_loss": _losses(tested, data.test_targets, form) / _losses(0 * tested, data.test_targets, form),
        "test_accuracy": jnp.mean(right.astype(now.dtype), 1),
        "stable_rank": jnp.trace(gram, axis1=1, axis2=2) / first,
    }


def _norms(values: Float[Array, "network output sample"]) -> Float[Array, " network"]:
    return jnp.sqrt(jnp.sum(values**2, (1, 2)))


def follow_grid(
    task: Regression,
    widths: Sequence[int],
    variances: ArrayLike,
    *,
    activation: str,
    loss: str = "squared",
    seed: int = 0,
    steps: int,
    saved: int,
    precision: str = "float32",
    tick: Callable[[float], None] = lambda units: None,
) -> dict[str, np.ndarray]:
    """Train networks of several widths, each from one draw, at several variances.

    Args:
        loss: "squared", or "cross-entropy" of the class that is the largest entry of a target.
        steps: of gradient descent.
        saved: instants at which they are looked at, besides the start; it divides `steps`.
        tick: called with the number of hidden units whose training has just ended.

    Returns:
        (time, width, variance) each: `linearity` e (0 at the start), `loss` and `test_loss` over those of f = 0,
        `test_accuracy`, and `stable_rank` of the change of W_1.
    """
    if loss not in ("squared", "cross-entropy"):
        raise SaddlesError.must_be("loss", "'squared' or 'cross-entropy'", loss)
    sigmas = np.sqrt(np.asarray(variances, dtype=float))
    units = [_drawn(Perceptron(width, 1.0, activation).start(task, seed)) for width in widths]
    draw = [np.random.default_rng([seed, 33]) for _ in widths]
    lines = [_drawn([d.normal(size=s) for s in ((width, task.shape[1]), (task.shape[0], width))])
             for d, width in zip(draw, widths, strict=True)]  # fmt: skip
    arrays = (task.inputs, task.targets, task.test_inputs, task.test_targets)
    data = Data(*(jnp.asarray(part.T, dtype=precision) for part in arrays))
    block = min(LARGEST_BLOCK, 1 << (min(widths) - 1).bit_length())
    sizes = np.repeat([-(-width // block) for width in widths], len(sigmas))  # blocks of each cell
    room = ROOM["cpu" if jax.devices()[0].platform == "cpu" else "gpu"] // (block * len(task.inputs))
    loads = dealt(sizes, room)
    shape = max(len(cells) for cells in loads), int(max(sizes[cells].sum() for cells in loads))
    found: dict[str, np.ndarray] = {}
    for cells in loads:
        which = [divmod(cell, len(sigmas)) for cell in cells]
        start = _blocks([[sigmas[v] * part for part in units[w]] for w, v in which], block, shape[1], precision)
        direction = _blocks([lines[w] for w, _ in which], block, shape[1], precision)
        owners = _owners(sizes[cells], shape, precision)
        rows = _followed(start, direction, data, owners, Form(activation, loss), steps, saved)
        for name in rows[0]:
            into = found.setdefault(name, np.empty((saved + 1, len(sizes))))
            into[:, cells] = [np.asarray(row[name][: len(cells)], dtype=float) for row in rows]
        tick(float(sum(widths[w] for w, _ in which)))
    return {name: values.reshape(saved + 1, len(widths), len(sigmas)) for name, values in found.items()}


def phase_diagram(
    task: Regression,
    gamma_w: ArrayLike,
    gamma_variance: ArrayLike,
    *,
    activation: str,
    loss: str = "squared",
    seed: int = 0,
    steps: int,
    saved: int,
    precision: str = "float32",
    tick: Callable[[float], None] = lambda units: None,
) -> Trajectory:
    """Networks of width d^γ_w and variance d^γ_σ² on one task with d inputs, and the border e = ½ of lazy and active.

    Args:
        gamma_w, gamma_variance: exponents, growing; each pair is a cell.
        activation: "relu", "tanh" or "linear".
        loss: "squared" or "cross-entropy".
        seed: draws the initial weights: one draw a width, scaled.
        steps: of full-batch gradient descent, each as long as the curvature allows.
        saved: instants that are kept besides the start; it divides `steps`.
        tick: called with the number of hidden units whose training has just ended.

    Returns:
        What `follow_grid` measures along `time`, `gamma_w`, `gamma_variance`; the `border` of each width after the last
        step, as γ_σ²; `theory_border`, where the theory of wide linear networks puts it under squared loss;
        `singular_value` of the least squares fit.
    """
    up, across, dim = np.asarray(gamma_w, dtype=float), np.asarray(gamma_variance, dtype=float), task.shape[1]
    widths = [round(dim**gamma) for gamma in up]
    measured = follow_grid(
        task, widths, dim**across, activation=activation, loss=loss, seed=seed, steps=steps, saved=saved,
        precision=precision, tick=tick,
    )  # fmt: skip
    # Inputs are whitened, so this is the least squares fit that a linear network learns.
    fitted = np.linalg.svd(task.targets.T @ task.inputs / len(task.inputs), compute_uv=False)
    border = [crossing(row, across) for row in measured["linearity"][-1]]
    theory = math.log(predicted_border(fitted)) / math.log(dim) - up
    return make_trajectory(
        {name: (("time", "gamma_w", "gamma_variance"), values) for name, values in measured.items()}
        | {"border": (("gamma_w",), np.array(border)), "theory_border": (("gamma_w",), theory)}
        | {"singular_value": (("mode",), fitted)},
        steps / saved * np.arange(saved + 1),
        unit="step",
        coords={"gamma_w": up, "gamma_variance": across},
        lab="networks",
        activation=activation,
        loss=loss,
    )


def _drawn(layers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Both layers with one row for each hidden unit."""
    inner, outer = layers
    return [inner, outer.T]


def dealt(sizes: np.ndarray, room: int) -> list[np.ndarray]:
    """Cells in as few loads as have room, of about equal size: the largest first, each to the smallest load so far.

    Args:
        sizes: of each cell.
        room: in a load; a larger cell makes all of them larger.
    """
    loads: list[list[int]] = [[] for _ in range(min(len(sizes), -(-int(sizes.sum()) // max(room, int(sizes.max())))))]
    full = np.zeros(len(loads), dtype=int)
    for cell in np.argsort(-sizes, kind="stable"):
        least = int(np.argmin(full))
        loads[least].append(int(cell))
        full[least] += sizes[cell]
    return [np.array(cells) for cells in loads]


def _blocks(networks: list[list[np.ndarray]], block: int, count: int, precision: str) -> Weights:
    """Hidden units one network after the other, each filled up to whole blocks, and all of them to `count` blocks."""
    filled = []
    for layer in zip(*networks, strict=True):
        parts = [np.pad(part, ((0, -len(part) % block), (0, 0))) for part in layer]
        whole = np.concatenate(parts).reshape(-1, block, parts[0].shape[1])
        filled.append(np.pad(whole, ((0, count - len(whole)), (0, 0), (0, 0))))
    return Weights(*(jnp.asarray(layer, dtype=precision) for layer in filled))


def _owners(sizes: np.ndarray, shape: tuple[int, int], precision: str) -> Owners:
    """Blocks beyond the last network are counted to it: they are 0."""
    networks, blocks = shape
    of = np.repeat(np.arange(len(sizes)), sizes)
    of = np.pad(of, (0, blocks - len(of)), constant_values=len(sizes) - 1)
    return Owners(jnp.asarray(of), jnp.asarray(np.arange(networks)[:, None] == of, dtype=precision))


def _followed(
    start: Weights, direction: Weights, data: Data, owners: Owners, form: Form, steps: int, saved: int
) -> list[dict[str, Array]]:
    precision = start.inner.dtype
    still, moving = (jnp.asarray(number, dtype=precision) for number in (0.0, 1.0))
    load = Load(jax.tree.map(jnp.copy, start), direction, jnp.zeros(len(owners.among), dtype=precision))
    load = _advance(load, data, owners, form, FIRST_POWER_STEPS, still)
    rows = [_observe(load.weights, start, data, owners, form)]
    for _ in range(saved):
        load = _advance(load, data, owners, form, steps // saved, moving)
        rows.append(_observe(load.weights, start, data, owners, form))
    return rows
