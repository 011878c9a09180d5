import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from saddles.core.compare import compare
from saddles.errors import SaddlesError


def curve(times, shift=0.0, **coords):
    times = np.asarray(times, dtype=float)
    return xr.Dataset({"loss": ("time", times**2 + shift)}, coords={"time": times, **coords})


def test_equal_runs_have_no_error():
    errors = compare(curve([0, 1, 2]), curve([0, 1, 2]))
    assert float(errors["error"].max()) == 0.0
    assert errors.attrs["alignment"] == "common instants"


def test_each_kind_of_error_by_hand():
    errors = compare(curve([0, 1, 2]), curve([0, 1, 2], shift=0.5))["error"].sel(variable="loss")
    assert errors.sel(kind="max_absolute") == 0.5
    assert errors.sel(kind="max_relative") == 0.125
    assert errors.sel(kind="rms") == 0.5
    assert errors.sel(kind="final") == 0.125


def test_the_final_error_is_that_of_the_last_instant():
    wrong_at_first = curve([0, 1, 2])
    wrong_at_first["loss"][0] = 3.0
    errors = compare(curve([0, 1, 2]), wrong_at_first)["error"].sel(variable="loss")
    assert errors.sel(kind="final") == 0.0
    assert errors.sel(kind="max_relative") == 0.75


def test_common_instants_are_matched_without_interpolation():
    errors = compare(curve([0, 1, 2, 3]), curve([0, 0.5, 1, 1.5, 3]))
    assert float(errors["error"].max()) == 0.0
    assert errors.attrs["instants"] == 3


def test_other_clocks_are_interpolated_inside_the_overlap():
    errors = compare(curve([0.05, 1.05, 2.05, 9.0]), curve(np.linspace(0, 3, 31)))
    assert errors.attrs["alignment"] == "linear interpolation"
    assert errors.attrs["instants"] == 3
    assert 0 < float(errors["error"].sel(variable="loss", kind="max_absolute")) <= 0.1**2 / 4 + 1e-12


def test_steps_are_matched_where_both_have_them():
    one = curve([0, 1, 2], step=("time", [0, 10, 20]))
    other = curve([0, 1, 2], step=("time", [0, 10, 20])).assign_coords(time=[0.0, 5.0, 9.0])
    assert float(compare(one, other)["error"].max()) == 0.0


def test_clocks_that_do_not_meet_are_refused():
    with pytest.raises(SaddlesError, match="overlap"):
        compare(curve([0, 1]), curve([5.5, 6.5]))


def test_nothing_in_common_is_refused():
    with pytest.raises(SaddlesError, match="share a variable"):
        compare(curve([0, 1]), curve([0, 1]).rename(loss="other"))


def test_other_shapes_are_refused():
    wide = xr.Dataset({"s": (("time", "mode"), np.zeros((2, 3)))}, coords={"time": [0.0, 1.0]})
    with pytest.raises(SaddlesError, match="must agree"):
        compare(wide, wide.isel(mode=slice(0, 2)))


def test_a_recording_is_refused_with_the_way_to_compare_it():
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "heads": curve([0, 1, 2])})
    with pytest.raises(SaddlesError, match=r"`measured` must be one table .* tree of heads.*tree\['heads'\]"):
        compare(tree, tree)
    with pytest.raises(SaddlesError, match="`predicted` must be one table"):
        compare(curve([0, 1, 2]), tree)
    groups = [tree["heads"].to_dataset()] * 2
    assert float(compare(*groups)["error"].max()) == 0.0


def _seeds(seeds, shift=0.0):
    values = np.add.outer([0.0, 1.0, 2.0], [10.0 * seed for seed in seeds]) + shift
    return xr.Dataset({"loss": (("time", "seed"), values)}, coords={"time": [0.0, 1.0, 2.0], "seed": seeds})


def test_runs_are_matched_by_their_labels():
    errors = compare(_seeds([0, 1, 2]), _seeds([2, 0, 1], shift=0.5))["error"].sel(variable="loss")
    assert errors.sel(kind="max_absolute") == 0.5
    other = compare(_seeds([0, 1]), _seeds([5, 6]))["error"].sel(variable="loss")  # nothing in common: in their order
    assert other.sel(kind="max_absolute") == 50.0
    with pytest.raises(SaddlesError, match=r"`seed` is 0, 1 in one and 1, 2 in the other"):
        compare(_seeds([0, 1]), _seeds([1, 2]))
    rounded = [compare(_seeds([0.1, 0.3]), _seeds([0.1, 0.1 + 0.2]))["error"].max()]
    assert float(rounded[0]) < 1e-14


def test_one_axis_too_many_is_told():
    with pytest.raises(SaddlesError, match=r"loss has the axes time, seed in one and time in the other"):
        compare(_seeds([0, 1]), curve([0, 1, 2]))


WRONG_TYPES = """
import numpy, saddles
one = saddles.trajectory({"loss": numpy.ones(3)}, numpy.arange(3.0))
for wrong in (
    lambda: saddles.compare("runs/x", one),
    lambda: saddles.compare(one, None),
    lambda: saddles.save({"loss": 3}, "t.zarr"),
):
    try:
        wrong()
    except saddles.SaddlesError as error:
        print(error)
"""


def test_what_is_no_trajectory_is_refused(tmp_path):  # in a process whose functions do not check types by themselves
    done = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "`measured` must be an xarray.Dataset; got 'runs/x'. Read a stored one with saddles.load.",
        "`predicted` must be an xarray.Dataset; got None. Read a stored one with saddles.load.",
        "`trajectory` must be an xarray.Dataset or DataTree; got {'loss': 3}.",
    ], done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("times", [[1.0, 1.0], [2.0, 1.0], [0.0, np.nan], []])
def test_clocks_that_do_not_increase_are_refused(times):
    """Of two values at one instant nothing says which is meant: a trajectory differed from itself."""
    odd, good = curve(times), curve([1, 2])
    with pytest.raises(SaddlesError, match="`time of measured` must be one or more increasing numbers"):
        compare(odd, odd)
    with pytest.raises(SaddlesError, match="`time of predicted` must be one or more increasing numbers"):
        compare(good, odd)
