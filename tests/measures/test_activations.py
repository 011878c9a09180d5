"""Stage detection on trajectories whose stages are known."""

import numpy as np
import pytest
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures import plateaus, stages


def _growing():
    clock = np.linspace(0.0, 20.0, 401)
    first = np.minimum(1e-12 * np.exp(3 * clock), 0.8)
    second = -np.minimum(1e-12 * np.exp(1.9 * clock), 0.3)
    return xr.Dataset({"beta": (("time", "coordinate"), np.stack([second, first], axis=1))}, coords={"time": clock})


def test_times_of_exponential_growth_are_exact():
    found = stages(_growing())
    assert found["stage_coordinate"].values.tolist() == [1, 0]
    assert found["stage_sign"].values.tolist() == [1, -1]
    np.testing.assert_allclose(found["stage_time"], np.log(1e7) / np.array([3, 1.9]), rtol=1e-10)
    np.testing.assert_allclose(found["unit_time"], np.log(0.25e12) / np.array([3, 1.9]), rtol=1e-10)
    assert found["support_size"].values.tolist() == [1, 2]


def test_support_counts_what_is_active_just_after_though_more_happens_before_the_next_instant():
    beyond = np.array([[-2.0, -6.0, 3.0, -9.0, -2.0], [8.0, 4.0, -1.0, -8.0, 8.0]])
    data = xr.Dataset({"beta": (("time", "coordinate"), 1e-5 * np.exp(beyond))}, coords={"time": [0.0, 1.0]})
    found = stages(data)
    assert found["stage_coordinate"].values.tolist() == [0, 4, 1]
    np.testing.assert_allclose(found["stage_time"], [0.2, 0.2, 0.6])
    # Both that are tied count after the first of them; coordinate 2 leaves at 0.75.
    assert found["support_size"].values.tolist() == [3, 3, 4]


def test_a_coordinate_that_returns_is_active_twice():
    clock = np.linspace(0.0, 6 * np.pi, 500)
    data = xr.Dataset({"beta": (("time", "coordinate"), np.exp(-10 * np.cos(clock))[:, None] * 1e-5)}, {"time": clock})
    assert stages(data).sizes["stage"] == 3


def test_singular_values_and_rescaled_time_are_read():
    clock = np.linspace(0, 5, 50)
    data = xr.Dataset(
        {"singular_value": (("time", "mode"), 1e-6 * np.exp(clock)[:, None])},
        coords={"time": clock * 7, "rescaled_time": ("time", clock)},
    )
    found = stages(data)
    assert float(found["stage_time"][0]) == pytest.approx(np.log(10))
    assert found.attrs["clock"] == "rescaled_time"


def test_plateaus_of_a_staircase():
    clock = np.linspace(0, 3, 301)
    data = xr.Dataset({"loss": ("time", 1.0 - 0.3 * np.floor(clock))}, coords={"time": clock})
    found = plateaus(data)
    np.testing.assert_allclose(found["plateau_start"][:3], [0, 1, 2], atol=0.011)
    np.testing.assert_allclose(found["plateau_loss"][:3], [1, 0.7, 0.4])


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (xr.Dataset({"loss": ("time", np.ones(3))}), {}),
        (xr.Dataset({"beta": (("time", "seed", "coordinate"), np.ones((3, 2, 2)))}, {"time": np.arange(3)}), {}),
        (_growing(), {"threshold": 0.0}),
        (_growing(), {"variable": "gamma"}),
    ],
)
def test_bad_input_is_refused(data, options):
    with pytest.raises(SaddlesError, match="must"):
        stages(data, **options)
