"""Linear regression in context: a prompt of N pairs (x, wᵀx) and a query, a new w in every prompt.

With β = (1/N) Σ y_n x_n every model of this lab answers ŷ = βᵀ M x_q with a matrix M of its own, so that the loss over
all prompts is a quadratic function of M and never needs a prompt.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.precision import in_double_precision
from saddles.solvers.two_layer import Cost, Matrix

Square = Float[Array | np.ndarray, "dim dim"]


class Population(Cost):
    """E (y_q − βᵀMx_q)² = tr Λ − 2 tr(ΛMΛ) + tr(S M Λ Mᵀ) over all prompts, with S = E Λ̂²."""

    covariance: Square
    moment: Square
    """S."""

    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        fit = jnp.sum((self.covariance @ self.covariance) * matrix)
        power = jnp.sum((self.moment @ matrix @ self.covariance) * matrix)
        return jnp.trace(self.covariance) - 2 * fit + power

    def gradient(self, matrix: Matrix) -> Matrix:
        return 2 * (self.moment @ matrix @ self.covariance - self.covariance @ self.covariance)


class Prompts(NamedTuple):
    """Drawn prompts: pairs (x, y) and a query with its answer, prompts first."""

    inputs: Array | np.ndarray
    outputs: Array | np.ndarray
    query: Array | np.ndarray
    answer: Array | np.ndarray


@arguments_explained
@dataclass(frozen=True, eq=False)
class Regression:
    """Prompts of N pairs (x, y = wᵀx) and a query x_q; x ~ N(0, Λ) and w ~ N(0, I), new in every prompt.

    The loss is E (y_q − ŷ)², without a factor ½. It is least at M* = S⁻¹Λ with S = Λ² + (Λ² + tr(Λ)Λ)/N.

    Args:
        covariance: Λ, a positive D × D matrix, or its D eigenvalues.
        prompt: N, the pairs in a prompt.
    """

    covariance: ArrayLike
    prompt: int

    def __post_init__(self) -> None:
        given = np.asarray(self.covariance, dtype=float)
        matrix = np.diag(given) if given.ndim == 1 else given
        square = matrix.ndim == 2 and matrix.size and matrix.shape[0] == matrix.shape[1]
        # Without an atol of its own, any matrix of entries below 1e-8 would count as symmetric.
        if (
            not square
            or not np.isfinite(matrix).all()
            or not np.allclose(matrix, matrix.T, atol=1e-8 * np.abs(matrix).max())
        ):
            raise SaddlesError.must_be("covariance", "a symmetric D × D matrix or D eigenvalues", self.covariance)
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise SaddlesError.must_be("covariance", "positive definite", self.covariance, "Leave out directions of 0")
        if int(self.prompt) != self.prompt or self.prompt < 1:
            raise SaddlesError.must_be("prompt", "a whole number of pairs, at least 1", self.prompt)
        object.__setattr__(self, "covariance", matrix)

    @property
    def matrix(self) -> np.ndarray:
        """Λ as a D × D array."""
        return np.asarray(self.covariance)

    @property
    def dim(self) -> int:
        """The dimension D of the inputs."""
        return len(self.matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of M."""
        return self.dim, self.dim

    @cached_property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues λ of Λ, largest first, and its eigenvectors in columns."""
        values, vectors = np.linalg.eigh(self.matrix)
        return values[::-1].copy(), vectors[:, ::-1].copy()

    @cached_property
    def cost(self) -> Population:
        """The exact loss of M."""
        covariance = self.matrix
        square = covariance @ covariance
        return Population(covariance, square + (square + np.trace(covariance) * covariance) / self.prompt)

    @cached_property
    def target(self) -> np.ndarray:
        """M*, where the loss is least."""
        return np.linalg.solve(self.cost.moment, self.matrix)

    @cached_property
    def plateaus(self) -> np.ndarray:
        """L_0, …, L_D, with the m largest λ learned: L_m = tr Λ − Σ_{d ≤ m} λ_d / (1 + (1 + tr Λ/λ_d)/N)."""
        values, _ = self.frame
        gains = values / (1 + (1 + values.sum() / values) / self.prompt)
        return values.sum() - np.concatenate([[0.0], np.cumsum(gains)])

    @in_double_precision
    def loss(self, matrix: np.ndarray) -> float:
        """The loss of a given M."""
        return float(self.cost(np.asarray(matrix, dtype=float)))

    def draw(self, count: int, seed: int = 0) -> Prompts:
        """Draw prompts.

        Args:
            count: how many.
            seed: draws inputs, tasks w and queries.
        """
        draw = np.random.default_rng([seed, 50])
        root = np.linalg.cholesky(self.matrix)
        inputs = draw.normal(size=(count, self.prompt, self.dim)) @ root.T
        query = draw.normal(size=(count, self.dim)) @ root.T
        weights = draw.normal(size=(count, self.dim))
        outputs = np.einsum("pnd,pd->pn", inputs, weights)
        return Prompts(inputs, outputs, query, np.sum(query * weights, axis=1))


def check_task(task: object) -> Regression:
    """Refuse what is not a task of this lab."""
    if not isinstance(task, Regression):
        name = task.__name__ if isinstance(task, type) else type(task).__name__
        raise SaddlesError(f"Attention of this lab is trained on incontext.Regression; got {name}.")
    return task
