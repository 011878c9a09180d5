"""The networks of the lab: one layer, a symmetric pair of layers, and MLPs of any depth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from saddles.errors import SaddlesError

_ONE, _TWO, _MLP = 30, 31, 32
"""Tags that keep the draws of one seed apart."""


@dataclass(frozen=True, eq=False)
class OneLayer:
    """f(x) = W x.

    Args:
        weights: W(0), d × d in the network's frame; None draws U(−1/√d, 1/√d), as a linear layer
            of PyTorch does.
    """

    weights: Any = field(default=None, repr=False)

    def start(self, size: int, seed: int = 0) -> np.ndarray:
        """W(0) for a task of dimension `size`."""
        if self.weights is None:
            return np.random.default_rng([seed, _ONE]).uniform(-1, 1, size=(size, size)) / np.sqrt(size)
        return _square(self.weights, size, "weights")


@dataclass(frozen=True, eq=False)
class SymmetricTwoLayer:
    """f(x) = U Uᵀ x, section 4.2: d × d' factor U, Jacobian W = U Uᵀ.

    Args:
        weights: W(0), symmetric and positive semidefinite, d × d in the network's frame; or
        factor: U(0), d × d'.

    `uniform` and `gaussian` draw the factor instead.
    """

    weights: Any = field(default=None, repr=False)
    factor: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.factor is None):
            raise SaddlesError.about(
                "both or neither of weights and factor came", "exactly one of W(0) and U(0) is needed", "give factor"
            )

    @classmethod
    def uniform(cls, size: int, hidden: int, top: float, seed: int = 0) -> "SymmetricTwoLayer":
        """U(0) uniform on [0, top]: all entries of W(0) are positive."""
        return cls(factor=np.random.default_rng([seed, _TWO]).uniform(0, top, size=(size, hidden)))

    @classmethod
    def gaussian(cls, size: int, hidden: int, scale: float, seed: int = 0) -> "SymmetricTwoLayer":
        """U(0) with entries N(0, scale²), appendix E.2."""
        return cls(factor=scale * np.random.default_rng([seed, _TWO]).normal(size=(size, hidden)))

    def start(self, size: int) -> np.ndarray:
        """U(0) for a task of dimension `size`; of W(0), its symmetric square root."""
        if self.factor is not None:
            factor = np.asarray(self.factor, dtype=float)
            if factor.ndim != 2 or factor.shape[0] != size or not np.isfinite(factor).all():
                raise SaddlesError.about(
                    f"a factor of shape {factor.shape} came",
                    f"{size} rows of finite numbers are needed",
                    "transpose it",
                )
            return factor
        weights = _square(self.weights, size, "weights")
        values, vectors = np.linalg.eigh((weights + weights.T) / 2)
        top = max(float(np.abs(values).max()), 1e-300)
        if np.abs(weights - weights.T).max() > 1e-12 * top or values.min() < -1e-12 * top:
            raise SaddlesError.about(
                f"W(0) with least eigenvalue {values.min():.3g} came",
                "U Uᵀ is symmetric and positive semidefinite",
                "give factor=U(0)",
            )
        return vectors * np.sqrt(np.clip(values, 0, None))

    def product(self, size: int) -> np.ndarray:
        """W(0) = U(0) U(0)ᵀ, as it was given where it was."""
        if self.weights is not None:
            self.start(size)
            return np.asarray(self.weights, dtype=float)
        factor = self.start(size)
        return factor @ factor.T


@dataclass(frozen=True)
class MLP:
    """A fully connected network d → widths → d.

    Args:
        widths: sizes of the hidden layers; () is a single linear layer.
        activation: "linear" or "relu", between layers.
        bias: with biases. The text's theory has none; the authors' runs do.
        init: "pytorch" draws all of a layer from U(±1/√fan_in); "gaussian" draws weights from
            N(0, scale²) and sets biases to 0.
        scale: standard deviation for "gaussian".
    """

    widths: Sequence[int] = ()
    activation: str = "linear"
    bias: bool = False
    init: str = "pytorch"
    scale: float = 0.1

    def __post_init__(self) -> None:
        if self.activation not in ("linear", "relu"):
            raise SaddlesError.about(f"activation={self.activation!r} came", "linear or relu is run", "use one of them")
        if self.init not in ("pytorch", "gaussian"):
            raise SaddlesError.about(f"init={self.init!r} came", "pytorch or gaussian is drawn", "use one of them")
        if any(int(w) != w or w < 1 for w in self.widths):
            raise SaddlesError.about(
                f"widths={self.widths!r} came", "whole numbers of at least 1 are needed", "use () for one layer"
            )
        object.__setattr__(self, "widths", tuple(int(w) for w in self.widths))

    def start(self, size: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(weights out × in, biases) of each layer in the network's frame."""
        draw = np.random.default_rng([seed, _MLP])
        sizes = [size, *self.widths, size]
        layers = []
        for fan_in, fan_out in pairwise(sizes):
            if self.init == "gaussian":
                layers.append((self.scale * draw.normal(size=(fan_out, fan_in)), np.zeros(fan_out)))
                continue
            edge = 1 / np.sqrt(fan_in)
            weights, biases = draw.uniform(-edge, edge, (fan_out, fan_in)), draw.uniform(-edge, edge, fan_out)
            layers.append((weights, biases if self.bias else np.zeros(fan_out)))
        return layers


def _square(given: Any, size: int, name: str) -> np.ndarray:
    matrix = np.asarray(given, dtype=float)
    if matrix.shape != (size, size) or not np.isfinite(matrix).all():
        raise SaddlesError.about(
            f"{name} of shape {matrix.shape} came", f"finite {size} × {size} are needed", "match the task's dim"
        )
    return matrix
