"""A straight line through points, and how sure its slope is; whether two orders agree."""

from dataclasses import dataclass

import numpy as np

from saddles.protocols import ArrayLike


@dataclass(frozen=True)
class Line:
    """y = start + slope · x by least squares; low and high are the slope's 95 % interval by Student's t, fit is R²."""

    slope: float
    start: float
    low: float
    high: float
    fit: float


def fit_line(x: np.ndarray, y: np.ndarray) -> Line:
    """The line through at least three points with two different x."""
    from scipy.special import stdtrit  # here, so that a list of experiments need not wait for it

    # Written out: scipy.stats takes longer to import than some commands compute.
    across, up = x - np.mean(x), y - np.mean(y)
    spread, total = float(across @ across), float(up @ up)
    inclined = float(across @ up) / spread
    left = float(np.sum((up - inclined * across) ** 2))
    half = float(stdtrit(len(x) - 2, 0.975)) * np.sqrt(left / spread / (len(x) - 2))
    fit = 1 - left / total if total > 0 else 0.0
    return Line(inclined, float(np.mean(y) - inclined * np.mean(x)), inclined - half, inclined + half, fit)


def slope(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Least-squares slope of y, or of each of its columns, against x; NaN where there are no two different x."""
    across, rows = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(np.unique(across)) < 2:
        return np.full(rows.shape[1:], np.nan)
    # Not by polyfit, which answers NaN for all columns where one is infinite, as the logarithm of a wait of 0 is.
    gaps = across - across.mean()
    return np.tensordot(gaps / (gaps @ gaps), rows, 1)


def rank_correlation(one: ArrayLike, other: ArrayLike) -> np.ndarray:
    """Spearman's ρ of `one` with `other`, or with each of its columns: 1 for the same order, −1 for the reversed one.

    Equal values share their rank. 0 where all values are equal, for they have no order; NaN where one is missing, or
    where there are fewer than two.

    Args:
        one, other: of the same things, which are the first axis.
    """
    first, rows = _ranks(one), _ranks(other)
    first = first.reshape(-1, *[1] * (rows.ndim - 1))
    sizes = np.sqrt((first**2).sum() * (rows**2).sum(0))
    without_order = np.full_like(sizes, 0.0 if len(rows) > 1 else np.nan)
    return np.divide((first * rows).sum(0), sizes, out=without_order, where=sizes != 0)


def _ranks(values: ArrayLike) -> np.ndarray:
    """Ranks along the first axis, from their middle."""
    rows = np.asarray(values, dtype=float)
    # Equal values share the mean of their ranks: 1 + how many are below + half of the others that are equal. Less the
    # middle, (n + 1)/2, that is half of how many more are below than above.
    below = (rows[None] < rows[:, None]).sum(1) - (rows[None] > rows[:, None]).sum(1)
    return np.where(np.isnan(rows).any(0), np.nan, below / 2)
