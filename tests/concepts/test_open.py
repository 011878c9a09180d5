"""Models, theories and methods of the user's own beside those of the lab; arguments that are used or refused."""

import importlib
import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import saddles
from saddles import concepts
from saddles.concepts import (
    MLP,
    SGD,
    GradientDescent,
    GradientFlow,
    Identity,
    OneLayer,
    OneLayerTheory,
    SymmetricTwoLayer,
    TwoLayerTheory,
)
from saddles.core.status import Ending, status_of

TASK = Identity((1.0, 2.0), 0.3, dim=3, rotate=True, seed=1)
SAMPLES = Identity((1.0, 2.0), 0.3, dim=3, samples=60, rotate=True, seed=1)
TIMES = np.linspace(0.0, 2.0, 9)
simulate, predict = inspect.unwrap(saddles.simulate), inspect.unwrap(saddles.predict)
"""As users have them: without the type checks that these tests add, which would refuse first."""


def test_own_theory_of_models_of_the_lab():
    class Initial:
        """W' from the slope at the start: right for a short time."""

        def predict(self, model, task, *, times, seed=0):
            start = task.to_concepts(model.start(task, seed))
            slope = (np.eye(task.size) - start) * task.strengths
            output = (start + times[:, None, None] * slope) @ task.target
            return saddles.trajectory({"output": (("time", "coordinate"), output)}, times, theory=self)

    short = np.linspace(0.0, 1e-3, 5)
    measured = saddles.simulate(OneLayer(), TASK, GradientFlow(), times=short, seed=3)
    predicted = saddles.predict(OneLayer(), TASK, Initial(), times=short, seed=3)
    error = saddles.compare(measured, predicted)["error"].sel(variable="output", kind="max_relative")
    assert 0 < float(error) < 1e-5


def test_theories_of_the_lab_for_own_models():
    class Zero:
        """One layer from nothing."""

        random = False

        def start(self, task, seed=0):
            return np.zeros((task.size, task.size))

    class Diagonal(Zero):
        """A pair from a small multiple of the identity."""

        def start(self, task, seed=0):
            return 0.1 * np.eye(task.size)

        def product(self, task, seed=0):
            return 0.01 * np.eye(task.size)

    one = saddles.predict(Zero(), TASK, OneLayerTheory(), times=TIMES)
    exact = -np.expm1(-np.outer(TIMES, TASK.strengths)) * TASK.target
    np.testing.assert_allclose(one["output"], exact, atol=1e-12)
    two = saddles.predict(Diagonal(), TASK, TwoLayerTheory(), times=TIMES)
    lab = saddles.predict(SymmetricTwoLayer(weights=0.01 * np.eye(3)), TASK, TwoLayerTheory(), times=TIMES)
    np.testing.assert_allclose(two["jacobian"], lab["jacobian"], rtol=1e-12)
    assert concepts.failure(Diagonal(), TASK, 0.1).fails
    assert concepts.predicted_events(Diagonal(), TASK).sizes["event"] == 4
    assert concepts.check_assumptions(Diagonal(), TASK).broken


@pytest.mark.parametrize(
    "model", [OneLayer(), SymmetricTwoLayer(top=0.2), MLP((2,)), MLP((4,), "relu")], ids=lambda m: type(m).__name__
)
def test_own_method_trains_every_model(model):
    class HalfSteps:
        def follow(self, dynamics, times=None):
            return GradientDescent(rate=0.005, steps=400).follow(dynamics, times)

    times = np.array([0.0, 1.0, 2.0])
    halves = saddles.simulate(model, SAMPLES, HalfSteps(), times=times, seed=[0, 1])
    wholes = saddles.simulate(model, SAMPLES, GradientDescent(rate=0.01, steps=200), times=times, seed=[0, 1])
    gap = float(np.abs(halves["output"] - wholes["output"]).max())
    assert 1e-8 < gap < 0.05
    assert saddles.simulate(model, SAMPLES, HalfSteps()).sizes["time"] == 401


def test_own_model_is_trained_by_sgd():
    @dataclass(frozen=True)
    class Ones:
        """All weights equal; nothing is drawn."""

        random = False
        activation: str = "linear"

        def layers(self, task, seed=0):
            return [(np.full((task.size, task.size), 0.1), None)]

        def simulate(self, task, method, *, seed=0, times=None):
            return method.train(self, task, times=times, seed=seed)

    ours = saddles.simulate(Ones(), SAMPLES, SGD(0.1, 20, 2), seed=3)
    theirs = saddles.simulate(OneLayer(np.full((3, 3), 0.1)), SAMPLES, SGD(0.1, 20, 2), seed=3)
    np.testing.assert_array_equal(ours["output"], theirs["output"])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: predict(OneLayer(), TASK, OneLayerTheory(), device="cpu"), "`device` has no meaning"),
        (lambda: predict(OneLayer(), TASK, OneLayerTheory(), precision="float32"), "`precision` has no meaning"),
        (lambda: simulate(OneLayer(np.eye(3)), TASK, GradientFlow(), seed=1), "`seed` has no effect"),
        (
            lambda: simulate(SymmetricTwoLayer(factor=np.eye(3)), TASK, GradientFlow(), seed=[0, 1, 2]),
            "`seed` has no effect",
        ),
        (
            lambda: simulate(SymmetricTwoLayer.uniform(3, 3, 0.2, seed=4), TASK, GradientFlow(), seed=2),
            "`seed` has no effect",
        ),
        (lambda: simulate(OneLayer(np.eye(3)), SAMPLES, SGD(0.1, batch=None), seed=1), "`seed` has no effect"),
        (lambda: simulate(OneLayer(), TASK, GradientFlow(), speed=2), "`speed` has no meaning"),
        (lambda: simulate(OneLayer(), TASK, GradientFlow(), device="tpu:9"), "`device` must be one of"),
        (
            lambda: simulate(SymmetricTwoLayer(top=0.1), SAMPLES, GradientFlow(), keep=["terms"]),
            "names out of jacobian; got 'terms'",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(call, told):
    with pytest.raises(saddles.SaddlesError, match=told):
        call()


def test_seeds_of_given_weights_still_shuffle():
    runs = saddles.simulate(OneLayer(np.zeros((3, 3))), SAMPLES, SGD(0.1, 20, 2), seed=[0, 1])
    assert not runs["output"].isel(seed=0).equals(runs["output"].isel(seed=1))


@pytest.mark.parametrize(
    "verb", [(saddles.simulate, GradientFlow()), (saddles.predict, TwoLayerTheory())], ids=["simulate", "predict"]
)
def test_several_seeds_share_the_longest_clock(verb):
    call, other = verb
    runs = call(SymmetricTwoLayer(top=0.2), TASK, other, seed=[0, 1])
    ends = [float(call(SymmetricTwoLayer(top=0.2), TASK, other, seed=seed)["time"][-1]) for seed in (0, 1)]
    assert float(runs["time"][-1]) == max(ends) > min(ends)
    assert status_of(runs).ending is Ending.FINISHED


def test_old_names_warn():
    model = SymmetricTwoLayer(top=0.2)
    with pytest.warns(DeprecationWarning, match="predicted_events"):
        old = concepts.stages  # type: ignore[attr-defined]
    assert old is concepts.predicted_events
    module: Any = importlib.import_module("saddles.concepts.assumptions")
    with pytest.warns(DeprecationWarning, match="check_assumptions"):
        assert module(model, TASK).reason == concepts.check_assumptions(model, TASK).reason


@pytest.mark.slow
def test_jax_stays_as_the_user_has_it():
    code = (
        "import jax.numpy as jnp, saddles; from saddles import concepts as c; "
        "task = c.Identity((1.0, 2.0), 0.3, samples=40); pair = c.SymmetricTwoLayer(top=0.2); "
        "runs = [saddles.simulate(pair, task, c.GradientFlow(until=1.0)), "
        "saddles.simulate(c.MLP((2,)), task, c.SGD(0.1, 20, 2)), "
        "saddles.predict(pair, task, c.TwoLayerTheory(), times=[1.0])]; "
        "print(*(str(run['output'].dtype) for run in runs), jnp.ones(1).dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float64", "float64", "float64", "float32"]
