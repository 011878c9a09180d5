from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from saddles.measures import descents, turning_points


def _curve(values):
    return xr.DataArray(np.asarray(values, dtype=float), dims="time", coords={"time": np.arange(len(values)) * 1.0})


@pytest.mark.parametrize(
    ("values", "count", "depth", "rises"),
    [
        ([1, 0.5, 0.1], 1, 0, 0),
        ([1, 0.5, 0.8, 0.1], 2, 0.3, 1),
        ([1, 0.5, 0.8, 0.1, 0.4, 0.2], 3, 0.3, 2),
        ([1, 1.5, 0.1], 1, 0, 1),
        ([1, 0.999, 0.998], 0, 0, 0),
        ([1, 0.5, 0.505, 0.4], 1, 0, 0),
        ([1, 0.5, 0.8], 1, 0, 1),
        ([2, 1, 1.6, 0.2], 2, 0.3, 1),
        ([1, 1, 1], 0, 0, 0),
    ],
)
def test_descents_are_counted(values, count, depth, rises):
    found = descents(_curve(values))
    assert int(found["count"]) == count
    assert float(found["depth"]) == pytest.approx(depth)
    assert int(found["rises"]) == rises


def test_a_slow_fall_in_small_steps_is_one_descent():
    assert int(descents(_curve(np.linspace(1, 0, 5000)))["count"]) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 2.0), min_size=2, max_size=40), st.sampled_from([0.001, 0.01, 0.2]))
def test_the_two_ways_of_counting_agree(values, prominence):
    curve = _curve([1.0, *values])
    kinds = list(turning_points(curve, prominence)["kind"].values)
    found = descents(curve, prominence)
    assert kinds.count("descent") == int(found["count"])
    assert kinds.count("ascent") == int(found["rises"])
    assert all(a != b for a, b in pairwise(kinds))


def test_turning_points_join_the_extremes():
    found = turning_points(_curve([1, 0.5, 0.8, 0.1, 0.12]), 0.05)
    assert list(found["kind"].values) == ["descent", "ascent", "descent"]
    np.testing.assert_array_equal(found["start"], [0, 1, 2])
    np.testing.assert_array_equal(found["end"], [1, 2, 3])
    np.testing.assert_allclose(found["change"], [-0.5, 0.3, -0.7])


def test_descents_keep_other_axes():
    grid = xr.DataArray(
        np.array([[1, 1], [0.5, 0.5], [0.8, 0.4], [0.1, 0.3]]), dims=("time", "seed"), coords={"time": [0.0, 1, 2, 3]}
    )
    np.testing.assert_array_equal(descents(grid)["count"], [2, 1])
