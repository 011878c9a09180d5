"""What is measured along a run of the linear lab, and how it is labelled.

Measurement only: simulation and theory each bring their own dynamics to it.
"""

import warnings
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.core.validation import check_keep
from saddles.errors import SaddlesError
from saddles.linear.task import MatrixTask, Shaped
from saddles.solvers.dynamics import Path
from saddles.solvers.two_layer import Cost, Matrix

KEEPABLE = ("matrix", "gram", "alignment", "factor")
"""Large or costly variables that are kept on request; the last three need a factor of A."""

SKIPPABLE = ("singular_value",)
"""Variables that need not be computed: for a large network they cost more than the steps."""

ROUNDING = 30
"""Lengths below this many rounding errors of the longest are 0."""

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


@runtime_checkable
class Network(Protocol):
    """What theories and trajectories of this lab read of a model; `TwoLayer` is one."""

    @property
    def width(self) -> float | Sequence[float] | np.ndarray:
        """w, the number of hidden units."""
        ...

    @property
    def threshold(self) -> float:
        """σ²w."""
        ...

    def start(self, task: Shaped, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """W1ᵀ (d_in × m) and W2 (d_out × m), or a reduction with the same products."""
        ...


class Observer(eqx.Module):
    """Observes a matrix A, or a factor of it, at one instant."""

    cost: Cost
    target: Matrix | None
    columns: int = eqx.field(static=True)
    keep: tuple[str, ...] = eqx.field(static=True)
    skip: tuple[str, ...] = eqx.field(static=True, default=())

    def matrix(self, matrix: Matrix) -> dict[str, Array]:
        """Singular values, cost and errors of A."""
        seen = {} if "singular_value" in self.skip else {"singular_value": jnp.linalg.svd(matrix, compute_uv=False)}
        seen["loss"] = seen["train_error"] = self.cost(matrix)
        if self.target is not None:
            seen["test_error"] = jnp.mean((matrix - self.target) ** 2)
        if "matrix" in self.keep:
            seen["matrix"] = jnp.asarray(matrix)
        return seen

    def factor(self, inner: Float[Array, "column hidden"], outer: Float[Array, "row hidden"]) -> dict[str, Array]:
        """The same of A = outer innerᵀ, and what only the factor knows."""
        matrix = outer @ inner.T
        seen = self.matrix(matrix)
        if "gram" in self.keep:
            seen |= {"gram_in": inner @ inner.T, "gram_out": outer @ outer.T}
        if "factor" in self.keep:
            seen |= {"factor_in": inner, "factor_out": outer}
        if "alignment" in self.keep:
            left, value, right = jnp.linalg.svd(matrix, full_matrices=False)
            lengths = jnp.linalg.norm(outer.T @ left, axis=0) * jnp.linalg.norm(inner.T @ right.T, axis=0)
            # Modes that a narrow factor does not reach have lengths of rounding only: they are aligned with nothing.
            # Rounding is a few parts of the longest in every dimension, and lazy modes may be but 1e-5 of it.
            there = lengths > ROUNDING * jnp.finfo(lengths.dtype).eps * jnp.max(lengths)
            seen["alignment"] = jnp.where(there, value / jnp.where(there, lengths, 1.0), 0.0)
        return seen


def check_names(
    keep: Sequence[str] | None, skip: Sequence[str], keepable: Sequence[str] = KEEPABLE
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Refuse unknown names of variables to keep or to skip."""
    if keep is not None and "errors" in keep and not isinstance(keep, str):
        warnings.warn(
            'keep=("errors",) is now skip=("singular_value",), and the next release removes the old spelling.',
            DeprecationWarning,
            stacklevel=2,
        )
        keep, skip = [name for name in keep if name != "errors"], (*skip, "singular_value")
    if isinstance(skip, str) or set(skip) - set(SKIPPABLE):
        raise SaddlesError.must_be("skip", f"a list of names out of {', '.join(SKIPPABLE)}", skip)
    return None if keep is None else check_keep(keep, keepable), tuple(dict.fromkeys(skip))


def observer_of(
    task: MatrixTask,
    keep: Sequence[str] | None,
    instants: int,
    precision: str,
    skip: Sequence[str] = (),
    keepable: Sequence[str] = KEEPABLE,
) -> Observer:
    """The observer for a task.

    Args:
        keep: names of `keepable`; None keeps `matrix` where it is small enough.
        instants: how many instants will be saved.
        skip: names of `SKIPPABLE`, which are not computed.
    """
    kept, skipped = check_names(keep, skip, keepable)
    if kept is None:
        kept = ("matrix",) if instants * int(np.prod(task.shape)) <= KEPT_NUMBERS else ()
    target = None if task.target is None else np.asarray(task.target, dtype=float)
    observer = Observer(task.cost, target, task.shape[1], kept, skipped)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=precision), observer)


def check_finite(cost: Float[Array, ""], task: MatrixTask) -> None:
    """Refuse a cost that is not a number at the start."""
    if not np.isfinite(float(cost)):
        raise SaddlesError(
            f"The cost at the initial matrix must be a finite number; got {float(cost)}. "
            f"Check the function and data of {type(task).__name__}."
        )


def to_trajectory(
    path: Path,
    model: Network,
    task: MatrixTask,
    *,
    kind: str,
    seed: int | None,
    method: object = None,
    theory: object = None,
) -> Trajectory:
    """Give saved observations their names and provenance."""
    variables = {name: (_DIMS[name], values) for name, values in path.saved.items()}
    variables |= {
        "threshold": ((), np.asarray(model.threshold)),
        "hidden_units": ((), np.asarray(model.width, dtype=float)),
    }
    coords: dict[str, object] = dict(path.coords)
    if "singular_value" in path.saved:
        coords["mode"] = np.arange(path.saved["singular_value"].shape[1])
    return make_trajectory(
        variables,
        path.times,
        coords=coords,
        lab="linear",
        model=model,
        task=task,
        kind=kind,
        seed=seed,
        method=method,
        theory=theory,
        **path.facts,
    )
