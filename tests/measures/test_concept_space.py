import numpy as np
import pytest
import xarray as xr

from saddles import SaddlesError
from saddles.measures.concept_space import learning_order, learning_times, order_homomorphism, slow_down, speed


def _exponential(rates, target, times):
    values = (1 - np.exp(-np.outer(times, rates))) * target
    output = xr.DataArray(
        values, dims=("time", "coordinate"), coords={"time": times, "coordinate": np.arange(len(target))}
    )
    return output, xr.DataArray(np.asarray(target, dtype=float), dims="coordinate")


def test_learning_times_of_an_exponential():
    output, target = _exponential([1.0, 3.0, 1.0], [2.0, 1.0, 0.0], np.linspace(0, 5, 5001))
    found = learning_times(output, target)
    np.testing.assert_array_equal(found["coordinate"], [0, 1])
    np.testing.assert_allclose(found["learned_at"], np.log(10) / np.array([1.0, 3.0]), rtol=1e-5)
    np.testing.assert_array_equal(learning_order(output, target), [2, 1])


def test_what_is_not_learned_is_not_reached():
    output, target = _exponential([1.0, 0.01], [1.0, 1.0], np.linspace(0, 5, 51))
    found = learning_times(output, target)
    np.testing.assert_array_equal(found["reached"], [True, False])
    assert np.isnan(found["learned_at"][1])
    np.testing.assert_array_equal(learning_order(output, target), [1, 2])


def test_the_tail_has_the_slowest_rate():
    output, _ = _exponential([0.7, 5.0], [1.0, 1.0], np.linspace(0, 10, 2001))
    found = slow_down(output)
    assert float(found["rate"]) == pytest.approx(0.7, rel=1e-3)
    assert float(found["fit"]) > 0.999999
    assert float(speed(output)[1000]) == pytest.approx(0.7 * np.exp(-0.7 * 5), rel=1e-3)


def test_order_homomorphism_counts_pairs():
    losses = xr.DataArray(
        [[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 0.5], [3.0, 2.0, 1.0, 0.0]],
        dims=("time", "point"),
        coords={"time": [0.0, 1.0, 2.0], "point": ["00", "01", "10", "11"]},
    )
    np.testing.assert_allclose(order_homomorphism(losses), [1.0, 3 / 5, 0.0])


def test_points_need_bits():
    with pytest.raises(SaddlesError, match="bits of one length"):
        order_homomorphism(xr.DataArray([[1.0, 2.0]], dims=("time", "point"), coords={"point": ["a", "b"]}))
