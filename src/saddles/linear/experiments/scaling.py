"""Widths, variances and learning rates by the paper's scaling laws (appendix G)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from saddles import linear

if TYPE_CHECKING:
    from saddles.linear.model import TwoLayer

PAPER = "tu2024mixed"


def width(dim: int, gamma_w: float) -> int:
    """w = round(d^γ_w), at least 1."""
    return max(1, round(dim**gamma_w))


def network(dim: int, gamma_w: float, gamma_variance: float) -> "TwoLayer":
    """The network of width d^γ_w and variance σ² = d^γ_σ²."""
    return linear.TwoLayer(width(dim, gamma_w), dim**gamma_variance)


def rate(dim: int, gamma_w: float, gamma_variance: float, target: np.ndarray, c: float) -> float:
    """η = d²/(c w σ²) where γ_w+γ_σ² > 1, else d²/(c ‖A*‖_op).

    The paper's c is 50, or 2 to 5 for speed; c = 2 diverges just below the boundary, where
    the lazy multiplier is 1 − 4/c.
    """
    return rates(dim, [(gamma_w, gamma_variance)], target, c)[0]


def rates(dim: int, gammas: Sequence[tuple[float, float]], target: np.ndarray, c: float) -> list[float]:
    """`rate` for several (γ_w, γ_σ²) and one A*, whose norm takes longer than all the rest."""
    size = float(np.linalg.norm(target, 2))
    return [
        dim**2 / (c * (network(dim, gamma_w, gamma_variance).threshold if gamma_w + gamma_variance > 1 else size))
        for gamma_w, gamma_variance in gammas
    ]
