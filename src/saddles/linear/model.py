"""The two-layer linear network, at any width for the price of a narrow one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.protocols import AXIS


@dataclass(frozen=True, eq=False)
class TwoLayer:
    """A = W2 W1 with W1: w × d_in, W2: d_out × w, entries i.i.d. N(0, variance).

    Training sees the weights only through ZZᵀ with Z = [W1ᵀ; W2] (r × w, r = d_in + d_out):
    a step of gradient descent multiplies Z from the left and A is a block of ZZᵀ. So Z may be
    replaced by any factor L with LLᵀ = ZZᵀ, exactly. For w > r the factor is drawn directly
    (Bartlett: lower triangular, χ with w − i degrees of freedom on the diagonal, N(0,1) below,
    times σ), and a width of 10¹² costs what a width of r costs.

    Args:
        width: w; a list adds the axis `width`.
        variance: σ²; a list adds the axis `variance`.
        weights: given (W1, W2) instead of a draw; see `from_weights`.
    """

    width: float | Sequence[float] = field(metadata=AXIS)
    variance: float | Sequence[float] = field(metadata=AXIS)
    weights: tuple[Any, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for width in np.atleast_1d(np.asarray(self.width, dtype=float)):
            if not (width >= 1 and width == np.floor(width)):
                raise SaddlesError.about(f"width={width:g} came", "a whole number of at least 1 is needed", "round it")
        for variance in np.atleast_1d(np.asarray(self.variance, dtype=float)):
            if not 0 < variance < np.inf:
                raise SaddlesError.about(
                    f"variance={variance:g} came",
                    "it must be positive (at 0 the network never leaves the saddle)",
                    "try 1 / width",
                )

    @classmethod
    def from_weights(cls, W1: Any, W2: Any, variance: float | None = None) -> "TwoLayer":
        """A network with given weights, W1: w × d_in and W2: d_out × w.

        The theories need σ²: where it is not given it is the mean square of all entries.
        """
        first, second = np.asarray(W1, dtype=float), np.asarray(W2, dtype=float)
        if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
            raise SaddlesError.about(
                f"W1 of shape {first.shape} and W2 of shape {second.shape} came",
                "W1 is width × d_in and W2 is d_out × width",
                "transpose one of them",
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise SaddlesError.about("weights with NaN or infinity came", "finite numbers are needed", "check them")
        if variance is None:
            variance = float((np.sum(first**2) + np.sum(second**2)) / (first.size + second.size))
        return cls(first.shape[0], variance, (first, second))

    @property
    def threshold(self) -> float:
        """σ²w: singular values of A below it are lazy, above it active."""
        return float(np.asarray(self.variance)) * float(np.asarray(self.width))

    def start(self, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The initial factor as its two blocks (d_in × m, d_out × m), m = min(w, d_in + d_out).

        Args:
            shape: (d_out, d_in) of the task.
            seed: draws the weights; not used where they were given.
        """
        rows, columns = shape
        size, width = rows + columns, int(np.asarray(self.width))
        if self.weights is not None:
            factor = self._given(shape)
        elif width <= size:
            factor = np.random.default_rng([seed, 10]).normal(size=(size, width))
            factor *= np.sqrt(float(np.asarray(self.variance)))
        else:
            factor = bartlett(size, width, np.random.default_rng([seed, 10]))
            factor *= np.sqrt(float(np.asarray(self.variance)))
        return factor[:columns], factor[columns:]

    def _given(self, shape: tuple[int, int]) -> np.ndarray:
        assert self.weights is not None
        first, second = self.weights
        if (second.shape[0], first.shape[1]) != tuple(shape):
            raise SaddlesError.about(
                f"weights for a {second.shape[0]}×{first.shape[1]} matrix came",
                f"the task has shape {tuple(shape)}",
                "use a task of that shape",
            )
        stacked = np.concatenate([first.T, second])
        if stacked.shape[1] <= stacked.shape[0]:
            return stacked
        return np.asarray(np.linalg.qr(stacked.T, mode="r")).T


def bartlett(size: int, freedom: int, draw: np.random.Generator) -> np.ndarray:
    """A lower triangular L with LLᵀ distributed as ZZᵀ, Z a size × freedom standard Gaussian matrix."""
    factor = np.tril(draw.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(draw.chisquare(freedom - np.arange(size, dtype=float)))
    return factor
