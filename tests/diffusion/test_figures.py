"""Pictures of the diffusion lab: nothing runs through its words."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from saddles.figures.diffusion import _when


def test_no_line_crosses_the_legend_of_the_order_of_learning():
    """With and without a concept that is not learned, which is drawn above the end of the run."""
    time = np.array([20.0, 100.0, 300.0, 1000.0, 4000.0])
    for learned in (True, False):
        output = np.zeros((5, 2, 2, 1, 2))
        output[2:] = 1.0
        if not learned:
            output[:, 0, 0, 0, 0] = 0.0
        coordinates = {"time": time, "separation": [0.2, 0.7], "point": ["11"], "coordinate": ["colour", "size"]}
        names = ("time", "separation", "seed", "point", "coordinate")
        data = {"output": (names, output), "target": ("coordinate", [1.0, 1.0])}
        figure = Figure(figsize=(5, 4), layout="constrained")
        axis = figure.subplots()
        _when(axis, xr.Dataset(data, coords=coordinates))
        figure.draw_without_rendering()
        legend = axis.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
        for line in axis.lines:
            height = line.get_transform().transform(line.get_xydata())[:, 1]
            assert not (height > box.y0).any()  # nan where nothing was learned
