"""Numbers of independent solvers, computed from the papers' formulas without this package (`support/anchors`)."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import saddles
from saddles import concepts, linear, margin

ANCHOR = json.loads((Path(__file__).parent / "support" / "anchors" / "independent.json").read_text("utf-8"))


def test_the_flow_of_two_layers():
    one = ANCHOR["linear"]
    truth = np.array(one["Y"])
    task = linear.MatrixCost(lambda matrix: jnp.mean((matrix - truth) ** 2), truth.shape, truth)
    model = linear.TwoLayer.from_weights(np.array(one["W1"]), np.array(one["W2"]))
    run = saddles.simulate(model, task, linear.GradientFlow(), times=one["times"], keep=("matrix",))
    np.testing.assert_allclose(run["matrix"], one["matrix"], atol=1e-7)


def test_the_flow_of_a_symmetric_pair():
    one = ANCHOR["concepts"]
    task = concepts.Identity(tuple(one["mu"]), tuple(one["sigma"]))
    model = concepts.SymmetricTwoLayer(factor=np.array(one["U"]))
    run = saddles.simulate(model, task, concepts.GradientFlow(), times=one["times"])
    np.testing.assert_allclose(run["output"], one["output"], atol=1e-7)


@pytest.mark.parametrize("case", ANCHOR["margin"]["cases"], ids=lambda case: f"{case['l1']:.3g}")
def test_max_margin_solutions(case):
    task = margin.Tokens(case["X"], case["z"], case["y"], case["head"])
    for problem in ("l1", "frobenius", "nuclear"):
        assert margin.max_margin(task, problem).objective == pytest.approx(case[problem], rel=1e-6)
