import numpy as np
import pytest
import xarray as xr

from saddles import SaddlesError
from saddles.measures.concept_space import (
    exponential_tail,
    learning_order,
    learning_times,
    order_homomorphism,
    slow_down,
    smoothed,
    speed,
)
from saddles.measures.lines import fit_line, slope


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


def test_learned_for_good():
    """Up at 1, down at 3, up again halfway between 5 and 6; and one that ends below."""
    values = np.array([[0, 1, 1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1, 1, 0]], dtype=float).T
    output = xr.DataArray(values, dims=("time", "coordinate"), coords={"time": np.arange(8.0)})
    target = xr.DataArray([1.0, 1.0], dims="coordinate")
    found = learning_times(output, target, 0.5, for_good=True)
    np.testing.assert_allclose(found["learned_at"], [5.5, np.nan])
    np.testing.assert_allclose(learning_times(output, target, 0.5)["learned_at"], [0.5, 0.5])


def test_an_exponential_tail_from_the_top_on():
    """Speed rises for a while, then falls as e^{−0.02 t}; times as squares, as the diffusion lab has them."""
    times = np.linspace(3, 20, 60) ** 2
    known = np.where(times < 60, 0.0, 1 - np.exp(-0.02 * (times - 60)))
    output = xr.DataArray(np.stack([known, known], 1), dims=("time", "coordinate"), coords={"time": times})
    target = xr.DataArray([1.0, 1.0], dims="coordinate")
    found = exponential_tail(output, target)
    assert float(found["rate"]) == pytest.approx(0.02, rel=0.03)
    assert float(found["low"]) <= float(found["rate"]) <= float(found["high"])
    assert float(found["fit"]) > 0.99
    assert float(found["instants"]) < 40, "the scatter near the target is left out"
    steady = xr.DataArray(np.stack([times, times], 1) / times[-1], dims=output.dims, coords=output.coords)
    flat = exponential_tail(steady, target)
    assert abs(float(flat["rate"])) < 1e-6
    assert np.isnan(exponential_tail(output.isel(time=slice(0, 3)), target)["rate"])


def test_smoothing_counts_instants_and_is_an_option_of_the_tail():
    """A single peak spreads as the Gaussian of its neighbours' distance in instants, however times are spaced."""
    times = np.arange(41.0) ** 2
    peak = xr.DataArray((times == 400.0).astype(float), dims="time", coords={"time": times})
    shape = np.exp(-0.5 * ((np.arange(41) - 20) / 1.5) ** 2)
    np.testing.assert_allclose(
        smoothed(peak, 1.5), np.where(np.abs(np.arange(41) - 20) <= 9, shape, 0) / shape.sum(), atol=1e-9
    )
    assert smoothed(peak, 0.0) is peak
    noise = np.random.default_rng(0).uniform(size=(41, 2))
    path = xr.DataArray(noise, dims=("time", "coordinate"), coords={"time": np.arange(41.0)})
    plain, smooth = (exponential_tail(path, xr.DataArray([9.0, 9.0], dims="coordinate"), smooth=w) for w in (0.0, 3.0))
    assert float(smooth["fit"]) > float(plain["fit"])


def test_the_interval_of_a_tail_holds_what_it_says():
    """Noise on log speed: 95 % intervals hold the true rate in about 95 % of 200 draws."""
    times = np.linspace(0, 100, 400)
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        logs = -0.03 * times + 0.2 * rng.normal(size=len(times))
        line = fit_line(times, logs)
        inside += line.low <= -0.03 <= line.high
    assert 180 <= inside <= 199


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


def test_slopes_are_those_of_the_line_for_each_column_and_nan_of_one_point():
    times, rows = np.array([0.0, 1.0, 3.0]), np.array([[1.0, 0.0], [2.0, -1.0], [5.0, 7.0]])
    np.testing.assert_allclose(slope(times, rows), [fit_line(times, column).slope for column in rows.T], rtol=1e-12)
    np.testing.assert_allclose(slope([0.0, 1.0], [[-np.inf, 1.0, np.nan], [2.0, 3.0, 0.0]]), [np.inf, 2.0, np.nan])
    assert np.isnan(slope([2.0], [[1.0, 3.0]])).tolist() == [True, True]
    assert np.isnan(slope([2.0, 2.0], [1.0, 3.0]))
