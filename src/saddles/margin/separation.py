"""Whether some W separates: the distance of 0 from the convex hull of the constraints."""

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

Constraints = Float[np.ndarray, "constraint coordinate"]
Columns = Float[np.ndarray, "row constraint"]
Shares = Float[np.ndarray, "constraint"]

# A hull nearer to 0 than this part of its longest column contains 0, up to rounding.
INDEPENDENT = 1e-14
"""Eigenvalues of the Gram matrix below this part of the largest are rounding."""

TOUCHING = 1e-9


def separation(left: Constraints, right: Constraints, diagonal: bool) -> float:
    """The largest margin of a W (a diagonal one) with ‖W‖_F = 1, 0 if none separates.

    It is the distance of 0 from the convex hull of the constraints: min |Aλ|² + (1 − Σλ)² over λ ≥ 0 has its nearest
    point in the direction of Aλ.
    """
    return hull(factor(left, right, diagonal))[0]


def factor(left: Constraints, right: Constraints, diagonal: bool) -> Columns:
    """Columns with the inner products of the constraints, in as few rows as possible."""
    if diagonal:
        return (left * right).T
    if left.shape[1] ** 2 <= len(left):
        return np.einsum("kd,ke->dek", left, right).reshape(-1, len(left))
    gram = (left @ left.T) * (right @ right.T)
    values, vectors = np.linalg.eigh(gram)
    kept = values > INDEPENDENT * values[-1]
    return np.sqrt(values[kept])[:, None] * vectors[:, kept].T


def hull(columns: Columns) -> tuple[float, Shares]:
    """The distance of 0 from the convex hull of some columns, and the weights (sum 1) of the nearest point."""
    unit = np.linalg.norm(columns, axis=0).max()
    stacked = np.vstack([columns / unit, np.ones(columns.shape[1])])
    # SciPy's limit of 3 iterations per column is too few for nearly parallel columns.
    weights = nnls(stacked, np.append(np.zeros(len(columns)), 1.0), maxiter=50 * columns.shape[1])[0]
    weights = weights / weights.sum()
    nearest = columns @ weights
    distance = float(np.linalg.norm(nearest))
    # Every column reaches at least distance² along the nearest point. Where one does not reach half of that, the point
    # is not the nearest but rounding around 0, and 0 lies inside.
    least = float((nearest @ columns).min())
    return (distance if least > 0.5 * distance**2 and distance > TOUCHING * unit else 0.0), weights
