"""Models, theories and methods of the user's own beside those of the lab."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr

import saddles
from saddles.core.status import FINISHED
from saddles.errors import SaddlesError
from saddles.linear import Balanced, Denoising, GradientDescent, GradientFlow, Lazy, SelfConsistent, TwoLayer
from saddles.solvers.dynamics import Path

TASK = Denoising(6, 2, seed=1)
MODEL = TwoLayer(50, 0.02)
TIMES = np.linspace(0.0, 3.0, 4)


class Frozen:
    """A theory: nothing ever changes."""

    def predict(self, model, task, *, times, seed, **options):
        inner, outer = model.start(task, seed)
        return saddles.trajectory({"loss": np.full(len(times), float(task.cost(outer @ inner.T)))}, times)


def test_a_theory_of_ones_own_predicts_the_labs_model():
    predicted = saddles.predict(MODEL, TASK, Frozen(), times=TIMES, seed=[0, 1])
    measured = saddles.simulate(MODEL, TASK, GradientFlow(), times=TIMES, seed=[0, 1])
    assert predicted["loss"].dims == ("time", "seed")
    np.testing.assert_allclose(predicted["loss"][0], measured["loss"][0], rtol=1e-12)
    assert float(saddles.compare(measured, predicted)["error"].sel(kind="final").max()) > 0.1


@dataclass(frozen=True)
class Ones:
    """A model: both layers are a constant, and it is trained by a loop of its own."""

    size: float
    random = False
    width, threshold = 3, 0.1

    def start(self, task, seed=0):
        rows, columns = task.shape
        return np.full((columns, 3), self.size), np.full((rows, 3), 0.5 * self.size)

    def simulate(self, task, method, *, times=None):
        inner, outer = self.start(task)
        losses = []
        for _ in range(method.steps + 1):
            losses.append(float(task.cost(outer @ inner.T)))
            slope = np.asarray(task.cost.gradient(outer @ inner.T))
            inner, outer = inner - method.rate * slope.T @ outer, outer - method.rate * slope @ inner
        return saddles.trajectory({"loss": losses}, method.rate * np.arange(method.steps + 1))


def test_a_model_of_ones_own_with_the_labs_task_and_theories():
    """The theories get what they need from `start`, `threshold` and `width`."""
    method = GradientDescent(0.5, 20)
    measured = saddles.simulate(Ones(0.3), TASK, method)
    same = TwoLayer.from_weights(np.full((3, 6), 0.3), np.full((6, 3), 0.15), variance=0.1 / 3)
    np.testing.assert_allclose(measured["loss"], saddles.simulate(same, TASK, method)["loss"], rtol=1e-12)
    for theory in (SelfConsistent(method), Balanced(method), Lazy(method)):
        ours, theirs = (saddles.predict(model, TASK, theory) for model in (Ones(0.3), same))
        xr.testing.assert_equal(ours["matrix"], theirs["matrix"])


def test_arguments_without_a_meaning_are_refused():
    cases: list[dict[str, Any]] = [{"seed": 3}, {"keep": ("matrix",)}, {"device": "cpu"}, {"precision": "float32"}]
    for words in cases:
        with pytest.raises(SaddlesError, match=r"has no (meaning|effect)"):
            saddles.simulate(Ones(0.3), TASK, GradientDescent(0.5, 2), **words)


@dataclass(frozen=True)
class Heun:
    """A method: the mean of two slopes."""

    rate: float
    steps: int

    def follow(self, dynamics, times=None):
        state, rows = dynamics.start, []
        for _ in range(self.steps + 1):
            rows.append(dynamics.observe(state, dynamics.args))
            here = dynamics.slope(state, dynamics.args)
            there = dynamics.slope(self._moved(state, here, self.rate), dynamics.args)
            state = self._moved(self._moved(state, here, self.rate / 2), there, self.rate / 2)
        saved = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return Path(self.rate * np.arange(self.steps + 1), saved, state, FINISHED)

    def _moved(self, state, slope, by):
        if isinstance(state, tuple):
            return tuple(part + by * move for part, move in zip(state, slope, strict=True))
        return state + by * slope


def test_a_method_of_ones_own_trains_the_labs_model_and_moves_its_theories():
    """Heun's method is of second order: halving the rate leaves a quarter of the error."""
    flow = saddles.simulate(MODEL, TASK, GradientFlow(rtol=1e-11), times=[0.0, 8.0])["matrix"][-1].values
    theory = saddles.predict(MODEL, TASK, SelfConsistent(rtol=1e-11), times=[0.0, 8.0])["matrix"][-1].values
    errors = [
        (
            np.abs(saddles.simulate(MODEL, TASK, method)["matrix"][-1].values - flow).max(),
            np.abs(saddles.predict(MODEL, TASK, SelfConsistent(method))["matrix"][-1].values - theory).max(),
        )
        for method in (Heun(1.0, 8), Heun(0.5, 16))
    ]
    assert np.log2(np.array(errors[0]) / errors[1]) == pytest.approx(2.0, abs=0.3)
    assert saddles.simulate(MODEL, TASK, Heun(1.0, 2), seed=[0, 1])["loss"].dims == ("time", "seed")


def test_a_pairing_that_does_not_fit_is_refused():
    """In a process of its own, without the run-time checks of annotations that tests have."""
    script = """
import saddles
from saddles.linear import Denoising, GradientDescent, Lazy, SelfConsistent, TwoLayer
for wrong in (
    lambda: saddles.predict(TwoLayer(9, 0.1), Denoising(4, 1), GradientDescent(0.5, 3)),
    lambda: SelfConsistent(Lazy()),
    lambda: SelfConsistent(GradientDescent),
):
    try:
        wrong()
    except saddles.SaddlesError as error:
        print(error)
"""
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    first, second, third = seen.splitlines()
    assert "must have a method `predict`; GradientDescent has none" in first
    assert "GradientFlow or GradientDescent, or by an object with a method `follow`; got Lazy" in second
    assert "got GradientDescent" in third


@pytest.mark.slow
def test_double_precision_is_left_to_the_user():
    """saddles computes in float64 and leaves JAX as it found it; also with several threads, and lists of seeds."""
    script = """
import jax.numpy as jnp, numpy as np, saddles
from saddles.linear import Denoising, GradientDescent, GradientFlow, MatrixCost, SelfConsistent, TwoLayer
from saddles.linear.diagram import follow_cells
task, model = Denoising(4, 1), TwoLayer(9, 0.1)
run = saddles.simulate(model, task, GradientFlow(), seed=[0, 1])
predicted = saddles.predict(model, task, SelfConsistent(GradientDescent(0.5, 3)))
custom = saddles.simulate(model, MatrixCost(lambda a: jnp.sum((a - 1) ** 2), (4, 4)), GradientDescent(0.01, 3))
cells = follow_cells(task, [9], [(0, 0.1, 1.0), (0, 0.2, 1.0)], seed=0, limit=50)
print(run["matrix"].dtype, predicted["matrix"].dtype, custom["matrix"].dtype, cells["best_test_error"].dtype)
print(jnp.ones(1).dtype)
"""
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert seen == ["float64"] * 4 + ["float32"]
