"""Pictures of the lab of learning in context: nothing runs through their words, and every line has a name."""

import numpy as np
import xarray as xr

from saddles.figures.incontext import conjecture, rank


def test_no_plateau_crosses_the_legend_of_heads_of_rank_two():
    starts, time = np.array([1e-3, 1e-4, 1e-5, 1e-6]), np.linspace(-10, 25, 50)
    loss = np.broadcast_to(np.where(time < 0, 2.2, 0.7), (4, 1, 50))
    seen = np.cumsum(np.ones((4, 1, 3)), axis=2)
    data = {
        "loss": (("start", "seed", "time"), loss),
        "seen_time": (("start", "seed", "direction"), seen),
        "plateau": (("seed", "stage"), [[2.2, 1.3, 0.7, 0.25]]),
        "slope": ("seed", [1.0]),
    }
    figure = rank(xr.Dataset(data, coords={"start": starts, "time": time}))
    figure.draw_without_rendering()
    axis = figure.axes[0]
    legend = axis.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    for level in (2.2, 1.3, 0.7, 0.25):
        height = axis.transData.transform((0, level))[1]
        assert not box.y0 <= height <= box.y1


def test_the_limit_of_the_conjecture_is_named():
    slope = np.array([[1.0, 2.0], [0.5, 3.0]])
    data = {
        "conjectured_slope": (("seed", "stage"), slope),
        "slope": (("seed", "stage"), 1.01 * slope),
        "closest": ("seed", [0.2, 0.5]),
    }
    legend = conjecture(xr.Dataset(data)).axes[1].get_legend()
    assert legend is not None
    assert [text.get_text()[:3] for text in legend.get_texts()] == ["3 %"]
