"""Models, theories and methods of the user's own with those of the lab; what does not fit is refused."""

import inspect
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import saddles
from saddles import linear
from saddles.core.status import FINISHED, status_of
from saddles.errors import SaddlesError
from saddles.margin import (
    AttentionModel,
    DiagonalAttention,
    FactoredAttention,
    JointAttention,
    MarginFlow,
    MaxMargin,
    Tokens,
    aligned_weights,
    check_assumptions,
)
from saddles.margin.attention import FactoredFlow, JointFlow
from saddles.solvers.dynamics import Dynamics, Path

TASK = Tokens.random(3, 3, 5, 3, seed=4, diagonal=True)
simulate, predict = inspect.unwrap(saddles.simulate), inspect.unwrap(saddles.predict)
"""As users have them: without the type checks that these tests add, which would refuse first."""


class Symmetric(AttentionModel):
    """K = Q at the start: another start of the lab's own flow."""

    norm = "nuclear"
    random = True

    def flow(self, task, seed=0):
        factor = 0.1 * np.random.default_rng(seed).normal(size=(task.shape[2], 2))
        return FactoredFlow(task, 2), np.concatenate([factor.ravel(), factor.ravel(), np.zeros(len(task.left))])


def test_own_model_by_the_method_and_the_theory_of_the_lab():
    run = saddles.simulate(Symmetric(), TASK, MarginFlow(100.0), seed=1, keep=["factors"])
    assert status_of(run).ok
    assert float(run["frobenius_norm"][-1]) == pytest.approx(100.0, rel=1e-5)
    np.testing.assert_array_equal(run["key"][0], run["query"][0])
    same = saddles.simulate(Symmetric(), TASK, MarginFlow(100.0), seed=1)
    np.testing.assert_array_equal(run["weights"], same["weights"])
    limit = saddles.predict(Symmetric(), TASK, MaxMargin())
    expected = saddles.predict(FactoredAttention(), TASK, MaxMargin())
    np.testing.assert_array_equal(limit["objective"], expected["objective"])


def test_theory_of_the_lab_for_a_model_without_a_base_class():
    @dataclass(frozen=True)
    class Elsewhere:
        norm: str = "frobenius"

    limit = saddles.predict(Elsewhere(), TASK, MaxMargin())
    assert float(limit["objective"][0]) == float(saddles.predict(JointAttention(), TASK, MaxMargin())["objective"][0])


def test_own_theory_of_a_model_of_the_lab():
    class Silent:
        def predict(self, model, task, *, times, seed):
            key, query = model.start(task, seed)
            return saddles.trajectory({"margin": np.full(len(times), task.margins(key @ query.T).min())}, times)

    times, model = [0.0, 0.1], FactoredAttention(scale=0.1)
    measured = saddles.simulate(model, TASK, MarginFlow(), times=times, seed=3)
    predicted = saddles.predict(model, TASK, Silent(), times=times, seed=3)
    assert float(predicted["margin"][0]) == pytest.approx(float(measured["margin"][0]))


@dataclass(frozen=True)
class Euler:
    """A method of the user's own: explicit steps, observed at each."""

    step: float = 1e-3

    def follow(self, dynamics, times=None):
        clock = np.linspace(0.0, 1.0, 1001) if times is None else times
        state, now, seen = dynamics.start, 0.0, []
        for instant in clock:
            while now < instant - 1e-12:
                state = state + self.step * dynamics.slope(state, dynamics.args)
                now += self.step
            seen.append(dynamics.observe(state, dynamics.args))
        saved = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
        return Path(clock, saved, state, FINISHED)


@pytest.mark.parametrize("model", [DiagonalAttention(0.3), FactoredAttention(scale=0.3), JointAttention()])
def test_own_method_trains_every_model(model):
    times = [0.0, 0.05, 0.2]
    own = saddles.simulate(model, TASK, Euler(), times=times)
    lab = saddles.simulate(model, TASK, MarginFlow(), times=times)
    np.testing.assert_allclose(own["margin"], lab["margin"], rtol=5e-3, atol=5e-3)
    assert "log_time" not in own, "only a method that keeps gradient time can tell it"


def _decay(state, args):
    return -state


def _see(state, args):
    return {"x": state}


def test_pairings_that_do_not_fit_are_refused():
    for make, words in (
        (lambda: simulate(JointAttention(), TASK, "fast"), "trained by MarginFlow"),
        (lambda: simulate(JointAttention(), TASK, MarginFlow), "trained by MarginFlow"),
        (lambda: simulate(JointAttention(), TASK, linear.GradientFlow()), "Use MarginFlow"),
        (lambda: simulate(JointAttention(), TASK, linear.GradientDescent(0.1, 3)), "Use MarginFlow"),
        (lambda: MarginFlow().follow(Dynamics(np.ones(2), None, _decay, _see)), "Use GradientFlow"),  # pyright: ignore[reportArgumentType]
        (lambda: predict(linear.TwoLayer(20, 1e-2), TASK, MaxMargin()), "got TwoLayer"),
    ):
        with pytest.raises(SaddlesError, match=words):
            make()


def test_other_tasks_are_refused():
    """In a process of its own: the type checks of these tests would refuse first."""
    code = """if True:
        from saddles import SaddlesError, linear, margin, predict, simulate
        model, task = margin.JointAttention(), linear.Denoising(4, 2)
        for call in (
            lambda: simulate(model, task, margin.MarginFlow()), lambda: predict(model, task, margin.MaxMargin()),
            lambda: margin.check_assumptions(task), lambda: model.horizon(task, margin.MarginFlow()),
        ):
            try:
                call()
            except SaddlesError as error:
                print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("trained on Tokens; got Denoising") == 4


def test_arguments_without_a_meaning_are_refused():
    given = FactoredAttention(weights=aligned_weights(Tokens.random(2, 3, 4, 4)))
    for make, words in (
        (lambda: predict(JointAttention(), TASK, MaxMargin(), times=[1.0]), "`times` has no meaning"),
        (lambda: predict(JointAttention(), TASK, MaxMargin(), device="tpu:9"), "`device` has no meaning"),
        (lambda: predict(JointAttention(), TASK, MaxMargin(), keep=["weights"]), "`keep` has no meaning"),
        (lambda: predict(FactoredAttention(), TASK, MaxMargin(), seed=1), "`seed` has no meaning"),
        (lambda: simulate(JointAttention(), TASK, MarginFlow(), device="cpu"), "`device` has no meaning"),
        (lambda: simulate(JointAttention(), TASK, MarginFlow(), precision="float32"), "`precision` has no meaning"),
        (lambda: simulate(JointAttention(), TASK, MarginFlow(), seed=1), "`seed` has no effect"),
        (lambda: simulate(DiagonalAttention(), TASK, MarginFlow(), seed=[0, 1]), "`seed` has no effect"),
        (lambda: simulate(given, TASK, MarginFlow(), seed=2), "`seed` has no effect"),
        (lambda: simulate(JointAttention(), TASK, MarginFlow(), keep=["factors"]), "names out of accumulated"),
    ):
        with pytest.raises(SaddlesError, match=words):
            make()


def test_several_runs_without_times_share_the_longest_clock():
    method = MarginFlow(30.0)
    runs = saddles.simulate(FactoredAttention(scale=0.1), TASK, method, seed=[0, 1])
    alone = [saddles.simulate(FactoredAttention(scale=0.1), TASK, method, seed=seed) for seed in (0, 1)]
    longest = max(alone, key=lambda run: float(run["time"][-1]))
    np.testing.assert_array_equal(runs["time"], longest["time"])
    assert float(runs["frobenius_norm"].isel(time=-1).min()) == pytest.approx(30.0, rel=1e-5)


def test_jax_keeps_its_precision():
    code = (
        "import jax.numpy as jnp; from saddles import margin, predict, simulate;"
        "task = margin.Tokens.random(2, 3, 3, seed=1); model = margin.JointAttention();"
        "run = simulate(model, task, margin.MarginFlow(10.0)); limit = predict(model, task, margin.MaxMargin());"
        "print(jnp.ones(1).dtype, run['weights'].dtype, limit['weights'].dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32", "float64", "float64"]


def test_old_name_of_the_checker_warns_and_works():
    from saddles import margin

    with pytest.warns(DeprecationWarning, match="check_assumptions"):
        assert margin.check(TASK) == check_assumptions(TASK)  # type: ignore[attr-defined]


def test_one_flow_is_enough_for_a_start_elsewhere():
    """The example of the docstring."""

    class Shifted(AttentionModel):
        norm = "frobenius"

        def flow(self, task, seed=0):
            return JointFlow(task), np.full(len(task.left), 2.0)

    run = saddles.simulate(Shifted(), TASK, MarginFlow(), times=[0.0, 0.5])
    np.testing.assert_allclose(run["weights"][0], TASK.left.T @ TASK.right)
