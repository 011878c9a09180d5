"""Figures of lab `transformers`: one of anything is drawn, and what leaves the frame is marked."""

import numpy as np
import pytest
import xarray as xr

from saddles import figures

AXES = ("scale", "seed", "layer", "head", "product")


def _made() -> xr.Dataset:
    """Two scales and seeds of a model with three layers of two heads."""
    coords = {"scale": [1.0, 0.3], "seed": [1, 2], "layer": [0, 1, 2], "head": [0, 1], "product": ["KQ", "VO"]}
    coords |= {"time": [4, 8, 12, 16], "instant": [4, 16], "index": [0, 1, 2, 3, 4]}
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(("stable_rank", "frobenius_norm"), ("time", *AXES))
    axes |= dict.fromkeys(("train_loss", "test_loss", "test_accuracy", "rate"), ("time", "scale", "seed"))
    spectra = ("scale", "layer", "head", "product", "index")
    axes |= {"singular_value": ("instant", *spectra), "initial_singular_value": spectra, "initial_stable_rank": AXES}
    draw = np.random.default_rng(0)
    found = {}
    for name, dims in axes.items():
        values = draw.uniform(0.1, 1.0, [len(coords[axis]) for axis in dims])
        found[name] = (dims, -np.sort(-values, axis=-1) if "singular" in name else values)
    coords |= {"step": ("time", coords["time"]), "epoch": ("time", np.array(coords["time"]) / 4)}  # type: ignore[dict-item]
    return xr.Dataset(found, coords, {"outputs": 10})


@pytest.mark.parametrize("draw", [figures.transformers.growth, figures.transformers.by_scale])
def test_one_of_anything_is_drawn(draw):
    whole = _made()
    axes = ["scale", "seed", "layer", "head", "instant", "index"]
    for few in ([], ["layer"], ["scale", "seed"], axes):
        figure = draw(whole.isel({axis: [0] for axis in few}))
        figure.draw_without_rendering()
        assert all(axis.has_data() for axis in figure.axes if axis.get_visible() and axis.axison)


def test_a_loss_that_leaves_the_frame_is_marked():
    run = _made().isel(scale=[0], seed=[0])
    losses = [axis for axis in figures.transformers.growth(run).axes if axis.get_title("left") == "Loss"]
    assert not losses[0].texts
    run["train_loss"][1] = 6.12
    losses = [axis for axis in figures.transformers.growth(run).axes if axis.get_title("left") == "Loss"]
    assert [text.get_text() for text in losses[0].texts] == ["up to 6.1"]


def test_scales_share_an_axis_that_shows_all_of_them():
    figure = figures.transformers.by_scale(_made())
    panels = [axis for axis in figure.axes if "scale" in axis.get_title("left")]
    for axis in panels:
        low, high = axis.get_ylim()
        assert low == 0
        assert high > max(np.max(line.get_ydata()) for line in axis.get_lines())
    assert panels[0].get_ylim() == panels[1].get_ylim()
    assert sum(axis.get_ylabel() == "singular value, 1: largest" for axis in figure.axes) == 2


def test_what_bands_are_is_written():
    figure = figures.transformers.growth(_made().isel(scale=[0]))
    words = [text.get_text() for part in figure.subfigs for legend in part.legends for text in legend.get_texts()]
    assert "± one standard deviation over heads and seeds" in words
    assert "initial product" in words


@pytest.mark.parametrize(("scales", "below"), [(2, False), (5, True)])
def test_panels_of_all_scales_stand_where_the_page_has_room(scales, below):
    """Beside the singular values of a few scales, below those of many; the figure is never too wide to read."""
    made = xr.concat([_made().isel(scale=[0])] * scales, "scale", data_vars="minimal")
    figure = figures.transformers.by_scale(made.assign_coords(scale=np.geomspace(1, 0.1, scales)))
    figure.canvas.draw()
    placed = {axis.get_title("left"): axis.get_window_extent() for axis in figure.axes}
    first, last = (next(box for title, box in placed.items() if words in title) for words in ("scale 1", "at the end"))
    assert (last.y1 < first.y0) == below
    assert figure.get_figwidth() < 16
