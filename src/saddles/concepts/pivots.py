"""The pivot law: when each major entry of the symmetric pair grows, from its start alone.

Found for this project; not in the paper.
"""

from collections.abc import Callable

import numpy as np

from saddles.errors import SaddlesError

LOST_IN_PRODUCT = 1e-13
"""A pivot of W below this part of w_pp is rounding of the elimination: its rank is lost."""

LOST_IN_FACTOR = 1e-26
"""The same for pivots of U, whose rounding is that of row norms and is squared."""


def pivots(weights: np.ndarray, strengths: np.ndarray, order: str = "greedy") -> tuple[np.ndarray, np.ndarray]:
    """When each major entry of W = UUᵀ grows, from W(0) alone.

        t_p = log(1 / S_p) / (4 a_p) in gradient time,

    S_p the pivot of W(0) (squared Cholesky diagonal) once the concepts learned before p are
    eliminated: while W is small W(t) = e^{2At} W(0) e^{2At}, whose pivots are e^{4 a_p t} S_p.

    Args:
        weights: W(0) in the concepts' frame, shape (..., d, d); positive semidefinite.
        strengths: a, shape (..., s) with s ≤ d.
        order: "signal" eliminates by descending a (ties: the lower index first). "greedy" always
            eliminates next the concept whose own t is the earliest, which matters where a strong
            concept starts from nearly nothing.

    Returns:
        (times, pivots), shapes (..., s). A pivot below 1e-13 of w_pp(0) is taken for 0 and its time
        is infinite: W(0) has no rank left for p, and the flow preserves rank. `pivots_of_factor`
        resolves pivots down to 1e-26.
    """
    a = np.asarray(strengths, dtype=float)
    s = a.shape[-1]
    W = np.array(np.asarray(weights, dtype=float)[..., :s, :s]).reshape(-1, s, s)

    def eliminate(W: np.ndarray, p: np.ndarray, pivot: np.ndarray) -> np.ndarray:
        row = W[np.arange(len(W)), p]
        scale = np.where(pivot > 0, 1 / np.where(pivot > 0, pivot, 1.0), 0.0)
        return W - scale[:, None, None] * row[:, :, None] * row[:, None, :]

    return _eliminate(W, a, order, lambda W: np.diagonal(W, axis1=1, axis2=2), eliminate, LOST_IN_PRODUCT)


def pivots_of_factor(factor: np.ndarray, strengths: np.ndarray, order: str = "greedy") -> tuple[np.ndarray, np.ndarray]:
    """The same from U(0), shape (..., d, hidden), by orthogonalising its rows: no squares, no lost digits."""
    a = np.asarray(strengths, dtype=float)
    s = a.shape[-1]
    U = np.array(np.asarray(factor, dtype=float)[..., :s, :])
    U = U.reshape(-1, s, U.shape[-1])
    size = np.abs(U).max(axis=(1, 2))  # taken out: the squares of entries below 1e-162 would be 0
    U /= np.where(size > 0, size, 1.0)[:, None, None]

    def eliminate(U: np.ndarray, p: np.ndarray, pivot: np.ndarray) -> np.ndarray:
        row = U[np.arange(len(U)), p]
        norm = np.sqrt(np.where(pivot > 0, pivot, 1.0))[:, None]
        unit = np.where(pivot[:, None] > 0, row / norm, 0.0)
        for _ in range(2):  # the second pass takes out what rounding left of the first (twice is enough)
            U = U - np.einsum("nih,nh->ni", U, unit)[:, :, None] * unit[:, None, :]
        return U

    return _eliminate(U, a, order, lambda U: np.sum(U**2, axis=2), eliminate, LOST_IN_FACTOR, size)


def _eliminate(
    state: np.ndarray,
    strengths: np.ndarray,
    order: str,
    read: Callable[[np.ndarray], np.ndarray],
    eliminate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    tolerance: float,
    size: np.ndarray | float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Take one concept after another out of a stack of states; `read` gives the pivots that are left, over size²."""
    if order not in ("signal", "greedy"):
        raise SaddlesError.must_be("order", "'signal' or 'greedy'", order)
    a = strengths.reshape(-1, strengths.shape[-1])
    rows, size = np.arange(len(a)), np.broadcast_to(size, len(a))[:, None]
    floor = tolerance * read(state)
    sizes, when = np.zeros_like(a), np.full_like(a, np.inf)
    left = np.ones_like(a, dtype=bool)
    for _ in range(a.shape[1]):
        pivot = read(state)
        pivot = np.where(pivot > floor, pivot, 0.0)
        with np.errstate(divide="ignore"):
            own = -(np.log(pivot) + 2 * np.log(size)) / (4 * a)
        key = own if order == "greedy" else -a
        # Concepts that never grow (infinite times) still come before those that are done.
        key = np.where(left, np.minimum(key, np.finfo(float).max), np.inf)
        p = np.argmin(key, axis=1)
        sizes[rows, p], when[rows, p] = pivot[rows, p], own[rows, p]
        left[rows, p] = False
        state = eliminate(state, p, pivot[rows, p])
    return when.reshape(strengths.shape), (size**2 * sizes).reshape(strengths.shape)
