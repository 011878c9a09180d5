"""Rests of the flow inside an orthant against constrained least squares."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from saddles.diagonal import LinearDiagonal, Supervised
from saddles.diagonal.rest import flow_to_rest
from saddles.diagonal.risk import risk_of


def _rest(inputs, targets, begin):
    """The rest of the flow from `begin`, all weights positive."""
    task: Any = Supervised(inputs, targets)
    return flow_to_rest(risk_of(LinearDiagonal(len(begin)), task), begin, np.ones(len(begin)))


def test_a_coordinate_that_shrinks_on_the_way_and_is_pushed_back_there_stays():
    """A convex loss has one rest in the orthant, wherever the flow begins.

    The first coordinate is so large at first that the second falls by (1000/β₁)^{−9}; where the first one rests alone,
    the second is pushed up again.
    """
    curvature, force = np.array([[1.0, 9.0], [9.0, 100.0]]), np.array([1.0, 9.05])
    inputs = np.linalg.cholesky(curvature).T
    targets = np.linalg.solve(inputs.T, force)
    rest = _rest(inputs, targets, np.array([1000.0, 0.01]))
    assert rest.settled
    np.testing.assert_allclose(rest.beta, np.linalg.solve(curvature, force), rtol=1e-8)
    np.testing.assert_array_equal(rest.signs, [1.0, 1.0])


@pytest.mark.parametrize(("column", "weight"), [(1e3, 1e-10), (1e5, 1e-13)])
def test_a_coordinate_whose_own_rest_is_tiny_stays(column, weight):
    """A feature in small units has a small weight: it shrinks to its rest, and below 1e-9 of the largest looks gone."""
    inputs, truth = np.diag([1.0, column]), np.array([1.0, weight])
    rest = _rest(inputs, inputs @ truth, np.array([1.0, 1e-8]))
    assert rest.settled
    np.testing.assert_allclose(rest.beta, truth, rtol=1e-8)


def test_a_coordinate_that_was_pushed_back_may_still_leave():
    draw = np.random.default_rng([122, 7])
    size = int(draw.integers(3, 6))
    inputs = draw.normal(size=(8, 2)) @ draw.normal(size=(2, size))
    inputs += 10 ** draw.uniform(-2, 0) * draw.normal(size=(8, size))
    targets = inputs @ draw.normal(size=size)
    rest = _rest(inputs, targets, 10.0 ** draw.uniform(-8, 4, size=size))
    assert rest.settled
    np.testing.assert_array_equal(rest.signs, [1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(rest.beta, nnls(inputs, targets)[0], atol=1e-7)


@pytest.mark.parametrize("seed", [1449, 1799, 1963, 2344])
def test_coordinates_that_grow_slowly_or_are_pushed_back_together_come_to_rest(seed):
    """The first two: forces of 1e-8 on a coordinate that still grows passed for a rest. The last two: of two that are
    pushed back at once one pushes the other out again, which was waited for without end."""
    draw = np.random.default_rng([seed, 9])
    size = int(draw.integers(3, 6))
    inputs = draw.normal(size=(8, 2)) @ draw.normal(size=(2, size)) + 0.03 * draw.normal(size=(8, size))
    targets = inputs @ draw.normal(size=size)
    expected, _ = nnls(inputs, targets)
    rest = _rest(inputs, targets, 10.0 ** draw.uniform(-10, 1, size=size))
    assert rest.settled
    np.testing.assert_allclose(rest.beta, expected, atol=1e-7)
    np.testing.assert_array_equal(rest.signs, (expected > 0) * 1.0)


def test_a_coordinate_that_left_is_zero_where_it_underflows():
    inputs, targets = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([1.0, -1.0])
    rest = _rest(inputs, targets, np.array([1e-8, 5e-324]))
    assert rest.settled
    np.testing.assert_allclose(rest.beta, [1.0, 0.0], rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_rests_from_far_away_are_constrained_least_squares(seed):
    draw = np.random.default_rng([seed, 20261119])
    inputs = draw.normal(size=(12, 2)) @ draw.normal(size=(2, 6)) + 0.1 * draw.normal(size=(12, 6))
    targets = inputs @ draw.normal(size=6)
    expected, _ = nnls(inputs, targets)
    rest = _rest(inputs, targets, 10.0 ** draw.uniform(-8, 3, size=6))
    assert rest.settled
    np.testing.assert_allclose(rest.beta, expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_array_equal(rest.signs, (expected > 0) * 1.0)
