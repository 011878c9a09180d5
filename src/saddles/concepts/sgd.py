"""Stochastic gradient descent on many small networks in one compiled program.

Everything runs in the frame of the concepts, where the data have only s coordinates: the columns
of the first layer beyond s receive no gradient and stay as they were drawn. So a step costs what a
network with s inputs costs, and is the same step.
"""

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import saddles.runtime.float64  # noqa: F401
from saddles.concepts.model import MLP, OneLayer
from saddles.concepts.observe import coordinates, test_loss
from saddles.concepts.task import Identity
from saddles.core.trajectory import DIVERGED, FINISHED, Trajectory, make_trajectory
from saddles.errors import SaddlesError

KEEPABLE = ("jacobian", "hierarchy")

PROBE = 512
"""Points on which the training loss of a network that is not linear is measured."""

TINY = 8
"""Widest network for which all runs go side by side (`vmap`); wider ones go one after another."""

Layers = list[tuple[Array, Array | None]]


@dataclass(frozen=True)
class SGD:
    """Mini-batch gradient descent on the samples, reshuffled each epoch.

    Args:
        rate: learning rate.
        batch: points a step; None takes all of them. The last points of an epoch that do not
            fill a batch are left out.
        epochs: passes over the data.
        loss: "sum" is ½‖f(x) − x‖² averaged over the batch, the text's; "mean" is ‖f(x) − x‖²
            averaged over batch and coordinates, as the authors' code has it.
        save_every: steps between saved instants; None saves about 200 of them.
        steps: stop after so many steps, if that is before the epochs end.

    `time` is rate × step, × 2/d under the coordinate mean: then it is gradient time of the text's loss.
    """

    rate: float
    batch: int | None = 128
    epochs: int = 40
    loss: str = "sum"
    save_every: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf") or self.epochs < 1 or (self.batch is not None and self.batch < 1):
            raise SaddlesError.about(
                f"rate={self.rate!r}, batch={self.batch!r}, epochs={self.epochs!r} came",
                "all must be positive",
                "try SGD(0.1, batch=128, epochs=40)",
            )
        if self.loss not in ("sum", "mean"):
            raise SaddlesError.about(f"loss={self.loss!r} came", "sum or mean is meant", "leave it out")

    def plan(self, points: int) -> tuple[int, int, int]:
        """Steps an epoch, steps between saves, and how many saves, for a number of samples."""
        batch = points if self.batch is None else self.batch
        if batch > points:
            raise SaddlesError.about(
                f"a batch of {batch} of {points} points came", "an epoch needs one batch", "use batch=None"
            )
        each = points // batch
        total = min(each * self.epochs, self.steps or each * self.epochs)
        stride = max(1, total // 200) if self.save_every is None else self.save_every
        return each, stride, total // stride

    def time_a_step(self, size: int) -> float:
        """Gradient time of one step."""
        return self.rate * (2 / size if self.loss == "mean" else 1.0)


def forward(layers: Layers, inputs: Array, activation: str) -> Array:
    """Outputs (point, d) of inputs (point, s), both in the concepts' frame."""
    state = inputs
    for depth, (weights, biases) in enumerate(layers):
        if depth and activation == "relu":
            state = jax.nn.relu(state)
        state = state @ weights.T
        if biases is not None:
            state = state + biases[None, :]
    return state


def batch_loss(layers: Layers, inputs: Array, activation: str, size: int, kind: str) -> Array:
    """The loss of a batch of latent points (point, s), target 0 beyond the concepts."""
    output = forward(layers, inputs, activation)
    gap = output - jnp.pad(inputs, ((0, 0), (0, size - inputs.shape[1])))
    return jnp.mean(gap**2) if kind == "mean" else jnp.sum(gap**2) / (2 * gap.shape[0])


@dataclass(frozen=True)
class _Plan:
    """What is fixed at compilation."""

    activation: str
    size: int
    loss: str
    each: int
    batch: int | None
    saves: int
    jacobian: bool
    side_by_side: bool


def _observe(plan: _Plan, layers: Layers, run: dict[str, Any]) -> dict[str, Array]:
    found = {"outputs": forward(layers, run["points"], plan.activation)}
    linear = plan.activation == "linear" and all(biases is None for _, biases in layers)
    if linear:
        jacobian = forward(layers, jnp.eye(run["data"].shape[1], dtype=run["data"].dtype), "linear").T
        gap = jacobian - jnp.eye(*jacobian.shape, dtype=jacobian.dtype)
        found["loss"] = jnp.sum((gap @ run["moment"]) * gap) / 2
        if plan.jacobian:
            found["jacobian"] = jacobian
    else:
        found["loss"] = batch_loss(layers, run["probe"], plan.activation, plan.size, "sum")
    return found


def _one_run(plan: _Plan, shuffles: Array, stride: Array, run: dict[str, Any]) -> dict[str, Array]:
    def step(count: Array, layers: Layers) -> Layers:
        if plan.batch is None:
            inputs = run["data"]
        else:
            epoch, place = count // plan.each, count % plan.each
            rows = jax.lax.dynamic_slice(shuffles[run["order"], epoch], (place * plan.batch,), (plan.batch,))
            inputs = run["data"][rows]
        slopes = jax.grad(batch_loss)(layers, inputs, plan.activation, plan.size, plan.loss)
        return jax.tree.map(lambda leaf, slope: leaf - run["rate"] * slope, layers, slopes)

    def save(layers: Layers, block: Array) -> tuple[Layers, dict[str, Array]]:
        first = block * stride
        layers = jax.lax.fori_loop(first, first + stride, step, layers)
        return layers, _observe(plan, layers, run)

    start = _observe(plan, run["layers"], run)
    _, later = jax.lax.scan(save, run["layers"], jnp.arange(plan.saves))
    return jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), start, later)


@partial(jax.jit, static_argnums=0)
def _all_runs(plan: _Plan, shuffles: Array, stride: Array, runs: dict[str, Any]) -> dict[str, Array]:
    one = partial(_one_run, plan, shuffles, stride)
    return jax.vmap(one)(runs) if plan.side_by_side else jax.lax.map(one, runs)


def train(
    models: Sequence[MLP | OneLayer],
    tasks: Sequence[Identity],
    seeds: Sequence[int],
    method: SGD,
    *,
    keep: Sequence[str] = (),
    precision: str = "float64",
) -> Trajectory:
    """Train several networks of one shape on several tasks of one shape, in one program.

    Args:
        models, tasks, seeds: one of each for every run. Seeds draw the weights and the order of the
            data; runs of one seed see the points in the same order whatever their task.
        keep: `jacobian` (linear networks without biases: its first s columns) and `hierarchy`
            (outputs at all x̂(v)).

    Returns a trajectory with the axis `run`: output (time, run, coordinate), test_loss, loss.
    """
    return _train([Batch(models, tasks, seeds, method)], keep, precision)[0]


@dataclass(frozen=True)
class Batch:
    """Networks that are trained by one method: the arguments of `train`."""

    models: Sequence[MLP | OneLayer]
    tasks: Sequence[Identity]
    seeds: Sequence[int]
    method: SGD


def train_together(
    batches: Sequence[Batch], *, keep: Sequence[str] = (), precision: str = "float64"
) -> list[Trajectory]:
    """Several trainings in one program, each with the bytes that `train` gives for it alone.

    Shapes are the same, rates may differ. Runs go one after another in the program, which leaves their numbers as
    they are. Networks so small that their runs go side by side are trained batch by batch: there the last digits of
    a run depend on how many others there are.
    """
    first = batches[0]
    plan, _ = _plan(first.models[0], first.tasks[0], first.method, keep)
    if plan.side_by_side:
        return [_train([batch], keep, precision)[0] for batch in batches]
    return _train(batches, keep, precision)


def _train(batches: Sequence[Batch], keep: Sequence[str], precision: str) -> list[Trajectory]:
    began = clock.perf_counter()
    task, method = batches[0].tasks[0], batches[0].method
    tasks = [task for batch in batches for task in batch.tasks]
    if len({(t.size, t.concepts, t.samples, t.clusters) for t in tasks}) > 1:
        raise SaddlesError.about("tasks of several shapes came", "one program trains one shape", "train each apart")
    if len({replace(batch.method, rate=1.0) for batch in batches}) > 1:
        raise SaddlesError.about("several methods came", "only rates may differ in a program", "train each apart")
    method_plan, stride = _plan(batches[0].models[0], task, method, keep)
    unique = sorted({seed for batch in batches for seed in batch.seeds})
    shuffles = np.stack([task.shuffles(method.epochs if method.batch else 1, seed) for seed in unique]).astype(np.int32)
    made = [
        _prepare(model, task_, seed, batch.method.rate, precision, "hierarchy" in keep)
        | {"order": jnp.asarray(unique.index(seed))}
        for batch in batches
        for model, task_, seed in zip(batch.models, batch.tasks, batch.seeds, strict=True)
    ]
    runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
    saved = _all_runs(method_plan, jnp.asarray(shuffles), jnp.asarray(stride), runs)
    found = {name: np.moveaxis(np.asarray(values), 0, 1) for name, values in saved.items()}
    spent, ends = clock.perf_counter() - began, np.cumsum([len(batch.tasks) for batch in batches])
    parts = []
    for batch, end in zip(batches, ends, strict=True):
        own = {name: values[:, end - len(batch.tasks) : end] for name, values in found.items()}
        parts.append(_label(batch, method_plan, stride, own, spent * len(batch.tasks) / len(tasks)))
    return parts


def _plan(model: MLP | OneLayer, task: Identity, method: SGD, keep: Sequence[str]) -> tuple[_Plan, int]:
    unknown = [name for name in keep if name not in KEEPABLE]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(KEEPABLE)} can be kept", "use those names")
    each, stride, saves = method.plan(len(task.latent))
    network = model if isinstance(model, MLP) else MLP()
    if "jacobian" in keep and (network.activation != "linear" or network.bias):
        raise SaddlesError.about(
            "keep=jacobian came for a network that is not linear", "its Jacobian depends on the input", "drop it"
        )
    plan = _Plan(
        activation=network.activation, size=task.size, loss=method.loss, each=each, batch=method.batch,
        saves=saves, jacobian="jacobian" in keep, side_by_side=max([task.size, *network.widths]) <= TINY,
    )  # fmt: skip
    return plan, stride


def _prepare(
    model: MLP | OneLayer, task: Identity, seed: int, rate: float, precision: str, hierarchy: bool
) -> dict[str, Any]:
    turn, s = task.rotation, task.concepts
    if isinstance(model, OneLayer):
        layers, bias = [(model.start(task.size, seed), np.zeros(task.size))], False
    else:
        layers, bias = model.start(task.size, seed), model.bias
    first = layers[0]
    layers[0] = ((first[0] @ turn)[:, :s], first[1])
    last = layers[-1]
    layers[-1] = (turn.T @ last[0], turn.T @ last[1])
    points = task.hierarchy()[1] if hierarchy else task.target[None]
    probe = task.latent[np.linspace(0, len(task.latent) - 1, min(PROBE, len(task.latent))).astype(int)]
    run = {
        "layers": [(weights, biases if bias else None) for weights, biases in layers],
        "data": task.latent,
        "probe": probe,
        "points": points[:, :s],
        "moment": task.moment,
        "rate": np.asarray(rate),
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=precision), run)


def _label(batch: Batch, plan: _Plan, stride: int, found: dict[str, np.ndarray], wall_time: float) -> Trajectory:
    models, tasks, seeds, method = batch.models, batch.tasks, batch.seeds, batch.method
    alive: np.ndarray = np.asarray(np.isfinite(found["loss"]).any(axis=1))
    rows = len(alive) if alive.all() else int(np.argmin(alive))
    diverged = not np.isfinite(found["loss"]).all()
    found = {name: values[:rows] for name, values in found.items()}
    steps = stride * np.arange(rows)
    targets = np.stack([task.target for task in tasks])
    outputs = found["outputs"].astype(float)
    whole = outputs.shape[2] > 1
    variables: dict[str, Any] = {
        "output": (("time", "run", "coordinate"), outputs[:, :, -1]),
        "loss": (("time", "run"), found["loss"]),
        "test_loss": (("time", "run"), test_loss(outputs[:, :, -1], targets)),
        "target": (("run", "coordinate"), targets),
        "strength": (("run", "coordinate"), np.stack([task.strengths for task in tasks])),
    }
    coords: dict[str, Any] = {**coordinates(tasks[0]), "step": ("time", steps), "epoch": ("time", steps / plan.each)}
    if whole:
        names = tasks[0].hierarchy()[0]
        goals = np.stack([task.hierarchy()[1] for task in tasks])
        variables["point_loss"] = (("time", "run", "point"), test_loss(outputs, goals))
        coords["point"] = names
    if "jacobian" in found:
        variables["jacobian"] = (("time", "run", "row", "column"), found["jacobian"])
    return make_trajectory(
        variables, method.time_a_step(plan.size) * steps, unit="gradient time", coords=coords, lab="concepts",
        kind="simulated", model=models[0], task=tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks like {tasks[0]}",
        method=method, seed=seeds[0] if len(seeds) == 1 else None,
        status=f"{DIVERGED}: try a smaller rate than {method.rate:g}" if diverged else FINISHED,
        wall_time=wall_time, gradient_evaluations=int(steps[-1]) * len(models),
    )  # fmt: skip
