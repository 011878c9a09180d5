"""The loss L(β) of a model on a task, its gradient and Hessian columns, counted."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import saddles.runtime.float64  # noqa: F401
from saddles.errors import SaddlesError


class Mean(eqx.Module):
    """L = mean over samples of loss(h(β, inputs), target), for β or any other parameter."""

    inputs: Any
    targets: Any
    output: Any = eqx.field(static=True)
    loss: Any = eqx.field(static=True)

    def __call__(self, parameters: Any) -> Any:
        return self.on(parameters, self.inputs, self.targets)

    def on(self, parameters: Any, inputs: Any, targets: Any) -> Any:
        """The same on given samples."""
        return jnp.mean(jax.vmap(self.loss)(self.output(parameters, inputs), targets))


@lru_cache(maxsize=32)
def _compiled(output: Any, loss: Any) -> tuple[Any, Any, Any]:
    """(L, ∇L), a Hessian-vector product and many L, compiled once for each h and loss.

    Plain `jax.jit` on arrays: the solver calls these thousands of times and waits for each.
    """

    def value(beta: Any, inputs: Any, targets: Any) -> Any:
        return Mean(inputs, targets, output, loss)(beta)

    def column(beta: Any, direction: Any, inputs: Any, targets: Any) -> Any:
        return jax.jvp(lambda b: jax.grad(value)(b, inputs, targets), (beta,), (direction,))[1]

    def values(betas: Any, inputs: Any, targets: Any) -> Any:
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
    def _run(self) -> tuple[Any, Any, Any]:
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
        return np.asarray(self._run[2](self._cast(betas), self.mean.inputs, self.mean.targets), dtype=float)

    def columns(self, beta: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Columns of the Hessian ∇²L(β), shape (coordinate, chosen): one product each."""
        self.counts.products += len(chosen)
        here, unit, data = self._cast(beta), self._cast(np.eye(self.size)), (self.mean.inputs, self.mean.targets)
        found = [np.asarray(self._run[1](here, unit[i], *data)) for i in chosen]
        return np.stack(found, axis=1).astype(float) if found else np.zeros((self.size, 0))


def risk_of(model: Any, task: Any, precision: str = "float64") -> Risk:
    """The risk of a model on a task, checked at β = 0.

    Refuses an output that does not fit the targets, and values or gradients that are not numbers.
    """
    mean = mean_of(model, task, precision)
    risk = Risk(mean, model.coordinates)
    try:
        value, force = risk.both(np.zeros(model.coordinates))
    except (TypeError, ValueError, IndexError) as error:
        raise SaddlesError.about(
            f"h or the loss failed on inputs of shape {mean.inputs.shape} and targets of shape {mean.targets.shape} "
            f"({str(error).splitlines()[0]})",
            "h takes (β, batch) and gives outputs with samples first",
            "check the shapes",
        ) from error
    risk.counts.gradients = 0
    if not np.isfinite(value):
        raise SaddlesError.about(
            f"a loss of {value} at β = 0 came", "h must be smooth there (Definition 3.1)", "check the function and data"
        )
    if not np.isfinite(force).all():
        raise SaddlesError.about(
            f"a gradient with {int((~np.isfinite(force)).sum())} entries that are not numbers at β = 0 came",
            "h must be twice differentiable (Definition 3.1)",
            "replace roots, norms or divisions that are not smooth at 0",
        )
    return risk


def mean_of(model: Any, task: Any, precision: str = "float64") -> Mean:
    """The loss as a JAX function of the parameters."""
    targets = np.asarray(task.targets)
    kind = precision if np.issubdtype(targets.dtype, np.floating) else targets.dtype
    inputs = jnp.asarray(np.asarray(task.inputs), dtype=precision)
    output = (model.canonical() if hasattr(model, "canonical") else model).output
    return Mean(inputs, jnp.asarray(targets, dtype=kind), output, task.loss)
