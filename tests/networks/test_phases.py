"""The border of wide linear networks, against networks that were trained; the cells of the diagram, against the lab."""

import numpy as np
import pytest

import saddles
from saddles import networks
from saddles.networks.diagram import follow_row
from saddles.networks.phases import crossing, slope_of

DRAW = np.random.default_rng(2)
INPUTS = np.linalg.qr(DRAW.normal(size=(40, 4)))[0] * np.sqrt(40)  # whitened: XᵀX/n = 1
TARGET = np.diag([1.0, 0.6, 0.3, 0.0])[:3]
TASK = networks.Regression(INPUTS, INPUTS @ TARGET.T, INPUTS[:5], INPUTS[:5] @ TARGET.T)


@pytest.mark.parametrize("threshold", [0.02, 0.2])
def test_predicted_linearity_is_that_of_a_wide_linear_network(threshold):
    width = 4000
    row = follow_row(TASK, width, [threshold / width], activation="linear", steps=120, saved=1, precision="float64")
    assert row["loss"][-1] < 1e-6
    assert row["linearity"][-1, 0] == pytest.approx(
        float(networks.predicted_linearity([1, 0.6, 0.3], threshold)), abs=0.02
    )


def test_border_of_one_mode_is_at_four_root_three():
    assert networks.predicted_border([1.0]) == pytest.approx(1 / (4 * np.sqrt(3)), rel=1e-9)
    assert float(networks.predicted_linearity([2.0, 1.0], networks.predicted_border([2.0, 1.0]))) == pytest.approx(0.5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_cell_has_the_linearity_of_the_measure(activation):
    """From the same weights: what a cell says of its change is what `linearity` and `simulate` say."""
    row = follow_row(TASK, 8, [0.05, 0.5], activation=activation, steps=30, saved=1, precision="float64")
    assert row["linearity"].shape == (2, 2)
    assert (row["linearity"][0] == 0).all()
    assert (row["loss"][-1] < row["loss"][0]).all()
    flow = saddles.simulate(networks.Perceptron(8, 0.05, activation), TASK, networks.GradientFlow(until=40.0))
    close = int(abs(flow["loss"] / (np.sum(TASK.targets**2) / 80) - row["loss"][-1, 0]).values.argmin())
    assert float(flow["linearity"][close]) == pytest.approx(row["linearity"][-1, 0], abs=0.1)


def test_crossing_and_slope():
    across = np.array([-3.0, -2.0, -1.0, 0.0])
    assert crossing(np.array([1.0, 0.8, 0.3, 0.1]), across) == pytest.approx(-1.4)
    assert np.isnan(crossing(np.array([0.1, 0.1, 0.1, 0.1]), across))
    assert np.isnan(crossing(np.array([1.0, 0.9, 0.8, 0.7]), across))
    assert slope_of(np.array([-2.0, -2.5, np.nan, -3.5]), np.array([1.0, 1.5, 2.0, 2.5])) == pytest.approx(-1)
    assert np.isnan(slope_of(np.array([-2.0, np.nan, np.nan]), np.arange(3.0)))
