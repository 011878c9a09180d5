"""The loss L(β) of a model on a task, its gradient and Hessian columns, counted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.diagonal.task import Loss, Task, cross_entropy
from saddles.errors import SaddlesError
from saddles.runtime.functions import as_it_is

Parameters = Float[Array, "..."]
"""β, or whatever else a model's `output` takes: the four stacked matrices of a full head."""
Output = Callable[[Array, Array], Array]
"""h(parameters, batch) -> outputs, samples first."""

PIECE = 64
"""How many β a compiled program computes the loss of."""


@runtime_checkable
class ProductNetwork(Protocol):
    """What theory and simulation read of a network h(x; u ⊙ v); `saddles.diagonal.Network` has it all."""

    @property
    def coordinates(self) -> int:
        """The length of β."""
        ...

    @property
    def powers(self) -> np.ndarray:
        """The exponents a of the initial scale α^a, one per coordinate."""
        ...

    @property
    def families(self) -> list[str]:
        """The name of the matrix that each coordinate is a diagonal entry of."""
        ...

    def output(self, beta: Array, inputs: Array, /) -> Array:
        """The outputs h(β, inputs) of a whole batch, samples first."""
        ...

    def start(self, task: object = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """u₀ and v₀, before the factor α^a."""
        ...


def check_network(model: object, reader: object) -> ProductNetwork:
    """Refuse a model without coordinates β, before anything is computed."""
    missing = [name for name in ("coordinates", "powers", "families", "output", "start") if not hasattr(model, name)]
    if missing:
        raise SaddlesError(
            f"{getattr(reader, '__name__', type(reader).__name__)} is for networks h(x; u ⊙ v), such as "
            f"LinearDiagonal, AttentionHead or a subclass of saddles.diagonal.Network; {type(model).__name__} has no "
            f"`{missing[0]}`."
        )
    return model  # type: ignore[return-value]


class Mean(eqx.Module):
    """L = mean over samples of loss(h(β, inputs), target), for β or any other parameter."""

    inputs: Array
    targets: Array
    output: Output = eqx.field(static=True)
    loss: Loss = eqx.field(static=True)

    def __call__(self, parameters: Parameters) -> Float[Array, ""]:
        return self._mean(parameters, self.inputs, self.targets)

    def on(self, parameters: Parameters, chosen: Array) -> Float[Array, ""]:
        """The same on chosen samples only."""
        return self._mean(parameters, self.inputs[chosen], self.targets[chosen])

    def _mean(self, parameters: Parameters, inputs: Array, targets: Array) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(self.loss)(self.output(parameters, inputs), targets))


@lru_cache(maxsize=32)
def _compiled(output: Output, loss: Loss) -> tuple[Callable, Callable, Callable]:
    """(L, ∇L), a Hessian-vector product and many L, compiled once for each h and loss.

    Plain `jax.jit` on arrays: the solver calls these thousands of times and waits for each, and an `eqx.filter_jit`
    would spend longer on sorting its arguments than a small gradient takes.
    """

    def value(beta: Array, inputs: Array, targets: Array) -> Array:
        return Mean(inputs, targets, output, loss)(beta)

    def column(beta: Array, direction: Array, inputs: Array, targets: Array) -> Array:
        return jax.jvp(lambda b: jax.grad(value)(b, inputs, targets), (beta,), (direction,))[1]

    def values(betas: Array, inputs: Array, targets: Array) -> Array:
        return jax.lax.map(lambda b: value(b, inputs, targets), betas)

    return jax.jit(jax.value_and_grad(value)), jax.jit(column), jax.jit(values)


@dataclass(eq=False)
class Counts:
    """Gradients and Hessian-vector products spent."""

    gradients: int = 0
    products: int = 0


@dataclass(frozen=True, eq=False)
class Risk:
    """L, g = −∇L and columns of ∇²L at a β given as a numpy vector."""

    mean: Mean
    size: int
    counts: Counts = field(default_factory=Counts)

    @property
    def _run(self) -> tuple[Callable, Callable, Callable]:
        return _compiled(self.mean.output, self.mean.loss)

    def _cast(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values, dtype=self.mean.inputs.dtype)

    def force(self, beta: np.ndarray) -> np.ndarray:
        """g(β) = −∇L(β)."""
        return self.both(beta)[1]

    def both(self, beta: np.ndarray) -> tuple[float, np.ndarray]:
        """L(β) and g(β) = −∇L(β)."""
        self.counts.gradients += 1
        value, slope = self._run[0](self._cast(beta), self.mean.inputs, self.mean.targets)
        return float(value), -np.asarray(slope, dtype=float)

    def losses(self, betas: np.ndarray) -> np.ndarray:
        """L of many β, shape (time, coordinate) -> (time,); values only, no gradients."""
        rows, data = self._cast(betas), (self.mean.inputs, self.mean.targets)
        # In pieces of one shape, the last filled up: every run has another number of instants, and each would compile.
        filled = np.pad(rows, ((0, -len(rows) % PIECE), (0, 0)))
        found = [self._run[2](filled[at : at + PIECE], *data) for at in range(0, len(filled), PIECE)]
        return np.concatenate([np.zeros(0), *(np.asarray(piece, dtype=float) for piece in found)])[: len(rows)]

    def columns(self, beta: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Columns of the Hessian ∇²L(β), shape (coordinate, chosen): one product each."""
        self.counts.products += len(chosen)
        here, unit, data = self._cast(beta), self._cast(np.eye(self.size)), (self.mean.inputs, self.mean.targets)
        rows = [np.asarray(self._run[1](here, unit[i], *data)) for i in chosen]
        return np.stack(rows, axis=1).astype(float) if rows else np.zeros((self.size, 0))


def risk_of(model: ProductNetwork, task: Task, precision: str = "float64") -> Risk:
    """The risk of a model on a task, checked at β = 0.

    Refuses an output that does not fit the targets, and values or gradients that are not numbers.
    """
    mean = mean_of(model, task, precision)
    risk = Risk(mean, model.coordinates)
    try:
        value, force = risk.both(np.zeros(model.coordinates))
    except (TypeError, ValueError, IndexError) as error:
        raise SaddlesError(
            "h must take (β, batch) and give outputs with samples first. It or the loss failed on inputs of shape "
            f"{mean.inputs.shape} and targets of shape {mean.targets.shape}: {str(error).splitlines()[0]}"
        ) from error
    risk.counts.gradients = 0  # the check is not a cost of the method
    if not np.isfinite(value):
        labels = " Labels count from 0 and must be below the number of outputs." if mean.loss is cross_entropy else ""
        raise SaddlesError(
            f"h must be smooth at β = 0 (Definition 3.1); the loss there is {value}. Check the function and the "
            f"data.{labels}"
        )
    if not np.isfinite(force).all():
        raise SaddlesError(
            f"h must be twice differentiable at β = 0 (Definition 3.1); {int((~np.isfinite(force)).sum())} entries of "
            "the gradient there are not numbers. Replace roots, norms or divisions that are not smooth at 0."
        )
    return risk


def mean_of(model: object, task: Task, precision: str = "float64") -> Mean:
    """The loss as a JAX function of the model's parameters."""
    targets = np.asarray(task.targets)
    kind = precision if np.issubdtype(targets.dtype, np.floating) else targets.dtype  # labels stay integers
    inputs = jnp.asarray(np.asarray(task.inputs), dtype=precision)
    # One instance for all models of the same h, so that a program compiled for one serves the others.
    output = (model.canonical() if hasattr(model, "canonical") else model).output  # type: ignore[attr-defined]
    return Mean(inputs, jnp.asarray(targets, dtype=kind), as_it_is(output), as_it_is(task.loss))
