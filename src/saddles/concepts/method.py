"""Stochastic gradient descent: one method, and many small networks in one compiled program.

Everything runs in the frame of the concepts, where the data have only s coordinates (see `saddles.concepts.simulate`).
"""

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from saddles.concepts.observe import is_kept, runs_to_trajectory
from saddles.concepts.simulate import (
    DrawnLayers,
    Layers,
    Problem,
    in_concept_frame,
    is_linear,
    mean_loss,
    observe_network,
)
from saddles.concepts.task import Identity
from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained, check_keep
from saddles.errors import SaddlesError
from saddles.runtime.precision import in_double_precision

OBSERVABLE = ("jacobian", "hierarchy")
"""What is observed on request, besides output and loss."""

PROBE = 512
"""Points on which the training loss of a network that is not linear is measured: enough for a curve, and cheap."""

TINY = 8
"""Widest network for which all runs go side by side (`vmap`); wider ones go one after another, which is faster: their
products fill the processor by themselves."""

SAVES = 200
"""Saved instants, about, where `save_every` is not given."""


@runtime_checkable
class Network(Protocol):
    """A model that can be trained on samples."""

    @property
    def activation(self) -> str:
        """Between layers: "linear" or "relu"."""
        ...

    def layers(self, task: Identity, seed: int = 0) -> DrawnLayers:
        """(weights, biases or None) of each layer at the start, in the network's frame."""
        ...


@runtime_checkable
class SampleMethod(Protocol):
    """A method that trains on samples by itself, such as `SGD`, where others follow the dynamics of the exact loss."""

    def train(
        self, model: object, task: Identity, *, times: np.ndarray | None, seed: int, keep: Sequence[str] | None,
        precision: str,
    ) -> Trajectory:  # fmt: skip
        """Train the model on the task's samples."""
        ...


@arguments_explained
@dataclass(frozen=True)
class SGD:
    """Mini-batch gradient descent on the samples, reshuffled each epoch.

    Args:
        rate: learning rate.
        batch: points per step; None takes all of them. The last points of an epoch that do not
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
        if not 0 < self.rate < float("inf"):
            raise SaddlesError.must_be("rate", "a positive learning rate", self.rate)
        for name in ("batch", "epochs", "save_every", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SaddlesError.must_be(name, "at least 1", value)
        if self.loss not in ("sum", "mean"):
            raise SaddlesError.must_be("loss", "'sum' or 'mean'", self.loss)

    @property
    def random(self) -> bool:
        """Whether the seed decides the order of the data."""
        return self.batch is not None

    def train(
        self, model: object, task: Identity, *, times: np.ndarray | None = None, seed: int = 0,
        keep: Sequence[str] | None = None, precision: str = "float64",
    ) -> Trajectory:  # fmt: skip
        """Train one network on the samples of a task; `simulate` of the lab's models calls this.

        `jacobian` (of a linear network) and `hierarchy` are observed where they are named, or small and `keep` is None.
        """
        network = self.check_network(model)
        named = None if keep is None else check_keep(keep, OBSERVABLE)
        saves = self.schedule(task, times).saves
        numbers = {"hierarchy": saves * 2**task.concepts, "jacobian": saves * task.size**2}
        observe = [name for name, count in numbers.items() if is_kept(name, named, count)]
        if named is None and not is_linear(network.layers(task, seed), network.activation):
            observe = [name for name in observe if name != "jacobian"]
        batch = Batch([network], [task], [seed], self)
        return train(batch, times=times, observe=observe, precision=precision).isel(run=0, drop=True)

    def check_network(self, model: object) -> Network:
        """Refuse a model that has no layers to train."""
        if not isinstance(model, Network):
            raise SaddlesError(
                f"SGD trains OneLayer, MLP, or a model with `layers(task, seed)` and `activation`; "
                f"got {type(model).__name__}."
            )
        return model

    def schedule(self, task: Identity, times: np.ndarray | None = None) -> "Schedule":
        """Which steps are taken and saved on this task; `times` are rounded to the nearest steps."""
        points = len(task.latent)
        batch = points if self.batch is None else self.batch
        if batch > points:
            raise SaddlesError.must_be(
                "batch", f"at most the {points} points of the task", batch, "Use batch=None for all of them"
            )
        per_epoch = points // batch
        total = min(per_epoch * self.epochs, self.steps or per_epoch * self.epochs)
        unit = self.rate * (2 / task.size if self.loss == "mean" else 1.0)
        if times is None:
            stride = max(1, total // SAVES) if self.save_every is None else self.save_every
            return Schedule(per_epoch, stride, total // stride, unit, np.arange(0, total + 1, stride))
        wanted = np.unique(np.rint(np.asarray(times) / unit).astype(int))
        if wanted[-1] > total:
            raise SaddlesError(
                f"`times` must be at most {total * unit:.4g}, which {total} steps reach; got {np.max(times):.4g}. "
                "Raise `epochs`."
            )
        stride = int(np.gcd.reduce(wanted)) or 1
        return Schedule(per_epoch, stride, int(wanted[-1]) // stride, unit, wanted)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a training: every `stride`-th is observed, `saves` times, and those of `wanted` are kept."""

    per_epoch: int
    stride: int
    saves: int
    time_per_step: float
    wanted: np.ndarray


@arguments_explained
@dataclass(frozen=True)
class Batch:
    """Networks of one shape that are trained by one method on tasks of one shape.

    Args:
        models, tasks, seeds: one of each for every run. Seeds draw the weights and the order of the
            data; runs of one seed see the points in the same order whatever their task.
        method: rate, batches and epochs, the same for all.
    """

    models: Sequence[Network]
    tasks: Sequence[Identity]
    seeds: Sequence[int]
    method: SGD

    @classmethod
    def grid(cls, model: Network, tasks: Sequence[Sequence[Identity]], seeds: Sequence[int], method: SGD) -> "Batch":
        """One network on every tasks[setting][seed], setting by setting."""
        flat = [task for row in tasks for task in row]
        return cls([model] * len(flat), flat, list(seeds) * len(tasks), method)

    @property
    def title(self) -> str:
        """The network in a few words."""
        model = self.models[0]
        layers = len(model.layers(self.tasks[0]))
        name = f"{layers} layer{'s' if layers > 1 else ''}, {'ReLU' if model.activation == 'relu' else 'linear'}"
        return name + (", loss averaged over coordinates" if self.method.loss == "mean" else "")


@dataclass(frozen=True)
class _Plan:
    """What is fixed at compilation."""

    loss: str
    per_epoch: int
    batch: int | None
    saves: int
    jacobian: bool
    side_by_side: bool


class _Run(eqx.Module):
    """The arrays of one training."""

    layers: Layers
    data: Float[Array, "point s"]
    problem: Problem
    rate: Float[Array, ""]
    order: Int[Array, ""]
    """Which of the shuffles it follows."""


def _batch_loss(layers: Layers, inputs: Float[Array, "point s"], activation: str, kind: str) -> Float[Array, ""]:
    """The loss whose gradient is a step; that of the authors' code is a mean over coordinates, without the ½."""
    whole = mean_loss(layers, inputs, activation)
    return whole if kind == "sum" else whole * (2 / layers[-1][0].shape[0])


def _observe(plan: _Plan, layers: Layers, problem: Problem) -> dict[str, Array]:
    observed = observe_network(layers, problem)
    return {name: values for name, values in observed.items() if plan.jacobian or name != "jacobian"}


def _one_run(plan: _Plan, shuffles: Int[Array, "order epoch point"], stride: Array, run: _Run) -> dict[str, Array]:
    activation = run.problem.activation

    def step(count: Array, layers: Layers) -> Layers:
        if plan.batch is None:
            inputs = run.data
        else:  # shuffles are gathered step by step: sorting all data beforehand would copy them once per epoch
            epoch, place = count // plan.per_epoch, count % plan.per_epoch
            rows = jax.lax.dynamic_slice(shuffles[run.order, epoch], (place * plan.batch,), (plan.batch,))
            inputs = run.data[rows]
        slopes = jax.grad(_batch_loss)(layers, inputs, activation, plan.loss)
        return jax.tree.map(lambda leaf, slope: leaf - run.rate * slope, layers, slopes)

    # The stride is traced, so runs of any `save_every` with as many saves share a program.
    def save(layers: Layers, block: Array) -> tuple[Layers, dict[str, Array]]:
        first = block * stride
        layers = jax.lax.fori_loop(first, first + stride, step, layers)
        return layers, _observe(plan, layers, run.problem)

    start = _observe(plan, run.layers, run.problem)
    _, later = jax.lax.scan(save, run.layers, jnp.arange(plan.saves))
    return jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), start, later)


@partial(jax.jit, static_argnums=0)
def _all_runs(plan: _Plan, shuffles: Int[Array, "order epoch point"], stride: Array, runs: _Run) -> dict[str, Array]:
    one = partial(_one_run, plan, shuffles, stride)
    return jax.vmap(one)(runs) if plan.side_by_side else jax.lax.map(one, runs)


def train(
    batch: Batch, *, times: np.ndarray | None = None, observe: Sequence[str] = (), precision: str = "float64"
) -> Trajectory:
    """Train several networks of one shape on several tasks of one shape, in one program.

    Args:
        batch: the networks, their tasks and seeds, and the method.
        times: instants to save at; None takes those of the method.
        observe: `jacobian` (linear networks without biases) and `hierarchy` (losses at all x̂(v)).
        precision: "float64" or "float32".

    Returns a trajectory with the axis `run`: output (time, run, coordinate), test_loss, loss.
    """
    return _train([batch], times, observe, precision)[0]


def train_together(batches: Sequence[Batch], *, precision: str = "float64") -> list[Trajectory]:
    """Several trainings in one program, each with the bytes that `train` gives for it alone.

    Shapes are the same, rates may differ. Runs go one after another in the program, which leaves their numbers as
    they are. Networks so small that their runs go side by side are trained batch by batch: there the last digits of
    a run depend on how many others there are.
    """
    first = batches[0]
    if _side_by_side(first.models[0].layers(first.tasks[0])):
        return [_train([batch], None, (), precision)[0] for batch in batches]
    return _train(batches, None, (), precision)


def _side_by_side(layers: DrawnLayers) -> bool:
    return max(max(weights.shape) for weights, _ in layers) <= TINY


@in_double_precision
def _train(
    batches: Sequence[Batch], times: np.ndarray | None, observe: Sequence[str], precision: str
) -> list[Trajectory]:
    began = clock.perf_counter()
    model, task, method = batches[0].models[0], batches[0].tasks[0], batches[0].method
    tasks = [task for batch in batches for task in batch.tasks]
    if len({(t.size, t.concepts, t.samples, t.clusters) for t in tasks}) > 1:
        raise SaddlesError("The tasks of one program must have one shape. Train tasks of other shapes separately.")
    if len({replace(batch.method, rate=1.0) for batch in batches}) > 1:
        raise SaddlesError("In one program only rates may differ between methods. Train the others separately.")
    drawn = model.layers(task, batches[0].seeds[0])
    if "jacobian" in observe and not is_linear(drawn, model.activation):
        raise SaddlesError(
            "The Jacobian of a network that is not linear depends on the input. Leave `jacobian` out of `keep`."
        )
    schedule = method.schedule(task, times)
    plan = _Plan(
        loss=method.loss, per_epoch=schedule.per_epoch, batch=method.batch, saves=schedule.saves,
        jacobian="jacobian" in observe, side_by_side=_side_by_side(drawn),
    )  # fmt: skip
    # One shuffle for each seed, not for each run: runs of a seed see the points in the same order.
    unique = sorted({seed for batch in batches for seed in batch.seeds})
    shuffles = np.stack([task.shuffles(method.epochs if method.batch else 1, seed) for seed in unique])
    runs = [
        _prepare(model, task, seed, batch.method.rate, unique.index(seed), "hierarchy" in observe, precision)
        for batch in batches
        for model, task, seed in zip(batch.models, batch.tasks, batch.seeds, strict=True)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)
    saved = _all_runs(plan, jnp.asarray(shuffles.astype(np.int32)), jnp.asarray(schedule.stride), stacked)
    by_time = {name: np.moveaxis(np.asarray(values), 0, 1) for name, values in saved.items()}
    spent, ends = clock.perf_counter() - began, np.cumsum([len(batch.tasks) for batch in batches])
    results = []
    for batch, end in zip(batches, ends, strict=True):
        own = {name: values[:, end - len(batch.tasks) : end] for name, values in by_time.items()}
        results.append(_label(batch, batch.method.schedule(task, times), own, spent * len(batch.tasks) / len(tasks)))
    return results


def _prepare(
    model: Network, task: Identity, seed: int, rate: float, order: int, hierarchy: bool, precision: str
) -> _Run:
    layers = model.layers(task, seed)
    probe = task.latent[np.linspace(0, len(task.latent) - 1, min(PROBE, len(task.latent))).astype(int)]
    test_points = task.hierarchy()[1] if hierarchy else task.target[None]
    start, problem = in_concept_frame(task, layers, model.activation, probe, test_points, precision)
    data, step = (jnp.asarray(values, dtype=precision) for values in (task.latent, rate))
    return _Run(start, data, problem, step, jnp.asarray(order))


def _label(batch: Batch, schedule: Schedule, saved: dict[str, np.ndarray], wall_time: float) -> Trajectory:
    """Rows until all runs have diverged, at the wanted steps."""
    alive: np.ndarray = np.asarray(np.isfinite(saved["loss"]).any(axis=1))
    rows = len(alive) if alive.all() else int(np.argmin(alive))
    steps = schedule.stride * np.arange(len(alive))
    chosen = np.isin(steps, schedule.wanted) & (np.arange(len(alive)) < rows)
    status = FINISHED
    if not np.isfinite(saved["loss"]).all():
        status = Status(Ending.DIVERGED, f"try a smaller rate than {batch.method.rate:g}")
    return runs_to_trajectory(
        batch.tasks,
        schedule.time_per_step * steps[chosen],
        {name: values[chosen] for name, values in saved.items()},
        coords={"step": ("time", steps[chosen]), "epoch": ("time", steps[chosen] / schedule.per_epoch)},
        kind="simulated",
        model=batch.models[0],
        method=batch.method,
        seed=batch.seeds[0] if len(batch.seeds) == 1 else None,
        status=status,
        wall_time=wall_time,
        gradient_evaluations=int(steps[:rows][-1]) * len(batch.models),
    )
