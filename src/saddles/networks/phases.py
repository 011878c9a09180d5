"""Where the theory of wide two-layer linear networks puts the border between lazy and active.

With W1 and W2 of variance σ² and a width w far above the dimensions, a mode of the target with singular value s moves
along A = σ²w sinh(2G), G its accumulated gradient: the two vectors of length σ√w that carry it, orthogonal at the
start, turn into each other by e^{±G}. The part of the change that is quadratic in the weights is
2σ²w (cosh G − 1) sinh G, so the mode has

    e = 1 − 1/cosh G,   s = σ²w sinh(2G),

and e = ½ where cosh G = 2: at s = 4√3 σ²w. Over modes, e² is the mean of theirs weighted by s². All of it assumes
whitened inputs, squared loss, training to the end, and a start A(0) that is small beside the target.
"""

import numpy as np

from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike

HALF = 0.5
"""The linearity at which the border is drawn: half of the change is beyond what is linear."""


def predicted_linearity(singular_values: ArrayLike, threshold: ArrayLike) -> np.ndarray:
    """e of a wide two-layer linear network that has learned a matrix with these singular values from σ²w = `threshold`.

    Args:
        singular_values: of the learned matrix.
        threshold: σ²w, a number or several.
    """
    size = np.asarray(threshold, dtype=float)
    values = np.asarray(singular_values, dtype=float).reshape(-1)
    # cosh G from sinh 2G = x: cosh² G = (1 + cosh 2G)/2 = 1 + (√(1 + x²) − 1)/2, and e = 1 − (cosh² G)^−½. Both
    # differences cancel where x is small, that is for lazy modes, and are written without that there.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = values / size[..., None]
        height = np.hypot(1, ratio)
        beyond = np.where(ratio < 1, ratio * ratio / (1 + height), height - 1)
        weight = values / values.max(initial=0.0)  # before it is squared, which may under- or overflow
    each = -np.expm1(-0.5 * np.log1p(beyond / 2))
    return np.asarray(np.sqrt(np.sum((each * weight) ** 2, -1) / np.sum(weight**2)))


def predicted_border(singular_values: ArrayLike, linearity: float = HALF) -> float:
    """The σ²w at which `predicted_linearity` has a given value, by bisection: e falls with σ²w."""
    values = np.asarray(singular_values, dtype=float).reshape(-1)
    if not (values.size and np.isfinite(values).all() and values.min() >= 0 and values.max() > 0):
        raise SaddlesError.must_be("singular_values", "finite numbers of at least 0, not all 0", singular_values)
    if not 0 < linearity < 1:
        raise SaddlesError.must_be("linearity", "between 0 and 1", linearity)
    # One mode has the border s/x, x = sinh 2G = 2 cosh G √(cosh² G − 1), cosh G = 1/(1 − e). A mean over modes has this
    # e between the borders of the smallest and of the largest; those that are 0 do not count.
    cosh = 1 / (1 - float(linearity))
    own = 2 * cosh * np.sqrt(linearity * cosh * (cosh + 1))  # cosh G − 1 = e cosh G
    low, high = values[values > 0].min() / own, values.max() / own
    for _ in range(100):  # halves the logarithm of their ratio: down to rounding after 60
        middle = np.sqrt(low) * np.sqrt(high)
        low, high = (middle, high) if predicted_linearity(values, middle) > linearity else (low, middle)
    return float(np.sqrt(low) * np.sqrt(high))


def crossing(linearity: np.ndarray, across: np.ndarray, level: float = HALF) -> float:
    """Where e along a row of growing variances last falls below a level, interpolated; NaN where it never does."""
    above = np.flatnonzero(linearity >= level)
    if not above.size or above[-1] + 1 >= len(across):
        return float("nan")
    at = above[-1]
    share = (linearity[at] - level) / (linearity[at] - linearity[at + 1])
    return float(across[at] + share * (across[at + 1] - across[at]))


def slope_of(border: np.ndarray, up: np.ndarray) -> float:
    """The slope of a line fitted to a border over γ_w; NaN with fewer than three rows that have one."""
    there = np.isfinite(border)
    if there.sum() < 3:
        return float("nan")
    return float(np.polyfit(up[there], border[there], 1)[0])
