"""Deep networks followed together, against one alone, by homogeneity, and by the measure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saddles import networks
from saddles.networks import deep

DRAW = np.random.default_rng(0)
INPUTS, TARGETS = DRAW.normal(size=(20, 4)), DRAW.normal(size=(20, 3))
TASK = networks.Regression(INPUTS, TARGETS, INPUTS, TARGETS)


def followed(variances, widths=(5, 8), task=TASK, steps=15):
    return networks.follow_deep(
        task, widths, variances, layers=3, activation="relu", seed=4, steps=steps, precision="float64"
    )


def test_zeros_beside_a_network_change_nothing_and_scales_of_target_and_start_are_exchanged():
    """e depends on y/σ^L alone, exactly; alone a network has no zeros."""
    variances = np.array([[0.1, 0.4], [0.05, 0.3]])
    both = followed(variances)
    alone = followed(variances[:1], widths=(5,))
    larger = networks.Regression(INPUTS, 8 * TARGETS, INPUTS, 8 * TARGETS)
    scaled = followed(4 * variances, task=larger)
    for name in both:
        np.testing.assert_allclose(both[name][0], alone[name][0], rtol=1e-9)
        np.testing.assert_allclose(both[name], scaled[name], rtol=1e-6)
    assert (both["loss"] < 0.9).all()


def test_linearity_is_that_of_the_measure(monkeypatch):
    """One step at a known rate, made by hand."""
    monkeypatch.setattr(deep, "WARM_UP", 0)
    model = networks.Perceptron(5, 0.2, "relu", 3)
    start, inputs = tuple(map(jnp.asarray, model.start(TASK, 4))), jnp.asarray(INPUTS)
    found = followed([[0.2]], widths=(5,), steps=1)

    def loss(weights):
        return jnp.sum((model.outputs(weights, inputs) - model.outputs(start, inputs) - TARGETS) ** 2) / 40

    draw = np.random.default_rng([4, 35])
    along = tuple(jnp.asarray(draw.normal(size=part.shape)) for part in start)
    unit = jnp.sqrt(sum(jnp.sum(part**2) for part in along))
    slope, bent = jax.jvp(jax.grad(loss), (start,), (tuple(part / unit for part in along),))
    rate = 1 / jnp.sqrt(sum(jnp.sum(part**2) for part in bent))
    end = tuple(weight - rate * down for weight, down in zip(start, slope, strict=True))
    expected = networks.linearity(model.outputs, start, end, inputs)
    assert float(found["linearity"][0, 0]) == pytest.approx(expected, rel=1e-9)
    assert float(found["loss"][0, 0]) == pytest.approx(float(loss(end)) / (np.sum(TARGETS**2) / 40), rel=1e-9)
