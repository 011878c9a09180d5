"""When the flow of awake neurons counts as resting."""

import jax.numpy as jnp
import numpy as np
import pytest

from saddles.core.status import Ending, status_of
from saddles.incontext import awake, theory
from saddles.incontext.neurons import Loss, Output, Sum


class Squares(Output):
    """30 θ₁² and θ₂²: the first is learned at once, and bounds an explicit solver's steps ever after."""

    def __call__(self, theta):
        return jnp.stack([30 * theta[0] ** 2, theta[1] ** 2])


class Creeping(Loss):
    """Along the second output it falls to zero like t^(−2): at no finite time is it there."""

    def __call__(self, total):
        return 0.5 * (1 - total[0]) ** 2 + 0.01 * (1 - total[1]) ** 4


class Model:
    """One such neuron."""

    def neurons(self, task, seed=0):
        return Sum(Squares(), Creeping(), 2, np.ones((1, 2)), -20.0)


def _learn():
    return awake.learn(Model().neurons(None), np.zeros((1, 2)), np.array([0]), np.array([[0.1, 0.995]]), 1.0)


@pytest.fixture
def explicit(monkeypatch):
    """As for networks that are too large for an implicit solver, which would go on for long."""
    monkeypatch.setattr(awake, "LARGEST", 1)


def test_a_loss_that_creeps_counts_as_resting(explicit):
    rest = _learn()
    assert rest.outcome is awake.Outcome.CREEPING
    assert rest.settled
    # Not calm, and what is left is little against the gain of ½.
    assert 1e-8 < rest.loss < 2e-4


@pytest.mark.parametrize("steps", [2, 20])
def test_a_loss_that_still_falls_does_not(explicit, monkeypatch, steps):
    """After 2 steps it is slow but has gained nothing yet; after 20 it has gained most of it and falls fast."""
    monkeypatch.setattr(awake, "EXPLICIT", steps)
    rest = _learn()
    assert rest.outcome is awake.Outcome.FALLING
    assert not rest.settled


@pytest.mark.parametrize("steps", [36, 40, 45, 60, 200, 500])
def test_a_flow_that_is_stopped_before_it_can_be_judged_says_so(explicit, monkeypatch, steps):
    """The first output is learned and the second grows still: slow, and not like a power of time."""
    monkeypatch.setattr(awake, "EXPLICIT", steps)
    rest = _learn()
    assert rest.outcome is awake.Outcome.CUT_SHORT
    assert not rest.settled
    assert rest.loss > 0.9 * 0.01  # all of the second output is still to be learned


@pytest.mark.parametrize(
    ("power", "outcome"), [(2.0, "CREEPING"), (9.9, "CREEPING"), (10.1, "CUT_SHORT"), (-0.1, "CUT_SHORT")]
)
def test_the_power_of_time_is_measured_over_the_second_half(power, outcome):
    """Of a loss that falls like t^(−p), also where it was constant long before."""
    flow = awake._Flow(None, None, jnp.asarray(1.0), jnp.asarray(1.0), jnp.asarray(1.0), 2)
    times = np.array([0.0, 1.0, 3.0, 7.0, 15.0, 28.0, 29.0])
    rates = np.where(times < 5, 1.0, 1e-3 * (np.maximum(times, 5) / 29) ** (-power - 1) / 29)
    rates[-2] *= 0.5  # so near the end a ripple is steep
    assert awake._judge(times, rates, 0.1, flow).name == outcome
    assert awake._judge(times, rates, 0.6, flow) is awake.Outcome.FALLING  # half of the gain is not made
    assert awake._judge(times, 20 * rates, 0.1, flow) is awake.Outcome.FALLING  # too fast
    assert awake._judge(times[[0, -1]], rates[[0, -1]], 0.1, flow) is awake.Outcome.CUT_SHORT  # one look at the end


def test_a_theory_whose_flow_is_cut_short_stops_with_that_reason(explicit, monkeypatch):
    monkeypatch.setattr(awake, "EXPLICIT", 60)
    monkeypatch.setattr(theory, "learn", lambda *given: _learn())  # a neuron that wakes from sleep has one output only
    status = status_of(theory.AlternatingFlows().predict(Model(), None))
    assert status.ending is Ending.STOPPED
    assert status.reason == f"the awake neurons {awake.Outcome.CUT_SHORT} after stage 1"
