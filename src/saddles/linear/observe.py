"""What is measured along a run of the linear lab, and how it is labelled.

Measurement only: simulation and theory each bring their own dynamics to it.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import saddles.runtime.float64  # noqa: F401
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError

KEEPABLE = ("matrix", "gram", "alignment", "factor", "errors")
"""Large or costly variables that are kept on request; `errors` leaves out the singular values."""

KEPT_NUMBERS = 2_000_000
"""`matrix` is kept by default up to this many numbers."""

_DIMS = {
    "matrix": ("time", "row", "column"),
    "singular_value": ("time", "mode"),
    "alignment": ("time", "mode"),
    "gram_in": ("time", "column", "column_"),
    "gram_out": ("time", "row", "row_"),
    "factor_in": ("time", "column", "hidden"),
    "factor_out": ("time", "row", "hidden"),
    "loss": ("time",),
    "train_error": ("time",),
    "test_error": ("time",),
}


class Observer(eqx.Module):
    """Observes a matrix A, or a factor of it, at one instant."""

    cost: Any
    target: Any
    keep: tuple[str, ...] = eqx.field(static=True)
    columns: int = eqx.field(static=True)

    def matrix(self, matrix: Float[Array, "row column"]) -> dict[str, Array]:
        """Singular values, cost and errors of A."""
        found = {} if "errors" in self.keep else {"singular_value": jnp.linalg.svd(matrix, compute_uv=False)}
        found["loss"] = found["train_error"] = self.cost(matrix)
        if self.target is not None:
            found["test_error"] = jnp.mean((matrix - self.target) ** 2)
        if "matrix" in self.keep:
            found["matrix"] = matrix
        return found

    def factor(self, inner: Float[Array, "column hidden"], outer: Float[Array, "row hidden"]) -> dict[str, Array]:
        """The same of A = outer innerᵀ, and what only the factor knows."""
        matrix = outer @ inner.T
        found = self.matrix(matrix)
        if "gram" in self.keep:
            found |= {"gram_in": inner @ inner.T, "gram_out": outer @ outer.T}
        if "factor" in self.keep:
            found |= {"factor_in": inner, "factor_out": outer}
        if "alignment" in self.keep:
            left, value, right = jnp.linalg.svd(matrix, full_matrices=False)
            lengths = jnp.linalg.norm(outer.T @ left, axis=0) * jnp.linalg.norm(inner.T @ right.T, axis=0)
            found["alignment"] = value / lengths
        return found


def observer_of(task: Any, keep: Sequence[str] | None, instants: int, precision: str) -> Observer:
    """The observer for a task.

    Args:
        keep: names of `KEEPABLE`; None keeps `matrix` where it is small enough.
        instants: how many instants will be saved.
    """
    if keep is None:
        keep = ("matrix",) if instants * int(np.prod(task.shape)) <= KEPT_NUMBERS else ()
    unknown = [name for name in keep if name not in KEEPABLE]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(KEEPABLE)} can be kept", "use those names")
    target = None if task.target is None else np.asarray(task.target)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype=precision), Observer(task.cost, target, tuple(keep), task.shape[1])
    )


def check_finite(found: dict[str, Any], task: Any) -> None:
    """Refuse a cost that is not a number at the start."""
    if not np.isfinite(np.asarray(found["loss"])):
        raise SaddlesError.about(
            f"a cost of {float(found['loss'])} at the initial matrix came",
            "a finite number is needed",
            f"check the function and data of {type(task).__name__}",
        )


def to_trajectory(saved: dict[str, Any], times: Any, model: Any, task: Any, **facts: Any) -> Trajectory:
    """Give saved observations their names and provenance."""
    variables: dict[str, Any] = {name: (_DIMS[name], values) for name, values in saved.items()}
    variables |= {"threshold": ((), model.threshold), "hidden_units": ((), float(np.asarray(model.width)))}
    coords: dict[str, Any] = {}
    if "singular_value" in saved:
        coords["mode"] = np.arange(np.shape(saved["singular_value"])[1])
    if "step" in facts:
        coords["step"] = ("time", np.asarray(facts.pop("step")))
    return make_trajectory(
        variables, times, unit="gradient time", coords=coords, lab="linear", model=model, task=task, **facts
    )
