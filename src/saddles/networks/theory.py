"""The linearised network: f_lin(x; θ) = f(x; θ₀) + J(x; θ₀)(θ − θ₀), in closed form for squared loss and full batches.

With Θ = JJᵀ over all outputs of all n samples and the loss (1/2n)‖f − y‖²,

    f_t − y = (I − ηΘ/n)^(t/η) (f₀ − y)          descent with rate η, at gradient time t
    f_t − y = exp(−Θt/n) (f₀ − y)                its flow

and on other inputs f_t = f₀ − Θ' Θ⁻¹ (f₀ − f_t) with the kernel Θ' between them and the training inputs. For other
losses, or batches, `saddles.networks.beside` trains the linearised network beside the real one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.networks.observe import Data, data_of, flattened, leaves_of, to_trajectory
from saddles.networks.task import Regression, check_task
from saddles.runtime.device import on_device
from saddles.runtime.functions import as_it_is
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Path
from saddles.solvers.ode import SAVED_TIMES

MOST_OUTPUTS = 8000
"""Samples times outputs that are decomposed: 0.5 GB for the kernel, minutes for its eigenvalues."""

AT_ONCE = 64
"""Columns of the kernel that are computed at a time."""

ENOUGH = 10.0
"""Time constants of the kernel's median mode after which a prediction without times ends."""


@runtime_checkable
class Network(Protocol):
    """What the theory reads of a model."""

    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, ...]:
        """The initial weights."""
        ...

    def outputs(self, weights: Sequence[Array], inputs: Array) -> Array:
        """f(x), a JAX function."""
        ...


@runtime_checkable
class WithKernel(Network, Protocol):
    """A network that knows its tangent kernel better than column by column."""

    def tangent_kernel(self, weights: Sequence[Array], inputs: Array, others: Array) -> Array:
        """J'Jᵀ, outputs of others (rows) by outputs of inputs (columns), each sample's together."""
        ...


@arguments_explained
@dataclass(frozen=True)
class Linearised:
    """The network trained as if it were linear in its parameters, in closed form.

    Cost: the tangent kernel (one backward pass and one Jacobian-vector product for each output of each sample, or what
    the model's own `tangent_kernel` takes), and the eigenvalues of a symmetric matrix of that size.

    Args:
        rate: learning rate of gradient descent; None is gradient flow.
    """

    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise SaddlesError.must_be("rate", "a positive learning rate, or None for gradient flow", self.rate)

    @in_double_precision
    def predict(
        self,
        model: object,
        task: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Predict the run of a `Perceptron`, or of any model with `start` and `outputs`.

        Args:
            times: gradient times; None takes 201 of them until the median mode has been learned. With a rate, powers
                of I − ηΘ/n are taken at t/η, which need not be whole.
            keep: `outputs` (time, sample, output) and `test_outputs`.
        """
        problem = check_task(task)
        if isinstance(model, type) or not isinstance(model, Network):
            raise SaddlesError(f"Linearised predicts models with `start` and `outputs`; got {type(model).__name__}.")
        if problem.targets.size > MOST_OUTPUTS:
            raise SaddlesError(
                f"The kernel of {len(problem.targets)} samples with {problem.shape[0]} outputs is too large (at most "
                f"{MOST_OUTPUTS} in all). Use fewer samples, or `saddles.networks.beside`."
            )
        with on_device(device):
            data = data_of(problem, keep, precision)
            weights = _started(model, problem, seed, precision)
            path = self._solve(model, weights, data, times)
        return to_trajectory(path, problem, model=model, kind="predicted", theory=self, seed=seed)

    def _solve(
        self, model: Network, weights: tuple[Array, ...], data: Data, times: np.ndarray | None
    ) -> Path[tuple[Array, ...]]:
        before, tested = model.outputs(weights, data.inputs), model.outputs(weights, data.test_inputs)
        kernel, across = kernels(model, weights, data.inputs, data.test_inputs)
        count = data.inputs.shape[0]
        values, modes = jnp.linalg.eigh(kernel / count)
        # The kernel of fewer parameters than outputs has no full rank; what rounding leaves there is no mode.
        values = jnp.where(values > values.size * jnp.finfo(values.dtype).eps * values[-1], values, 0.0)
        if times is None:
            moving = values[values > 0]
            times = np.linspace(0.0, ENOUGH / float(jnp.median(moving)) if moving.size else 1.0, SAVED_TIMES)
        left = modes.T @ flattened(before - data.targets)
        clock = jnp.asarray(times, dtype=values.dtype)
        rows = _rows(
            None if self.rate is None else jnp.asarray(self.rate),
            clock,
            values,
            modes,
            left,
            across,
            before,
            tested,
            data,
        )
        saved, clock = {name: np.asarray(row) for name, row in rows.items()}, np.asarray(times, dtype=float)
        # A rate above 2/λ_max grows without end: what is still a number is exact, and the rest is left out.
        fine = np.isfinite(saved["loss"]) & np.isfinite(saved["test_loss"])
        good, status = len(clock), FINISHED
        if not fine.all():
            good = int(np.argmin(fine))
            status = Status(Ending.DIVERGED, f"near time {clock[good]:.6g}")
            good = max(good, 1)  # the first row is kept whatever it is
        saved = {name: values[:good] for name, values in saved.items()}
        return Path(times=clock[:good], saved=saved, state=weights, status=status)


def _started(model: Network, task: Regression, seed: int, precision: str) -> tuple[Array, ...]:
    """The initial weights of a model, where its outputs are such as the task wants."""
    name, start = type(model).__name__, model.start(task, seed)
    if not isinstance(start, tuple | list):
        raise SaddlesError(f"`start` of {name} must return a tuple of arrays; got a {type(start).__name__}.")
    weights = leaves_of(start, precision)
    inputs = jax.ShapeDtypeStruct(task.inputs.shape, precision)
    found = getattr(jax.eval_shape(model.outputs, weights, inputs), "shape", None)
    if found != task.targets.shape:  # NumPy's rules would stretch (n,) beside (n, 1) to n × n
        got = "no array" if found is None else f"the shape {found}"
        raise SaddlesError(f"`outputs` of {name} must have the shape of the targets, {task.targets.shape}; got {got}.")
    return weights


@eqx.filter_jit
def _rows(
    rate: Float[Array, ""] | None,
    times: Float[Array, " time"],
    values: Float[Array, " mode"],
    modes: Float[Array, "output mode"],
    left: Float[Array, " mode"],
    across: Float[Array, "test output"],
    before: Array,
    tested: Array,
    data: Data,
) -> dict[str, Array]:
    """What is seen at each time; the rate is an array, so that all rates share one program."""

    def row(time: Array) -> dict[str, Array]:
        if rate is None:
            kept = jnp.exp(-values * time)
        else:  # (1 − ηλ)^(t/η); a factor below 0 flips its sign with every step
            step, steps = 1 - rate * values, time / rate
            kept = jnp.abs(step) ** steps * jnp.where(step < 0, jnp.cos(jnp.pi * steps), 1.0)
        # Σ_k η (1 − ηλ)^k = (1 − (1 − ηλ)^t)/λ, and t where λ = 0.
        summed = jnp.where(values > 0, (1 - kept) / jnp.where(values > 0, values, 1.0), time)
        change = modes @ ((kept - 1) * left)
        moved = -(across @ (modes @ (summed * left))) / data.inputs.shape[0]
        return data.scores(before + change.reshape(before.shape), tested + moved.reshape(tested.shape))

    return jax.vmap(row)(times)


@in_double_precision
def top_eigenvalue(model: Network, task: Regression, *, seed: int = 0, steps: int = 50) -> float:
    """λ_max of Θ/n at the start, by power steps: gradient descent on the linearised network is stable below 2/λ_max.

    Args:
        seed: draws the weights.
        steps: power steps; the result is too small by a share that falls with the gap between the largest two.
    """
    weights = _started(model, task, seed, "float64")
    inputs = jnp.asarray(task.inputs)
    vector = jnp.asarray(np.random.default_rng([seed, 35]).normal(size=task.targets.size))
    kernel = model.tangent_kernel(weights, inputs, inputs) if isinstance(model, WithKernel) else None
    function = as_it_is(model.outputs)
    for _ in range(steps):
        size = jnp.linalg.norm(vector)
        if size == 0:  # no output depends on any weight: of a ReLU network, where no unit is active
            return 0.0
        unit = vector / size
        product = _columns(function, weights, inputs, inputs[:1], unit[None])[0][0] if kernel is None else kernel @ unit
        vector = product / len(inputs)
    return float(jnp.linalg.norm(vector))


def kernels(
    model: Network, weights: tuple[Array, ...], inputs: Array, others: Array
) -> tuple[Float[Array, "output output"], Float[Array, "other output"]]:
    """The empirical tangent kernel JJᵀ of some inputs, and the one between others and them.

    Column by column, Θ e_i = J(Jᵀe_i), unless the model knows better: the Jacobian of all parameters is never formed.
    """
    if isinstance(model, WithKernel):
        here, there = (model.tangent_kernel(weights, inputs, points) for points in (inputs, others))
        return (here + here.T) / 2, there
    size = flattened(model.outputs(weights, inputs)).shape[0]
    units, function = np.eye(size), as_it_is(model.outputs)
    parts = [
        _columns(function, weights, inputs, others, jnp.asarray(units[at : at + AT_ONCE], dtype=weights[0].dtype))
        for at in range(0, size, AT_ONCE)
    ]
    here, there = (jnp.concatenate(blocks) for blocks in zip(*parts, strict=True))
    return (here + here.T) / 2, there.T


@partial(jax.jit, static_argnums=0)
def _columns(
    function: Callable[[tuple[Array, ...], Array], Array],
    weights: tuple[Array, ...],
    inputs: Array,
    others: Array,
    units: Float[Array, "column output"],
) -> tuple[Float[Array, "column output"], Float[Array, "column other"]]:
    """Θv on the inputs and on others, for several v.

    Weights and inputs are arguments: as constants of the program they would be folded into it, which takes minutes.
    """

    def value(points: Array, at: tuple[Array, ...]) -> Array:
        return flattened(function(at, points))

    def column(unit: Array) -> tuple[Array, Array]:
        (direction,) = jax.vjp(partial(value, inputs), weights)[1](unit)
        here, there = (jax.jvp(partial(value, points), (weights,), (direction,))[1] for points in (inputs, others))
        return here, there

    return jax.vmap(column)(units)
