"""A number over one or two axes of a grid."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from saddles.errors import SaddlesError
from saddles.figures import sweep as figures

over_grid: Any = figures.over_grid
claims_over_grid: Any = figures.claims_over_grid


def values(**axes):
    shape = tuple(len(labels) for labels in axes.values())
    return xr.DataArray(np.arange(np.prod(shape), dtype=float).reshape(shape) + 1, coords=axes, dims=list(axes))


def test_a_map_has_a_cell_where_its_labels_are():
    drawing = over_grid(values(rate=[1.0, 2.0, 3.0], width=[10, 100, 1000], seed=[0, 1]), title="T", label="L")
    axis, colours = drawing.axes
    assert (axis.get_xlabel(), axis.get_ylabel(), colours.get_ylabel()) == ("width", "rate", "L")
    assert axis.get_xscale() == "log"
    assert axis.get_yscale() == "linear"
    mesh = axis.collections[0]
    np.testing.assert_allclose(mesh.get_array(), [[1.5, 3.5, 5.5], [7.5, 9.5, 11.5], [13.5, 15.5, 17.5]])
    edges = mesh.get_coordinates()
    np.testing.assert_allclose(edges[0, :, 0], 10 ** np.array([0.5, 1.5, 2.5, 3.5]))
    np.testing.assert_allclose(edges[:, 0, 1], [0.5, 1.5, 2.5, 3.5])


def test_a_grid_in_any_order_is_drawn_from_left_to_right():
    mixed, even = (
        values(rate=[2.0, 1.0, 3.0], width=[100, 10, 1000]),
        values(rate=[1.0, 2.0, 3.0], width=[10, 100, 1000]),
    )
    even[:] = mixed.sortby(["rate", "width"])
    ours, theirs = (over_grid(one).axes[0].collections[0] for one in (mixed, even))
    np.testing.assert_array_equal(ours.get_array(), theirs.get_array())
    np.testing.assert_array_equal(ours.get_coordinates(), theirs.get_coordinates())
    line = over_grid(values(rate=[2.0, 1.0, 3.0])).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xydata(), [[1, 2], [2, 1], [3, 3]])


def test_axes_can_be_chosen_and_missing_cells_are_grey():
    whole = values(rate=[1.0, 2.0], width=[1, 2], seed=[0, 1])
    whole[0, 1] = np.nan
    drawing = over_grid(whole, "rate", "width")
    mesh = drawing.axes[0].collections[0]
    assert drawing.axes[0].get_xlabel() == "rate"
    assert np.ma.getmaskarray(mesh.get_array()).tolist() == [[False, False], [True, False]]
    with pytest.raises(SaddlesError, match="Did you mean 'rate'"):
        over_grid(whole, "rte")


@pytest.mark.parametrize("labels", [["a", "b"], [True, False], [0.25, 0.5]])
def test_a_line_over_one_axis_with_its_spread(labels):
    drawing = over_grid(values(name=labels, seed=[0, 1, 2]), label="number")
    axis = drawing.axes[0]
    assert axis.get_xlabel() == "name"
    assert axis.lines[0].get_ydata().tolist() == [2, 5]
    assert {text.get_text() for text in axis.get_legend().get_texts()} == {"median", "range over seed"}
    if isinstance(labels[0], str):
        assert [tick.get_text() for tick in axis.get_xticklabels()] == labels


def test_every_claim_has_a_panel_and_failures_are_marked():
    value = values(rate=[1.0, 2.0], width=[1, 2], claim=["One", "Two"])
    sweep = xr.Dataset({"claim_value": value, "claim_threshold": value * 0 + 3, "claim_holds": (value <= 3) * 1.0,
                        "cell_done": value.isel(claim=0, drop=True) * 0 + 1})  # fmt: skip
    drawing = claims_over_grid(sweep)
    panels = [axis for axis in drawing.axes if axis.get_title(loc="left")]
    assert [axis.get_title(loc="left") for axis in panels] == ["One", "Two"]
    crosses = panels[0].lines[-1]
    assert sorted(zip(crosses.get_xdata(), crosses.get_ydata(), strict=True)) == [(1, 2), (2, 2)]
    sweep["claim_holds"] = sweep["claim_holds"].where(sweep["claim"] == "One")
    panels = [axis for axis in claims_over_grid(sweep).axes if axis.get_title(loc="left")]
    untold = "Two\n(no verdict: does not apply, or is no evidence)"
    assert [axis.get_title(loc="left") for axis in panels] == ["One", untold]


def test_one_value_is_drawn_too():
    over_grid(values(rate=[1.0], width=[1.0])).savefig("one.png")
    over_grid(values(seed=[0, 1])).savefig("seeds.png")
    assert all(Path(name).stat().st_size > 1000 for name in ("one.png", "seeds.png"))


def test_numbers_that_are_not_there_draw_without_a_word():
    empty = values(rate=[1.0, 2.0], width=[1, 2], seed=[0, 1]) * np.nan
    over_grid(empty).savefig("nothing.png")
    over_grid(empty.isel(width=0, drop=True)).savefig("nothing-line.png")
    assert all(Path(name).stat().st_size > 1000 for name in ("nothing.png", "nothing-line.png"))


def test_the_error_at_the_end_is_what_a_sweep_shows_first():
    grid = json.dumps({"grid": {"rate": [1.0, 2.0], "width": [1, 2]}, "zipped": False, "seeds": [0, 1]})
    error = values(rate=[1.0, 2.0], width=[1, 2], seed=[0, 1], time=[0.0, 1.0, 2.0], dynamics=["descent", "theory"])
    whole = xr.Dataset({"loss": error * 0, "test_error": error}, attrs={"grid": grid})
    measure_over_grid: Any = figures.measure_over_grid
    axis, colours = measure_over_grid(whole).axes
    assert colours.get_ylabel() == "test error at the end, descent"
    np.testing.assert_allclose(axis.collections[0].get_array(), error.isel(time=-1, dynamics=0).median("seed").values)
    assert measure_over_grid(xr.Dataset({"weight": error}, attrs={"grid": grid})) is None


def test_a_cell_that_is_shorter_than_the_longest_shows_its_own_end():
    grid = json.dumps({"grid": {"rate": [1.0, 2.0], "width": [1, 2]}, "zipped": False, "seeds": [0]})
    error = values(rate=[1.0, 2.0], width=[1, 2], time=[0.0, 1.0, 2.0]).copy()
    error[0, 0, 1:] = np.nan
    error[1, 1] = np.nan
    measure_over_grid: Any = figures.measure_over_grid
    axis, _ = measure_over_grid(xr.Dataset({"loss": error}, attrs={"grid": grid})).axes
    shown = axis.collections[0].get_array().filled(np.nan)
    np.testing.assert_allclose(shown, [[error[0, 0, 0], error[0, 1, 2]], [error[1, 0, 2], np.nan]])


def test_colour_bars_have_whole_numbers_on_their_ticks():
    close = values(rate=[1.0, 2.0], width=[1, 2]) * 1e-7 + 1
    figure = over_grid(close)
    figure.savefig("close.png")
    assert figure.axes[1].yaxis.get_offset_text().get_text() == ""


def test_whole_numbers_have_whole_ticks_and_one_colour_is_named():
    whole = values(length=[3, 4, 5], n=[2, 3]) * 0 + 1
    axis, colours = over_grid(whole).axes
    for ticks in (axis.get_xticks(), axis.get_yticks()):
        assert np.all(ticks == np.round(ticks))
    assert colours.get_yticks().tolist() == [1.0]
    tenths = over_grid(values(rate=[0.1, 0.2, 0.3], n=[1, 2])).axes[0]
    assert not np.all(tenths.get_yticks() == np.round(tenths.get_yticks()))
    wide = over_grid(values(width=[10, 100, 1000])).axes[0]
    assert wide.get_xscale() == "log"
    assert {10, 100, 1000} <= set(wide.get_xticks())


def test_the_errors_of_a_solver_are_no_picture():
    noisy = 0.1225 + 1e-13 * values(horizon=[2.0, 4.0, 6.0], starts=[4, 6])
    drawing = over_grid(noisy)
    drawing.canvas.draw()
    axis, colours = drawing.axes
    seen = axis.collections[0].to_rgba(axis.collections[0].get_array())
    assert np.unique(seen.reshape(-1, 4), axis=0).shape == (1, 4)
    assert [tick.get_text() for tick in colours.get_yticklabels()] == ["0.1225"]


def test_seeds_are_points_and_not_a_median_of_themselves():
    value = values(seed=[3, 7], claim=[f"Claim {k}" for k in range(7)])
    sweep = xr.Dataset(
        {"claim_value": value, "claim_threshold": value * 0 + 3, "claim_holds": value * 0 + 1},
        attrs={"experiment": "a/b", "size": "tiny", "grid": json.dumps({"seeds": [3, 7]})},
    )
    drawing = claims_over_grid(sweep)
    assert drawing.get_suptitle() == "a/b, size tiny, the first 6 of 7 claims"
    points = drawing.axes[0].lines[0]
    assert (points.get_linestyle(), points.get_marker()) == ("None", "o")
    assert np.all(drawing.axes[0].get_xticks() == np.round(drawing.axes[0].get_xticks()))
    several = xr.concat([sweep, sweep], "width").assign_coords(width=[1, 2])
    assert "median of 2 seeds" in claims_over_grid(several).get_suptitle()
