"""Three parametrisations of one attention layer: diagonal K and Q, full K and Q, and W = KQᵀ itself."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.protocols import AXIS


def _check_scale(scale: Any) -> None:
    size = np.asarray(scale, dtype=float)
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise SaddlesError.about(f"scale={scale!r} came", "a positive number is needed", "try 0.01")


@dataclass(frozen=True, eq=False)
class DiagonalAttention:
    """K = diag(ξ_k), Q = diag(ξ_q), β = ξ_k ⊙ ξ_q, started at ξ_k = √2 ω₀, ξ_q = 0 (paper, (5)).

    Args:
        scale: ω₀, any positive number, or an array with one a coordinate. A list adds the axis `scale`.
    """

    scale: Any = field(default=0.1, metadata=AXIS)

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def omega(self, dim: int) -> np.ndarray:
        """ω₀, shape (coordinate,)."""
        size = np.asarray(self.scale, dtype=float)
        if size.ndim and size.shape != (dim,):
            raise SaddlesError.about(
                f"scale of shape {size.shape} came", f"the data have {dim} coordinates", "give one number"
            )
        return np.broadcast_to(size, (dim,))


@dataclass(frozen=True, eq=False)
class FactoredAttention:
    """Full K and Q of shape (dim, rank), W = KQᵀ.

    Args:
        rank: d_e, columns of K and Q; None is dim.
        scale: standard deviation of the initial entries. A list adds the axis `scale`.
        weights: K(0) and Q(0) instead of a draw; `scale` multiplies them.
    """

    rank: int | None = None
    scale: Any = field(default=1e-3, metadata=AXIS)
    weights: tuple[Any, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if self.rank is not None and (int(self.rank) != self.rank or self.rank < 1):
            raise SaddlesError.about(
                f"rank={self.rank!r} came", "a whole number of at least 1 is needed", "None is dim"
            )

    def start(self, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """K(0) and Q(0)."""
        columns = self.rank or dim
        if self.weights is None:
            draw = np.random.default_rng([seed, 61])
            return self.scale * draw.normal(size=(dim, columns)), self.scale * draw.normal(size=(dim, columns))
        key, query = (float(self.scale) * np.asarray(part, dtype=float) for part in self.weights)
        if key.shape != query.shape or key.ndim != 2 or len(key) != dim:
            raise SaddlesError.about(
                f"weights of shapes {key.shape} and {query.shape} came", f"both have {dim} rows and as many columns",
                "give K and Q",
            )  # fmt: skip
        return key, query


@dataclass(frozen=True, eq=False)
class JointAttention:
    """W trained as one matrix, from W = 0."""


def aligned_weights(task: Any, rank: int | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """K(0) and Q(0) with the alignment property (Definition 5.1) and (5) with ω₀ = 1: K = √2 U_K Vᵀ, Q = 0.

    U_K has the directions of the optimal tokens in its first columns and completes them at random; V is random.
    """
    n, _, dim = task.shape
    columns = rank or dim
    if n > dim or columns < dim:
        raise SaddlesError.about(
            f"{n} sequences, {dim} coordinates and rank {columns} came",
            "alignment needs n ≤ dim ≤ rank",
            "raise the rank",
        )
    draw = np.random.default_rng([seed, 62])
    left = frames(task, seed)[0]
    right = np.linalg.qr(draw.normal(size=(columns, columns)))[0]
    return np.sqrt(2.0) * left @ right[:, :dim].T, np.zeros((dim, columns))


def frames(task: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Orthogonal U_K and U_Q of (7): first the optimal tokens' and the queries' directions, then anything."""
    n, _, dim = task.shape
    filler = np.random.default_rng([seed, 63]).normal(size=(dim, dim))
    return tuple(_complete(rows, filler[:, n:]) for rows in (task.optimal_tokens, task.z))  # type: ignore[return-value]


def _complete(rows: np.ndarray, filler: np.ndarray) -> np.ndarray:
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    whole, triangle = np.linalg.qr(np.concatenate([directions.T, filler], axis=1))
    return whole * np.sign(np.diag(triangle))
