"""Pictures of lab linear say what their lines and bands are."""

import numpy as np
import xarray as xr

from saddles.figures.linear import trade_off


def test_the_trade_off_says_what_its_band_is():
    values = np.array([[0.5, 0.3], [0.4, 0.2]])
    data = {"best_test_error": (("seed", "time"), values), "best_step": (("seed", "time"), 100 * values)}
    figure = trade_off(xr.Dataset(data, coords={"time": [0.1, 1.0]}))
    legend = figure.axes[1].get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "line: median, band: range over seeds"
