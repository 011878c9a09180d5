"""Functions of a user's own are seen by compiled programs as they are now, and compiled once while they stay so."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from saddles import incontext, linear, predict, simulate
from saddles.runtime.functions import AsItIs, as_it_is
from saddles.solvers.dynamics import Dynamics
from saddles.solvers.methods import GradientDescent

GAIN = 1.0
SETTINGS = {"gain": 1.0}
PLACE = SimpleNamespace(gain=1.0)


def helped(x):
    return GAIN * x


def by_helper(x):
    return (lambda one: helped(one))(x)


def by_dictionary(x):
    return SETTINGS["gain"] * x


def by_place(x):
    return PLACE.gain * x


def closed():
    gain = 1.0

    def change(to):
        nonlocal gain
        gain = to

    return (lambda x: gain * x), change


class Owner:
    def __init__(self):
        self.gain = 1.0

    def __call__(self, x):
        return self.gain * x

    def method(self, x):
        return self.gain * x


def _global(to):
    globals()["GAIN"] = to


def _cases():
    one, other = Owner(), Owner()
    over, change = closed()
    return {
        "a global variable, through a helper": (by_helper, _global),
        "an entry of a global dictionary": (by_dictionary, lambda to: SETTINGS.update(gain=to)),
        "an attribute of a global object": (by_place, lambda to: setattr(PLACE, "gain", to)),
        "a closure": (over, change),
        "an attribute of a callable": (one, lambda to: setattr(one, "gain", to)),
        "an attribute behind a method": (other.method, lambda to: setattr(other, "gain", to)),
    }


@pytest.mark.parametrize("what", _cases())
def test_what_a_function_reads_may_change_between_two_calls(what):
    function, change = _cases()[what]
    compiled = jax.jit(lambda function, x: function(x), static_argnums=0)
    found = []
    for gain in (2.0, 2.0, 3.0):
        change(gain)
        found.append(float(compiled(as_it_is(function), jnp.asarray(1.0))))
        assert compiled._cache_size() == len(set(found))  # pyright: ignore[reportAttributeAccessIssue]
    assert found == [2.0, 2.0, 3.0]


def test_functions_of_the_package_and_those_that_read_nothing_stay_what_they_are():
    def plain(x):
        return 2 * x

    for function in (plain, abs, as_it_is):
        assert as_it_is(function) is function
    again = as_it_is(by_helper)
    assert isinstance(again, AsItIs)
    assert as_it_is(again) is again


DATA = xr.Dataset({"gain": ((), 2.0)})


def by_data(x):
    return DATA["gain"].values * x


def test_what_is_the_same_is_not_compiled_anew():
    for function in (by_data, by_helper, by_place, Owner().method, closed()[0]):
        one, other = as_it_is(function), as_it_is(function)
        assert one == other
        assert hash(one) == hash(other)


def _slope(state, args):
    return -GAIN * state


def _observe(state, args):
    return {"loss": GAIN * state**2}


def test_a_method_moves_along_the_slope_of_now():
    for gain in (1.0, 3.0):
        _global(gain)
        path = GradientDescent(0.1, 4).follow(Dynamics(jnp.asarray(1.0), None, _slope, _observe))
        np.testing.assert_allclose(path.saved["loss"], gain * (1 - 0.1 * gain) ** (2 * np.arange(5)), rtol=1e-12)


def _neuron(x, theta):
    return GAIN * theta[0] * (theta[1:] @ x)


def _cost(matrix):
    return jnp.mean((matrix - GAIN) ** 2)


def test_neurons_and_costs_of_a_user_are_those_of_now():
    inputs = np.random.default_rng(0).normal(size=(9, 2))
    task, neurons = incontext.Samples(inputs, inputs[:, 0]), incontext.Neurons(_neuron, 2, 3, 2, 1e-3)
    cost = linear.MatrixCost(_cost, (2, 2))
    waits, ends = [], []
    for gain in (1.0, 4.0):
        _global(gain)
        waits.append(predict(neurons, task, incontext.AlternatingFlows(1))["stage_time"].values[1])
        run = simulate(linear.TwoLayer(8, 0.5), cost, GradientDescent(0.1, 400), keep=("matrix",))
        ends.append(run["matrix"].values[-1])
    assert waits[0] == pytest.approx(4 * waits[1], rel=1e-9)  # θ' = gain ∇U
    np.testing.assert_allclose(ends, [np.full((2, 2), 1.0), np.full((2, 2), 4.0)], atol=1e-3)
