"""A grid of runs that are numbers: order, labels, what is kept and what a run that stopped early leaves."""

import numpy as np
import pytest
import xarray as xr

from saddles.core.experiment import Context
from saddles.errors import SaddlesError
from saddles.training import run_grid, stack_runs

GRID = {"scale": (1.0, 0.1, 0.5), "seed": (7, 8)}


def result(scale, seed, length=4):
    """value = scale + seed + time."""
    times = np.arange(1.0, length + 1)
    return xr.Dataset(
        {
            "value": (("time", "layer"), (scale + seed + times)[:, None] * np.ones((1, 2))),
            "start": (("layer",), np.full(2, scale)),
            "picture": (("time",), np.full(length, 3, dtype=np.uint8)),
        },
        coords={"time": times, "layer": [0, 1]},
    )


def test_every_point_is_run_once_under_its_own_name(tmp_path):
    labels, seen = [], []

    def part(label, make):
        labels.append(label)
        return make()

    def folder(label):
        (tmp_path / label).mkdir()
        return tmp_path / label

    def train(scale, seed, place, title):
        seen.append((scale, seed, place.name, title))
        return result(scale, seed)

    runs = run_grid("lab/name", GRID, Context(part=part, folder=folder), train)
    assert len(runs) == 6
    assert labels[:3] == ["scale-1-seed-7", "scale-1-seed-8", "scale-0.1-seed-7"]
    assert seen[2] == (0.1, 7, "scale-0.1-seed-7", "lab/name, run 3 of 6")
    assert list(tmp_path.iterdir()) == [], "checkpoints of finished runs are removed"


def test_settings_that_differ_in_a_late_digit_are_different_runs():
    kept = {}

    def part(label, make):
        return kept.setdefault(label, make())

    def train(scale, seed, place, title):
        return result(scale, seed)

    context = Context(part=part, folder=lambda name: None)
    near, one = run_grid("lab/name", {"scale": (1.0000001, 1.0), "seed": (7,)}, context, train)
    assert (float(near["start"][0]), float(one["start"][0])) == (1.0000001, 1.0)


@pytest.mark.parametrize("scales", [(), (1.0, 0.1, 1.0)])
def test_a_grid_has_settings_and_each_once(scales):
    with pytest.raises(SaddlesError, match=r"`scales` must be one or more different numbers; got \["):
        run_grid("lab/name", {"scale": scales, "seed": (7,)}, Context(), lambda scale, seed, *_: result(scale, seed))


def test_runs_are_stacked_in_the_order_of_the_grid():
    runs = [
        result(scale, seed, 2 if (scale, seed) == (0.1, 8) else 4) for scale in GRID["scale"] for seed in GRID["seed"]
    ]
    whole = stack_runs(runs, GRID, fill={"picture": 255})
    assert whole["value"].dims == ("scale", "seed", "time", "layer")
    assert whole["scale"].values.tolist() == [1.0, 0.1, 0.5]
    for scale in GRID["scale"]:
        for seed in GRID["seed"]:
            one = whole.sel(scale=scale, seed=seed)
            length = 2 if (scale, seed) == (0.1, 8) else 4
            np.testing.assert_allclose(one["value"].values[:length, 0], scale + seed + np.arange(1, length + 1))
            assert np.isnan(one["value"].values[length:]).all()
            np.testing.assert_array_equal(one["start"], scale)
    assert whole["picture"].dtype == np.uint8
    assert whole["picture"].sel(scale=0.1, seed=8).values.tolist() == [3, 3, 255, 255]


def test_a_single_run_that_stopped_at_once_keeps_its_axes():
    whole = stack_runs([result(1.0, 7, 0)], {"scale": (1.0,), "seed": (7,)})
    assert dict(whole.sizes) == {"scale": 1, "seed": 1, "time": 0, "layer": 2}
