"""When the flow of awake neurons counts as resting."""

import jax.numpy as jnp
import numpy as np
import pytest

from saddles.incontext import awake
from saddles.incontext.neurons import Loss, Output, Sum


class Squares(Output):
    """30 θ₁² and θ₂²: the first is learned at once, and bounds an explicit solver's steps ever after."""

    def __call__(self, theta):
        return jnp.stack([30 * theta[0] ** 2, theta[1] ** 2])


class Creeping(Loss):
    """Along the second output it falls to zero like t^(−2): at no finite time is it there."""

    def __call__(self, total):
        return 0.5 * (1 - total[0]) ** 2 + 0.01 * (1 - total[1]) ** 4


def _learn():
    network = Sum(Squares(), Creeping(), 2, np.ones((1, 2)), -20.0)
    return awake.learn(network, np.zeros((1, 2)), np.array([0]), np.array([[0.1, 0.995]]), 1.0)


@pytest.fixture
def explicit(monkeypatch):
    """As for networks that are too large for an implicit solver, which would go on for long."""
    monkeypatch.setattr(awake, "LARGEST", 1)


def test_a_loss_that_creeps_counts_as_resting(explicit):
    rest = _learn()
    assert rest.settled
    # Not calm, and what is left is little against the gain of ½.
    assert 1e-8 < rest.loss < 2e-4


@pytest.mark.parametrize("steps", [2, 20])
def test_a_loss_that_still_falls_does_not(explicit, monkeypatch, steps):
    """After 2 steps it is slow but has gained nothing yet; after 20 it has gained most of it and falls fast."""
    monkeypatch.setattr(awake, "EXPLICIT", steps)
    assert not _learn().settled
