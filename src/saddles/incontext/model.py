"""Attention with merged or separate keys and queries, and one wide head; all of it answers βᵀ M x_q.

Entries of the full (D+1) × (D+1) matrices outside these blocks start at zero and, for the loss over all prompts, stay
there (w → −w changes their sign and nothing else).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained, check_count, check_keep
from saddles.errors import SaddlesError
from saddles.incontext.neurons import Output, Sum
from saddles.incontext.observe import KEEPABLE, to_trajectory
from saddles.incontext.simulate import dynamics_of
from saddles.incontext.task import Regression, check_task
from saddles.protocols import AXIS
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Dynamics, check_method, horizon_of
from saddles.solvers.two_layer import drawn

Numbers = float | Sequence[float] | np.ndarray


def check_positive(name: str, values: Numbers) -> None:
    """A positive number, or a list of them."""
    for value in np.atleast_1d(np.asarray(values, dtype=float)):
        if not 0 < value < np.inf:
            raise SaddlesError.must_be(name, "positive (at 0 nothing ever moves)", float(value))


class Attention(ABC):
    """What the models have in common: a start, and training under the exact loss or on drawn prompts."""

    kind: ClassVar[str]
    keepable: ClassVar[tuple[str, ...]] = KEEPABLE

    @abstractmethod
    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, ...]:
        """The initial weights."""

    @abstractmethod
    def directions(self, task: Regression) -> int:
        """How many directions it can learn."""

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
        """Train by `GradientFlow` or `GradientDescent` on the exact loss, by `PromptDescent`, or by your own method.

        Variables are `loss` (exact, over all prompts), `matrix` (M), `strength` (uᵀMu of the eigenvectors u of Λ, from
        the largest eigenvalue down) and `head_norm`. A flow without times runs until 1 % of the last possible drop of
        the loss is left.

        Args:
            keep: ("weights",) also keeps the heads' weights.
        """
        problem, mover = check_task(task), check_method(method, self, "GradientFlow, GradientDescent or PromptDescent")
        with on_device(device):
            path = mover.follow(self._dynamics(problem, keep, seed, precision), times)
        return to_trajectory(path, self, problem, kind="simulated", method=method, seed=seed)

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved; None where the method's steps decide."""
        problem, mover = check_task(task), check_method(method, self)
        with on_device(device):
            return horizon_of(mover, self._dynamics(problem, (), seed, precision))

    def _dynamics(self, task: Regression, keep: Sequence[str] | None, seed: int, precision: str) -> Dynamics:
        kept = check_keep(keep or (), self.keepable)
        return dynamics_of(self.start(task, seed), task, self.kind, self.directions(task), kept, seed, precision)


@arguments_explained
@dataclass(frozen=True)
class Merged(Attention):
    """H heads with one matrix for keys and queries each: M = Σ v_i U_i.

    v_i ~ N(0, scale²), and the entries of U_i are N(0, (scale/D)²), so that ‖U_i‖ is about `scale`.

    Args:
        heads: H.
        scale: size of the start; a list adds the axis `scale`.
    """

    heads: int
    scale: Numbers = field(metadata=AXIS)
    kind: ClassVar[str] = "merged"

    def __post_init__(self) -> None:
        check_count("heads", self.heads, 1)
        check_positive("scale", self.scale)

    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, ...]:
        """v (head,) and U (head, D, D)."""
        draw, size = np.random.default_rng([seed, 51]), float(np.asarray(self.scale))
        value = size * draw.normal(size=self.heads)
        return value, size / task.dim * draw.normal(size=(self.heads, task.dim, task.dim))

    def directions(self, task: Regression) -> int:
        return task.dim

    def neurons(self, task: object, seed: int = 0) -> Sum:
        """Heads of degree two: θ = (v, U)."""
        return _as_sum(self, check_task(task), seed, _MergedOutput(check_task(task).dim), 2)


@arguments_explained
@dataclass(frozen=True)
class Separate(Attention):
    """H heads with keys and queries of rank R: M = Σ v_i K_i Q_iᵀ, K_i and Q_i being D × R.

    v_i ~ N(0, scale²), and the entries of K_i and Q_i are N(0, scale²/D), so that their columns are about `scale` long.

    Args:
        heads: H.
        rank: R.
        scale: size of the start; a list adds the axis `scale`.
    """

    heads: int
    rank: int
    scale: Numbers = field(metadata=AXIS)
    kind: ClassVar[str] = "separate"

    def __post_init__(self) -> None:
        check_count("heads", self.heads, 1)
        check_count("rank", self.rank, 1)
        check_positive("scale", self.scale)

    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, ...]:
        """v (head,), K and Q (head, D, R)."""
        draw, size = np.random.default_rng([seed, 52]), float(np.asarray(self.scale))
        shape = (self.heads, task.dim, self.rank)
        value = size * draw.normal(size=self.heads)
        return value, *(size / np.sqrt(task.dim) * draw.normal(size=(2, *shape)))

    def directions(self, task: Regression) -> int:
        return self.heads * self.rank

    def neurons(self, task: object, seed: int = 0) -> Sum:
        """Heads of degree three: θ = (v, K, Q)."""
        return _as_sum(self, check_task(task), seed, _SeparateOutput(check_task(task).dim), 3)


class _MergedOutput(Output):
    dim: int = eqx.field(static=True)

    def __call__(self, theta: Float[Array, " weight"]) -> Array:
        return theta[0] * theta[1:].reshape(self.dim, self.dim)


class _SeparateOutput(Output):
    dim: int = eqx.field(static=True)

    def __call__(self, theta: Float[Array, " weight"]) -> Array:
        key, query = theta[1:].reshape(2, self.dim, -1)
        return theta[0] * (key @ query.T)


def _as_sum(model: "Merged | Separate", task: Regression, seed: int, output: Output, degree: int) -> Sum:
    size = float(np.asarray(model.scale))
    parts = [np.asarray(part).reshape(model.heads, -1) for part in model.start(task, seed)]
    cost = jax.tree.map(jnp.asarray, task.cost)
    return Sum(output, cost, degree, np.concatenate(parts, axis=1) / size, float(np.log(size)))


@arguments_explained
@dataclass(frozen=True)
class Wide(Attention):
    """One head with v = 1 and keys and queries of any width: M = K Qᵀ, entries N(0, variance).

    Exactly the two-layer network of lab `linear` with this loss: lazy where singular values of M are below σ²w, active
    above. It is trained through a factor of size 2D, so that a width of 10¹² costs what a width of 2D costs.

    Args:
        width: w; a list adds the axis `width`.
        variance: σ²; a list adds the axis `variance`.
    """

    width: Numbers = field(metadata=AXIS)
    variance: Numbers = field(metadata=AXIS)
    kind: ClassVar[str] = "wide"
    keepable: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for width in np.atleast_1d(np.asarray(self.width, dtype=float)):
            if not (width >= 1 and width == np.floor(width)):
                raise SaddlesError.must_be("width", "a whole number of at least 1", float(width))
        check_positive("variance", self.variance)

    @property
    def threshold(self) -> float:
        """σ²w."""
        return float(np.asarray(self.variance)) * float(np.asarray(self.width))

    def start(self, task: Regression, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The initial factor of [Q; K] as its two blocks, D × min(w, 2D) each."""
        factor = drawn(2 * task.dim, int(np.asarray(self.width)), np.random.default_rng([seed, 53]))
        factor *= np.sqrt(float(np.asarray(self.variance)))
        return factor[: task.dim], factor[task.dim :]

    def directions(self, task: Regression) -> int:
        return int(min(float(np.asarray(self.width)), task.dim))
