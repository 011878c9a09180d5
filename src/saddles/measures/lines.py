"""A straight line through points, and how sure its slope is; whether two orders agree."""

from dataclasses import dataclass
from typing import Any

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
    from scipy.stats import linregress  # a second to import, which listing experiments must not take
    from scipy.stats import t as student

    line: Any = linregress(x, y)  # SciPy's result type hides its fields
    half = float(student.ppf(0.975, len(x) - 2)) * line.stderr
    numbers = (line.slope, line.intercept, line.slope - half, line.slope + half, line.rvalue**2)
    return Line(*(float(number) for number in numbers))


def slope(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Least-squares slope of y, or of each of its columns, against x; NaN where there are no two different x."""
    across, rows = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(np.unique(across)) < 2:
        return np.full(rows.shape[1:], np.nan)
    # Not by polyfit, which answers NaN for all columns where one is infinite, as the logarithm of a wait of 0 is.
    gaps = across - across.mean()
    return np.tensordot(gaps / (gaps @ gaps), rows, 1)


def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's ρ: 1 where both have the same order, −1 where the order is reversed; equal values share their rank.

    Args:
        one, other: of the same things, as many of each.
    """
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: ArrayLike) -> np.ndarray:
    flat = np.asarray(values, dtype=float).ravel()
    _, place, count = np.unique(flat, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
