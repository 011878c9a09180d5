"""Whether some W separates: the distance of 0 from the convex hull of the constraints."""

import numpy as np
from jaxtyping import Float

Constraints = Float[np.ndarray, "constraint coordinate"]
Columns = Float[np.ndarray, "row constraint"]
Shares = Float[np.ndarray, "constraint"]

INDEPENDENT = 1e-14
"""Eigenvalues of the Gram matrix of unit constraints below this part of the largest are rounding."""

ROUNDING = 1e-12
"""Cosines below this are rounding: sums of up to 1e4 products, each with an error of 1e-16."""


def separation(left: Constraints, right: Constraints, diagonal: bool) -> float:
    """The largest margin of a W (a diagonal one) with ‖W‖_F = 1, 0 if none separates.

    It is the distance of 0 from the convex hull of the constraints, whose nearest point is the best W.
    """
    return hull(factor(left, right, diagonal))[0]


def factor(left: Constraints, right: Constraints, diagonal: bool) -> Columns:
    """Columns with the inner products of the constraints, in as few rows as possible."""
    if diagonal:
        return (left * right).T
    if left.shape[1] ** 2 <= len(left):
        return np.einsum("kd,ke->dek", left, right).reshape(-1, len(left))
    # The eigenvalues are cut relative to the largest, so a short constraint must be brought to length 1 first: the cut
    # would take it for rounding.
    sizes = [np.linalg.norm(side, axis=1) for side in (left, right)]
    one, two = (side / np.where(size > 0, size, 1.0)[:, None] for side, size in zip((left, right), sizes, strict=True))
    values, vectors = np.linalg.eigh((one @ one.T) * (two @ two.T))
    kept = values > INDEPENDENT * values[-1]
    return np.sqrt(values[kept])[:, None] * vectors[:, kept].T * sizes[0] * sizes[1]


def hull(columns: Columns) -> tuple[float, Shares]:
    """The distance of 0 from the convex hull of some columns, and the weights (sum 1) of the nearest point.

    The distance is positive only with a certificate: every column has a positive cosine with the nearest point, which
    therefore separates them from 0. No length enters that verdict.
    """
    from scipy.optimize import nnls  # here, so that a list of experiments need not wait for it

    lengths = np.linalg.norm(columns, axis=0)
    if not lengths.all():  # a column is 0 itself
        return 0.0, (lengths == 0) / np.count_nonzero(lengths == 0)
    # With unit columns u_k and m_k = λ_k |a_k| the nearest point is min |Σm_k u_k|² on Σ m_k/|a_k| = 1 or, but for its
    # scale, min |Σm_k u_k|² + (1 − Σ m_k |a|_least/|a_k|)². The distance is at most |a|_least, and at least that times
    # the distance of the unit columns, so no number here is small only because some column is short.
    unit, shortness = columns / lengths, lengths.min() / lengths
    stacked = np.vstack([unit, shortness])
    # SciPy's limit of 3 iterations per column is too few for nearly parallel columns.
    shares = nnls(stacked, np.append(np.zeros(len(columns)), 1.0), maxiter=50 * columns.shape[1])[0]
    nearest = unit @ shares
    size, total = float(np.linalg.norm(nearest)), float(shares @ shortness)
    weights = shares * shortness / total
    if not (nearest @ unit).min() > ROUNDING * size:
        return 0.0, weights
    return size / total * float(lengths.min()), weights
