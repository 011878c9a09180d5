"""The flow of a product W2 W1 under a cost of it, through a factor of any width.

Lab `linear` trains such networks; the keys and queries of one wide attention head are one, too.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Matrix = Float[Array | np.ndarray, "row column"]

Factor = tuple[Float[Array, "column hidden"], Float[Array, "row hidden"]]
"""The blocks W1ᵀ (d_in × m) and W2 (d_out × m), or their reduction."""


class Cost(eqx.Module):
    """A differentiable function C of a d_out × d_in matrix, with its gradient G = ∇C.

    Data are NumPy arrays, so that a cost may be made inside a traced function. A cost that knows the solution of
    A' = −∇C(A) has it as `flow(matrix, time)`; `Lazy` is then in closed form.
    """

    @abstractmethod
    def __call__(self, matrix: Matrix) -> Float[Array, ""]:
        """C(A)."""

    def gradient(self, matrix: Matrix) -> Matrix:
        """∇C(A), by automatic differentiation unless a cost knows better."""
        return jax.grad(lambda a: self(a))(matrix)


def transposed(matrix: Matrix) -> Float[Array, "column row"]:
    """The transpose, written out in memory before it is used.

    XLA on a CPU folds a transpose into the product that uses it, and that product then takes about twice as long
    (measured at 200 × 400 in float64).
    """
    return jax.lax.optimization_barrier(matrix.T)


def represented(state: Factor) -> Matrix:
    """A = W2 W1."""
    inner, outer = state
    return outer @ transposed(inner)


def pushed(state: Factor, gradient: Matrix) -> Factor:
    """−∇L for a given G = ∇C(A): W1' = −W2ᵀG and W2' = −G W1ᵀ, on the transposed first layer."""
    inner, outer = state
    return -(transposed(gradient) @ outer), -jnp.matmul(gradient, inner)


def drawn(size: int, width: int, draw: np.random.Generator) -> np.ndarray:
    """A factor L (size × at most size) with LLᵀ distributed as ZZᵀ, Z a size × width standard Gaussian matrix."""
    return draw.normal(size=(size, width)) if width <= size else bartlett(size, width, draw)


def bartlett(size: int, freedom: int, draw: np.random.Generator) -> np.ndarray:
    """A lower triangular L with LLᵀ distributed as ZZᵀ, Z a size × freedom standard Gaussian matrix."""
    factor = np.tril(draw.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(draw.chisquare(freedom - np.arange(size, dtype=float)))
    return factor
