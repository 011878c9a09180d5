"""Tasks of the linear lab: a cost of the matrix A = W2 W1, and the truth where it is known.

A task of your own is any object with `shape` (d_out, d_in), `cost` (a `Cost`) and `target` (the true matrix, or None).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.validation import arguments_explained, is_whole
from saddles.errors import SaddlesError, first_line
from saddles.protocols import ArrayLike
from saddles.runtime.functions import as_it_is
from saddles.runtime.precision import in_double_precision
from saddles.solvers.two_layer import Cost, Matrix

Number = Float[Array | np.ndarray, ""]


class Entrywise(Cost):
    """C(A) = Σ weight ⊙ (A − observed)²: denoising (constant weight) and completion (a mask)."""

    observed: Matrix
    weight: Matrix | Number

    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        return jnp.sum(self.weight * (matrix - self.observed) ** 2)

    def gradient(self, matrix: Matrix) -> Matrix:
        return 2 * self.weight * (matrix - self.observed)

    def flow(self, matrix: Matrix, time: Number) -> Matrix:
        """Every entry decays at its own rate."""
        return self.observed + jnp.exp(-2 * self.weight * time) * (matrix - self.observed)


class Correlated(Cost):
    """C(A) = tr((A − observed) Σ (A − observed)ᵀ) · scale: regression with input covariance Σ."""

    observed: Matrix
    covariance: Float[Array | np.ndarray, "column column"]
    scale: Number

    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        gap = matrix - self.observed
        return jnp.sum((gap @ self.covariance) * gap) * self.scale

    def gradient(self, matrix: Matrix) -> Matrix:
        return 2 * self.scale * (matrix - self.observed) @ self.covariance

    def flow(self, matrix: Matrix, time: Number) -> Matrix:
        """Every eigenvector of Σ decays at its own rate."""
        values, vectors = jnp.linalg.eigh(self.covariance)
        decay = jnp.exp(-2 * self.scale * values * time)
        return self.observed + (((matrix - self.observed) @ vectors) * decay[None, :]) @ vectors.T


class Measured(Cost):
    """C(A) = mean_i (⟨X_i, A⟩ − y_i)²: linear measurements."""

    probes: Float[Array | np.ndarray, "measurement entry"]
    values: Float[Array | np.ndarray, " measurement"]

    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        return jnp.mean((self.probes @ matrix.ravel() - self.values) ** 2)

    def gradient(self, matrix: Matrix) -> Matrix:
        residual = self.probes @ matrix.ravel() - self.values
        return (2 / self.values.size * (residual @ self.probes)).reshape(matrix.shape)


class Custom(Cost):
    """A user's function; its gradient comes from JAX."""

    function: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        return jnp.asarray(self.function(jnp.asarray(matrix)))


@runtime_checkable
class Shaped(Protocol):
    """Something with the shape of a matrix, such as a task."""

    @property
    def shape(self) -> tuple[int, int]:
        """(d_out, d_in)."""
        ...


@runtime_checkable
class MatrixTask(Shaped, Protocol):
    """What models and theories of this lab read of a task."""

    @property
    def cost(self) -> Cost:
        """C, as a JAX function with its gradient."""
        ...

    @property
    def target(self) -> ArrayLike | None:
        """The truth, for the test error; None where there is none."""
        ...


def check_task(task: object) -> MatrixTask:
    """Refuse what is not a task of this lab."""
    if isinstance(task, type) or not isinstance(task, MatrixTask):
        raise SaddlesError(
            "Tasks of this lab have `shape`, `cost` and `target`: Denoising, Completion, Sensing, Regression or "
            f"MatrixCost, or one of your own; got {task.__name__ if isinstance(task, type) else type(task).__name__}."
        )
    return task


def _check_sizes(dim: int, dim_out: int | None, rank: int, noise: float, spectrum: Sequence[float] | None) -> None:
    smallest = min(dim, dim if dim_out is None else dim_out)
    if smallest < 1:
        raise SaddlesError.must_be("dim", "at least 1, like `dim_out`", (dim, dim_out))
    if not 1 <= rank <= smallest:
        raise SaddlesError.must_be("rank", f"between 1 and the dimension {smallest}", rank)
    if not 0 <= noise < float("inf"):
        raise SaddlesError.must_be("noise", "a standard deviation of at least 0", noise)
    if spectrum is not None and (len(spectrum) != rank or not all(0 < a < float("inf") for a in spectrum)):
        raise SaddlesError.must_be("spectrum", f"rank = {rank} positive numbers", list(spectrum))


@dataclass(frozen=True)
class LowRank:
    """The truth A* and its noisy observation A* + E, common to the tasks below.

    A* = K^{-1/2} Σ u_i v_iᵀ with u_i, v_i ~ N(0, I) (paper, appendix G), or, with
    `spectrum` a_1..a_K, random singular vectors and singular values a_i √(d_in d_out).
    E has i.i.d. N(0, noise²) entries.

    Args:
        dim: d_in, the number of columns; also of rows unless `dim_out` is given.
        rank: K.
        noise: standard deviation of E's entries.
        seed: draws A* and E.
        dim_out: d_out, the number of rows.
        spectrum: the a_i of section 2.1.
    """

    dim: int
    rank: int
    noise: float = 1.0
    seed: int = 0
    dim_out: int | None = None
    spectrum: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check_sizes(self.dim, self.dim_out, self.rank, self.noise, self.spectrum)

    @property
    def shape(self) -> tuple[int, int]:
        """(d_out, d_in)."""
        return (self.dim if self.dim_out is None else self.dim_out, self.dim)

    @cached_property
    def target(self) -> np.ndarray:
        """A*, the matrix to recover."""
        rows, columns = self.shape
        draw = np.random.default_rng([self.seed, 0])
        u, v = draw.normal(size=(rows, self.rank)), draw.normal(size=(columns, self.rank))
        if self.spectrum is None:
            return u @ v.T / np.sqrt(self.rank)
        left, right = np.linalg.qr(u)[0], np.linalg.qr(v)[0]
        return (left * np.asarray(self.spectrum) * np.sqrt(rows * columns)) @ right.T

    @cached_property
    def observed(self) -> np.ndarray:
        """A* + E."""
        return self.target + self.noise * np.random.default_rng([self.seed, 1]).normal(size=self.shape)


@arguments_explained
@dataclass(frozen=True)
class Denoising(LowRank):
    """C(A) = ‖A − (A*+E)‖²_F / (d_in d_out): the paper's task."""

    @cached_property
    def cost(self) -> Cost:
        """The cost as a JAX function."""
        return Entrywise(self.observed, np.asarray(1 / self.observed.size))


@arguments_explained
@dataclass(frozen=True)
class Completion(LowRank):
    """C(A) = mean of (A − A* − E)² over the entries seen: matrix completion.

    Args:
        fraction: share of entries that are seen, drawn by `seed`.
    """

    fraction: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction <= 1:
            raise SaddlesError.must_be("fraction", "between 0 and 1", self.fraction)

    @cached_property
    def mask(self) -> np.ndarray:
        """1 where an entry is seen; at least one is."""
        draw = np.random.default_rng([self.seed, 2]).random(self.shape)
        # With a tiny fraction the smallest draw is the one entry that is seen: a cost of nothing has no minimum.
        return (draw <= max(self.fraction, float(draw.min()))).astype(float)

    @cached_property
    def cost(self) -> Cost:
        """The cost as a JAX function."""
        return Entrywise(self.observed, self.mask / self.mask.sum())


@arguments_explained
@dataclass(frozen=True)
class Sensing(LowRank):
    """C(A) = mean_i (⟨X_i, A⟩ − ⟨X_i, A*⟩ − e_i)²: matrix sensing.

    Args:
        measurements: how many X_i, with i.i.d. N(0, 1/(d_in d_out)) entries; e_i ~ N(0, noise²).
    """

    measurements: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measurements < 1:
            raise SaddlesError.must_be("measurements", "at least 1", self.measurements)

    @cached_property
    def probes(self) -> np.ndarray:
        """The X_i as rows, shape (measurement, d_out·d_in)."""
        size = self.target.size
        return np.random.default_rng([self.seed, 2]).normal(size=(self.measurements, size)) / np.sqrt(size)

    @cached_property
    def cost(self) -> Cost:
        """The cost as a JAX function."""
        noise = self.noise * np.random.default_rng([self.seed, 3]).normal(size=self.measurements)
        return Measured(self.probes, self.probes @ self.target.ravel() + noise)


@arguments_explained
@dataclass(frozen=True, eq=False)
class Regression(LowRank):
    """C(A) = tr((A − A* − E) Σ (A − A* − E)ᵀ)/(d_in d_out): population regression.

    Args:
        covariance: Σ of the inputs, d_in × d_in, symmetric and positive semidefinite;
            None is the identity, which is `Denoising`.
    """

    covariance: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covariance is None:
            return
        given = np.asarray(self.covariance, dtype=float)
        # Without an atol of its own, any matrix of entries below 1e-8 would count as symmetric.
        fits = given.shape == (self.dim, self.dim) and np.allclose(given, given.T, atol=1e-8 * np.abs(given).max())
        # rounding of X @ X.T may leave an eigenvalue of 0 slightly below it
        if not fits or np.linalg.eigvalsh(given)[0] < -1e-10 * np.abs(given).max():
            raise SaddlesError(
                f"`covariance` must be a symmetric positive semidefinite {self.dim}×{self.dim} matrix, such as "
                f"X @ X.T / n; got one of shape {given.shape}."
            )

    @cached_property
    def cost(self) -> Cost:
        """The cost as a JAX function."""
        sigma = np.eye(self.dim) if self.covariance is None else np.asarray(self.covariance, dtype=float)
        return Correlated(self.observed, sigma, np.asarray(1 / self.observed.size))


@arguments_explained
@dataclass(frozen=True, eq=False)
class MatrixCost:
    """Any cost: a JAX function from a d_out × d_in matrix to a number.

    Args:
        function: written with `jax.numpy`.
        shape: (d_out, d_in).
        target: the truth, if there is one, for the test error.
    """

    function: Callable[[Array], Array]
    shape: tuple[int, int]
    target: ArrayLike | None = field(default=None, repr=False)

    @in_double_precision
    def __post_init__(self) -> None:
        sizes = tuple(self.shape) if isinstance(self.shape, Sequence | np.ndarray) else ()
        if len(sizes) != 2 or not all(is_whole(size) and size >= 1 for size in sizes):
            raise SaddlesError.must_be("shape", "two whole numbers of at least 1, (d_out, d_in)", self.shape)
        try:
            value = jax.eval_shape(self.function, jax.ShapeDtypeStruct(self.shape, jnp.float64))
        except Exception as error:  # the function is the user's: it may raise anything
            told = first_line(error).rstrip(".")
            raise SaddlesError(
                f"`function` must be a JAX function of a matrix, written with jax.numpy; it fails on one of shape "
                f"{self.shape} ({type(error).__name__}: {told})."
            ) from error
        if getattr(value, "shape", None) != ():
            raise SaddlesError(
                f"`function` must return one number; it returns shape {getattr(value, 'shape', '?')}. "
                "Sum or average it."
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise SaddlesError(
                f"`function` must return a real number, which has a gradient; it returns the type {value.dtype}."
            )
        if self.target is not None:
            truth = np.asarray(self.target, dtype=float)
            if truth.shape != sizes or not np.isfinite(truth).all():
                raise SaddlesError.must_be("target", f"a finite matrix of shape {sizes}, or None", self.target)

    @property
    def cost(self) -> Cost:
        """The cost as a JAX function."""
        return Custom(as_it_is(self.function))
