"""Equation (1) of Tu, Aranguri, Jacot, A' = −√(AAᵀ+σ⁴w²I) G − G √(AᵀA+σ⁴w²I), through a factor.

It shares no dynamics with `saddles.solvers.two_layer`, the network that it predicts.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.solvers.two_layer import Matrix, transposed

Rows = Float[Array, "stacked direction"]
"""The factor as one stacked matrix: d_in rows for the inputs, then d_out for the outputs."""


def self_consistent_factor(matrix: np.ndarray, threshold: float) -> np.ndarray:
    """The stacked factor of [[Ĉ1, Aᵀ], [A, Ĉ2]].

    A mode (s, u, v) gives the columns (v, u)·√((h+s)/2) and (v, −u)·√((h−s)/2) with h = √(s²+σ⁴w²); directions
    outside the smaller side have weight √(σ²w).
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=True)
    rows, columns = matrix.shape
    modes = len(values)
    u, v = left[:, :modes], right[:modes].T
    height = np.hypot(values, threshold)
    plus = np.sqrt((height + values) / 2)
    minus = threshold / np.sqrt(2 * (height + values))  # √((h−s)/2) without the cancellation of h − s
    rest = np.sqrt(threshold)
    blocks = [
        np.concatenate([v * plus, u * plus]),
        np.concatenate([v * minus, -u * minus]),
        np.concatenate([right[modes:].T * rest, np.zeros((rows, columns - modes))]),
        np.concatenate([np.zeros((columns, rows - modes)), left[:, modes:] * rest]),
    ]
    return np.concatenate(blocks, axis=1)


def stacked_matrix(rows: Rows, columns: int) -> Matrix:
    """A = L_out L_inᵀ of the stacked factor L."""
    return rows[columns:] @ transposed(rows[:columns])


def stacked_slope(rows: Rows, gradient: Matrix, columns: int) -> Rows:
    """−[[0, Gᵀ], [G, 0]] L for the stacked factor L and G at its A."""
    return -jnp.concatenate([transposed(gradient) @ rows[columns:], gradient @ rows[:columns]])
