"""Sums of homogeneous neurons: what `AlternatingFlows` speaks about, and neurons of your own.

def neuron(x, theta):                       # degree 3: a product of three weights
return theta[0] * (theta[1:] @ x) ** 2

model = Neurons(neuron, degree=3, size=4, count=20, scale=1e-6)
task = Samples(inputs, targets)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.core.validation import arguments_explained, check_keep
from saddles.errors import SaddlesError
from saddles.protocols import AXIS, ArrayLike
from saddles.runtime.device import on_device
from saddles.runtime.functions import as_it_is
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Dynamics, check_method, horizon_of

Neuron = Callable[[Array, Array], Array]
"""f(x, θ) of one sample: a number or an array."""
Theta = Float[Array, "neuron weight"]


class Output(eqx.Module):
    """θ of one neuron -> what it adds to the network, for instance its outputs on all samples."""

    def __call__(self, theta: Float[Array, " weight"]) -> Array:
        raise NotImplementedError


class Loss(eqx.Module):
    """The sum of all neurons' outputs -> a number."""

    def __call__(self, total: Array) -> Float[Array, ""]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Sum:
    """A network that is a sum of neurons, as a theory sees it.

    Args:
        output: of one neuron, homogeneous of degree `degree` in its weights.
        loss: of the sum.
        degree: κ.
        start: directions at the start, (neuron, weight); the weights are exp(log_scale) times these.
        log_scale: log of the start's size, so that it may be as small as 1e-1000.
    """

    output: Output
    loss: Loss | Callable[[Any], Array]
    degree: int
    start: np.ndarray
    log_scale: float


@runtime_checkable
class Additive(Protocol):
    """A model that `AlternatingFlows` can predict."""

    def neurons(self, task: Any, seed: int = 0) -> Sum:  # task: the model's own kind
        """The network as a sum of homogeneous neurons."""
        ...


class OnSamples(Output):
    """Outputs of a user's neuron on all samples."""

    inputs: Array
    function: Neuron = eqx.field(static=True)

    def __call__(self, theta: Float[Array, " weight"]) -> Array:
        return jax.vmap(lambda x: self.function(x, theta))(self.inputs)


class SquaredError(Loss):
    """Mean over samples of ‖y − f‖²."""

    targets: Array

    def __call__(self, total: Array) -> Float[Array, ""]:
        return jnp.sum((self.targets - total) ** 2) / self.targets.shape[0]


@arguments_explained
@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets; the loss is the mean over samples of ‖y − f(x)‖², without a factor ½.

    Args:
        inputs: samples first.
        targets: samples first.
    """

    inputs: ArrayLike
    targets: ArrayLike

    def __post_init__(self) -> None:
        inputs, targets = np.asarray(self.inputs, dtype=float), np.asarray(self.targets, dtype=float)
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets) or not len(inputs):
            raise SaddlesError(
                "`inputs` and `targets` must have the same number of samples along their first axes; got shapes "
                f"{inputs.shape} and {targets.shape}."
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise SaddlesError("`inputs` and `targets` must be finite; they hold NaN or infinity. Clean them first.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)


@arguments_explained
@dataclass(frozen=True, eq=False)
class Neurons:
    """A network Σ_i f(x; θ_i) of your own neurons, each homogeneous in its weights.

    The weights of each neuron start as a random direction of length `scale`, or as `scale` times the rows of `weights`.

    Args:
        function: f(x, θ) of one sample, a smooth JAX function.
        degree: κ, with f(x, cθ) = c^κ f(x, θ).
        size: how many weights a neuron has.
        count: how many neurons.
        scale: size of the start; a list adds the axis `scale`.
        weights: given directions (count, size) instead of a draw.
    """

    function: Neuron
    degree: int
    size: int
    count: int
    scale: float | Sequence[float] | np.ndarray = field(metadata=AXIS)
    weights: ArrayLike | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("degree", 2), ("size", 1), ("count", 1)):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < least:
                raise SaddlesError.must_be(name, f"a whole number of at least {least}", getattr(self, name))
        scales = np.asarray(self.scale, dtype=float)
        if not ((scales > 0) & (scales < np.inf)).all():
            raise SaddlesError.must_be("scale", "positive (at 0 nothing ever moves)", self.scale)
        if self.weights is not None and np.shape(self.weights) != (self.count, self.size):
            raise SaddlesError.must_be("weights", f"of shape ({self.count}, {self.size})", np.shape(self.weights))
        if self.weights is not None and not np.isfinite(np.asarray(self.weights, dtype=float)).all():
            raise SaddlesError("`weights` must be finite; they hold NaN or infinity.")

    @property
    def random(self) -> bool:
        """Whether the seed draws the weights."""
        return self.weights is None

    def directions(self, seed: int = 0) -> np.ndarray:
        """The start before the factor `scale`."""
        if self.weights is not None:
            return np.asarray(self.weights, dtype=float)
        drawn = np.random.default_rng([seed, 54]).normal(size=(self.count, self.size))
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def neurons(self, task: Any, seed: int = 0, precision: str = "float64") -> Sum:  # task: Samples or alike
        """The network as a theory sees it; the function's degree is checked."""
        inputs = jnp.asarray(_samples(task).inputs, dtype=precision)
        targets = jnp.asarray(_samples(task).targets, dtype=precision)
        start = self.directions(seed)
        output = OnSamples(inputs, as_it_is(self.function))
        try:
            one, two = (np.asarray(output(jnp.asarray(c * start[0], dtype=precision))) for c in (1.0, 2.0))
        except (TypeError, ValueError, IndexError) as error:
            raise SaddlesError(
                f"`function` must take (x, θ) with θ of {self.size} entries; it failed: {str(error).splitlines()[0]}"
            ) from error
        if one.shape != targets.shape:
            raise SaddlesError(
                f"A neuron's outputs must have the shape of the targets, {targets.shape}; got {one.shape}."
            )
        if not np.allclose(two, 2.0**self.degree * one, rtol=1e-6, atol=1e-12 * np.abs(two).max(initial=0.0)):
            raise SaddlesError(f"`function` is not homogeneous of degree {self.degree}: f(x, 2θ) is not 2^κ f(x, θ).")
        return Sum(output, SquaredError(targets), self.degree, start, float(np.log(float(np.asarray(self.scale)))))

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
        """Train by `GradientFlow`, `GradientDescent` or a method of your own.

        Variables are `loss` and `neuron_norm`. A flow needs `until` or times.

        Args:
            keep: ("weights",) also keeps θ (time, neuron, weight).
        """
        mover, kept = check_method(method, self), check_keep(keep or (), ("weights",))
        with on_device(device):
            path = mover.follow(self._dynamics(task, seed, kept, precision), times)
        dims = {"loss": ("time",), "neuron_norm": ("time", "neuron"), "weights": ("time", "neuron", "weight")}
        return make_trajectory(
            {name: (dims[name], values) for name, values in path.saved.items()}, path.times, coords=path.coords,
            lab="incontext", model=self, task=task, kind="simulated", method=method,
            seed=seed if self.random else None, **path.facts,
        )  # fmt: skip

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved; None where the method's steps decide."""
        with on_device(device):
            return horizon_of(check_method(method, self), self._dynamics(task, seed, (), precision))

    def _dynamics(self, task: object, seed: int, keep: tuple[str, ...], precision: str) -> Dynamics:
        network = self.neurons(task, seed, precision)
        start = jnp.asarray(np.exp(network.log_scale) * network.start, dtype=precision)
        return Dynamics(start, _Args(network.output, network.loss, keep), _slope, _observe)


class _Args(eqx.Module):
    output: Output
    loss: Any  # a Loss
    keep: tuple[str, ...] = eqx.field(static=True)


def total_loss(theta: Theta, output: Output, loss: Loss) -> Float[Array, ""]:
    """L(Σ f(θ_i))."""
    return loss(jnp.sum(jax.vmap(output)(theta), axis=0))


def _slope(theta: Theta, args: _Args) -> Theta:
    return -jax.grad(total_loss)(theta, args.output, args.loss)


def _observe(theta: Theta, args: _Args) -> dict[str, Array]:
    seen = {
        "loss": total_loss(theta, args.output, args.loss),
        "neuron_norm": jnp.sqrt(jnp.sum(theta**2, axis=1)),
    }
    return seen | ({"weights": theta} if "weights" in args.keep else {})


def _samples(task: object) -> Any:
    if not (hasattr(task, "inputs") and hasattr(task, "targets")):
        raise SaddlesError(f"Neurons are trained on incontext.Samples (inputs, targets); got {type(task).__name__}.")
    return task
