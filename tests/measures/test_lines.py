"""Lines and orders against SciPy, which the package itself does not load for them."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from saddles.measures.lines import fit_line, rank_correlation, slope

DRAW = np.random.default_rng(3)


@pytest.mark.parametrize("count", [3, 4, 50])
def test_a_line_is_that_of_scipy(count):
    x, noise = DRAW.normal(size=(2, count))
    line = fit_line(x, 2 - 0.3 * x + noise)
    known: Any = stats.linregress(x, 2 - 0.3 * x + noise)  # SciPy's result type hides its fields
    half = stats.t.ppf(0.975, count - 2) * known.stderr
    expected = (known.slope, known.intercept, known.slope - half, known.slope + half, known.rvalue**2)
    np.testing.assert_allclose(
        (line.slope, line.start, line.low, line.high, line.fit), expected, rtol=1e-10, atol=1e-12
    )


def test_a_flat_line_explains_nothing_and_is_sure():
    line = fit_line(np.arange(4.0), np.ones(4))
    assert (line.slope, line.start, line.low, line.high, line.fit) == (0, 1, 0, 0, 0)


def test_slopes_are_those_of_the_line_for_each_column_and_nan_of_one_point():
    times, rows = np.array([0.0, 1.0, 3.0]), np.array([[1.0, 0.0], [2.0, -1.0], [5.0, 7.0]])
    np.testing.assert_allclose(slope(times, rows), [fit_line(times, column).slope for column in rows.T], rtol=1e-12)
    np.testing.assert_allclose(slope([0.0, 1.0], [[-np.inf, 1.0, np.nan], [2.0, 3.0, 0.0]]), [np.inf, 2.0, np.nan])
    assert np.isnan(slope([2.0], [[1.0, 3.0]])).tolist() == [True, True]
    assert np.isnan(slope([2.0, 2.0], [1.0, 3.0]))


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 4], [1, 8, 27, 64]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # Ranks (1.5, 1.5, 3, 4) against (1, 2, 3, 4): sums of squares 4.5 and 5, of products 4.5.
    assert rank_correlation([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_rank_correlation_of_columns_is_that_of_scipy(levels):
    """Few levels: many values share their rank."""
    one, rows = DRAW.integers(levels, size=30), DRAW.integers(levels, size=(30, 2, 3))
    expected = np.array([[stats.spearmanr(one, rows[:, i, j])[0] for j in range(3)] for i in range(2)])
    np.testing.assert_allclose(rank_correlation(one, rows), expected, atol=1e-12)


def test_without_an_order_there_is_no_correlation_and_what_is_missing_stays_missing():
    rows = np.array([[1.0, 5.0, 1.0], [2.0, 5.0, np.nan], [3.0, 5.0, 2.0]])
    np.testing.assert_array_equal(rank_correlation([1, 2, 3], rows), [1.0, 0.0, np.nan])
    assert rank_correlation([7, 7, 7], [1, 2, 3]) == 0
    assert np.isnan(rank_correlation([1], [2]))
    assert np.isnan(rank_correlation([], []))
