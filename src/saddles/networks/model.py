"""The fully connected network of this lab."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jax import Array

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.networks.forward import ACTIVATIONS, outputs, tangent_kernel
from saddles.networks.observe import data_of, leaves_of, to_trajectory
from saddles.networks.simulate import dynamics_of
from saddles.networks.task import Regression, check_task
from saddles.protocols import AXIS
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import check_method, horizon_of


@arguments_explained
@dataclass(frozen=True, eq=False)
class Perceptron:
    """f(x) = W_L φ(… φ(W_1 x)) without biases, entries i.i.d. N(0, variance).

    Args:
        width: of every hidden layer, w; a list adds the axis `width`.
        variance: σ²; a list adds the axis `variance`.
        activation: φ, "relu", "tanh" or "linear".
        layers: of weights, L; 2 has one hidden layer.
    """

    width: int | Sequence[int] | np.ndarray = field(metadata=AXIS)
    variance: float | Sequence[float] | np.ndarray = field(metadata=AXIS)
    activation: str = "relu"
    layers: int = 2

    def __post_init__(self) -> None:
        for width in np.atleast_1d(np.asarray(self.width, dtype=float)):
            if not (width >= 1 and width == np.floor(width)):
                raise SaddlesError.must_be("width", "a whole number of at least 1", float(width))
        for variance in np.atleast_1d(np.asarray(self.variance, dtype=float)):
            if not 0 < variance < np.inf:
                raise SaddlesError.must_be("variance", "positive", float(variance), "Try 1 / width")
        if self.activation not in ACTIVATIONS:
            raise SaddlesError.must_be("activation", f"one of {', '.join(ACTIVATIONS)}", self.activation)
        if self.layers < 2:
            raise SaddlesError.must_be("layers", "at least 2", self.layers)

    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, ...]:
        """The initial weights W_1, …, W_L, each (out, in).

        Args:
            task: its `shape` (outputs, inputs) is read.
            seed: draws them; a wider network is not an extension of a narrower one.
        """
        last, first = task.shape
        width = int(np.asarray(self.width))
        sizes = [first, *[width] * (self.layers - 1), last]
        draw = np.random.default_rng([seed, 32])
        sigma = np.sqrt(float(np.asarray(self.variance)))
        return tuple(sigma * draw.normal(size=(out, into)) for into, out in itertools.pairwise(sizes))

    def outputs(self, weights: Sequence[Array], inputs: Array) -> Array:
        """f(x), one row for each sample: a JAX function of weights and inputs."""
        return outputs(tuple(weights), inputs, self.activation)

    def tangent_kernel(self, weights: Sequence[Array], inputs: Array, others: Array) -> Array:
        """Θ between outputs of others (rows) and of inputs (columns), in closed form (`Linearised` looks for it)."""
        return tangent_kernel(tuple(weights), inputs, others, self.activation)

    @in_double_precision
    def simulate(
        self,
        task: object,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Train by `GradientDescent`, `GradientFlow`, or a method of your own.

        Saved are `loss`, `test_loss`, `test_accuracy`, and `linearity`, the e of `saddles.networks.linearity` on the
        training inputs. A flow without times runs until ‖∇L‖ has fallen to 0.1 % of its first value. A flow of a ReLU
        network may be held at a kink, where a sample is about to switch a unit off, and slide along it in tiny steps:
        then the status says so once the method's steps are spent, and a larger `rtol`, or descent, gets along.

        Args:
            task: a `Regression`.
            keep: more to keep: `outputs` (time, sample, output) and `test_outputs`.
        """
        mover, problem = check_method(method, self), check_task(task)
        with on_device(device):
            start = leaves_of(self.start(problem, seed), precision)
            path = mover.follow(dynamics_of(start, data_of(problem, keep, precision), self.activation), times)
        return to_trajectory(path, problem, model=self, kind="simulated", method=method, seed=seed)

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved; None where the method's steps decide."""
        mover, problem = check_method(method, self), check_task(task)
        with on_device(device):
            start = leaves_of(self.start(problem, seed), precision)
            return horizon_of(mover, dynamics_of(start, data_of(problem, (), precision), self.activation))
