"""Models, theories and methods of the user's own, as one would write them in a notebook cell."""

import inspect
import re
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

import saddles
from saddles.concepts import Identity, SymmetricTwoLayer
from saddles.core.status import Ending, Status, status_of
from saddles.diagonal import LinearDiagonal
from saddles.linear import Denoising, GradientDescent, GradientFlow, SelfConsistent, TwoLayer

TIMES = np.linspace(0.0, 2.0, 5)
simulate, predict = inspect.unwrap(saddles.simulate), inspect.unwrap(saddles.predict)
"""As users have them: without the type checks that these tests add, which would refuse first."""


@dataclass(frozen=True)
class Decay:
    """A model in a few lines: x' = −rate x from a drawn start."""

    rate: float | list[float] = field(default=1.0, metadata=saddles.AXIS)

    def simulate(self, task, method, *, times, seed, **options):
        start = np.random.default_rng(seed).normal()
        return saddles.trajectory({"x": start * np.exp(-np.multiply(self.rate, times))}, times, model=self, seed=seed)


class Forever:
    """A theory in a few lines: nothing ever changes."""

    def predict(self, model, task, *, times, seed):
        start = np.random.default_rng(seed).normal()
        return saddles.trajectory({"x": np.full(len(times), start)}, times, theory=self)


def test_own_model_and_theory():
    measured = saddles.simulate(Decay(), None, None, times=TIMES, seed=3)
    predicted = saddles.predict(Decay(), None, Forever(), times=TIMES, seed=3)
    error = saddles.compare(measured, predicted)["error"].sel(variable="x", kind="max_absolute")
    start = np.random.default_rng(3).normal()
    assert float(error) == pytest.approx(abs(start) * (1 - np.exp(-2.0)))
    assert predicted.attrs["theory"] == "Forever()", "no address in what is stored"


class Silent(Forever):
    """A theory that does not write its name into its result."""

    def predict(self, model, task, *, times, seed):
        return super().predict(model, task, times=times, seed=seed).drop_attrs()


def test_what_a_theory_made_says_so_and_is_drawn_as_one():
    measured = saddles.simulate(Decay(), None, None, times=TIMES)
    predicted = saddles.predict(Decay(), None, Silent(), times=TIMES)
    assert (predicted.attrs["kind"], predicted.attrs["theory"]) == ("predicted", "Silent()")
    assert "kind" not in measured.attrs
    axis = saddles.plot(measured, predicted).axes[0]
    assert [line.get_linestyle() for line in axis.get_lines()] == ["-", "--", "--"]
    named = saddles.predict(TwoLayer(100, 1e-4), Denoising(8, 2), SelfConsistent(), times=TIMES)
    assert named.attrs["theory"].startswith("SelfConsistent(")


@pytest.mark.parametrize("found", [None, {"loss": [1, 2]}, np.zeros(2)])
def test_what_is_no_trajectory_is_refused(found):
    class Own:
        def simulate(self, task, method):
            return found

        def predict(self, model, task):
            return found

    told = f"of Own must return a trajectory (`saddles.trajectory` makes one); got a {type(found).__name__}."
    with pytest.raises(saddles.SaddlesError, match=re.escape(f"`simulate` {told}")):
        simulate(Own(), None, None)
    with pytest.raises(saddles.SaddlesError, match=re.escape(f"`predict` {told}")):
        predict(None, None, Own())


def test_lists_of_an_own_model_become_axes():
    runs = saddles.simulate(Decay(rate=[1.0, 2.0]), None, None, times=TIMES, seed=[0, 1, 2])
    assert runs["x"].dims == ("time", "rate", "seed")
    alone = saddles.simulate(Decay(rate=2.0), None, None, times=TIMES, seed=1)
    np.testing.assert_array_equal(runs["x"].sel(rate=2.0, seed=1), alone["x"])


@pytest.mark.parametrize("rates", [np.array([1.0, 2.0]), np.geomspace(1.0, 2.0, 2, dtype="float32"), range(1, 3)])
def test_arrays_and_ranges_are_lists_too(rates):
    runs = simulate(Decay(rate=rates), None, None, times=TIMES)
    assert runs["x"].dims == ("time", "rate")
    np.testing.assert_array_equal(runs["x"], simulate(Decay(rate=[1.0, 2.0]), None, None, times=TIMES)["x"])
    model = TwoLayer(10, np.array([1e-3, 1e-2]))
    assert simulate(model, Denoising(6, 2), GradientFlow(), times=TIMES)["loss"].dims == ("time", "variance")
    assert predict(model, Denoising(6, 2), SelfConsistent(), times=TIMES)["loss"].dims == ("time", "variance")
    # As many scales as hidden units: an array that is taken for one value would scale each unit by its own.
    both = [SymmetricTwoLayer(hidden=2, scale=scales) for scales in ([0.1, 0.2], np.array([0.1, 0.2]))]
    one, other = (simulate(model, Identity([1.0, 2.0], [0.1, 0.1]), GradientFlow(), times=TIMES) for model in both)
    assert other["loss"].dims == ("time", "scale")
    np.testing.assert_array_equal(one["loss"], other["loss"])
    assert LinearDiagonal(3, log_alpha=np.array([-10.0, -20.0])).log_alpha is not None
    with pytest.raises(saddles.SaddlesError, match="negative number"):
        LinearDiagonal(3, log_alpha=np.array([-10.0, 20.0]))


@pytest.mark.parametrize(("words", "name"), [({"seed": [3, 3]}, "seed"), ({"rate": [1.0, 2.0, 1]}, "rate")])
def test_a_value_that_is_listed_twice_is_refused(words, name):
    model = Decay(rate=words.pop("rate", 1.0))
    with pytest.raises(saddles.SaddlesError, match=f"`{name}` must be different values"):
        simulate(model, None, None, times=TIMES, **words)


def test_own_theory_of_a_model_of_a_lab():
    class Frozen:
        def predict(self, model, task, *, times, seed, **options):
            inner, outer = model.start(task, seed)
            values = np.linalg.svd(outer @ inner.T, compute_uv=False)
            return saddles.trajectory({"singular_value": (("time", "mode"), np.tile(values, (len(times), 1)))}, times)

    task, model = Denoising(6, 2), TwoLayer(100, 1e-2)
    measured = saddles.simulate(model, task, GradientFlow(), times=TIMES)
    predicted = saddles.predict(model, task, Frozen(), times=TIMES)
    np.testing.assert_allclose(predicted["singular_value"][0], measured["singular_value"][0], rtol=1e-9)
    assert float(saddles.compare(measured, predicted)["error"].sel(kind="final").max()) > 1e-3


def test_theory_of_a_lab_for_an_own_model():
    @dataclass(frozen=True)
    class Balanced:
        """Only what the theory reads of a network: its start, its width and σ²w."""

        width: int = 8
        threshold: float = 1e-3
        random: bool = False

        def start(self, task, seed=0):
            factor = 0.1 * np.eye(task.shape[0])
            return factor, factor

    predicted = saddles.predict(Balanced(), Denoising(6, 2), SelfConsistent(), times=TIMES)
    np.testing.assert_allclose(predicted["singular_value"][0], 0.01, rtol=1e-9)


def test_own_method_trains_a_model_of_a_lab():
    from saddles.solvers.dynamics import Path

    class HalfSteps:
        """Gradient descent in twice as many steps of half the size."""

        def follow(self, dynamics, times=None):
            path = GradientDescent(rate=0.05, steps=40, save_every=2).follow(dynamics, times)
            return Path(path.times, path.saved, path.state, path.status)

    task, model = Denoising(6, 2), TwoLayer(100, 1e-2)
    halves = saddles.simulate(model, task, HalfSteps())
    wholes = saddles.simulate(model, task, GradientDescent(rate=0.1, steps=20))
    assert float(saddles.compare(wholes, halves)["error"].sel(variable="loss", kind="max_relative")) < 0.05
    assert not np.array_equal(wholes["loss"], halves["loss"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"device": "tpu:9"}, "`device` has no meaning for Forever: it takes times, seed"),
        ({"precision": "float32"}, "`precision` has no meaning for Forever"),
        ({"keep": ("x",)}, "`keep` has no meaning for Forever"),
        ({"speed": 3}, "`speed` has no meaning for Forever"),
        ({"precision": "float16"}, "`precision` must be 'float64' or 'float32'; got 'float16'"),
        ({"times": [1.0, 0.0]}, "`times` must be increasing numbers of at least 0"),
        ({"times": "soon"}, "`times` must be"),
        ({"seed": "x"}, "`seed` must be an integer of at least 0"),
        ({"seed": []}, "`seed` must be"),
        ({"seed": -1}, "`seed` must be"),
        ({"seed": [2**63, 1]}, "`seed` must be from 0 to 2⁶³ − 1 each, where it is a list"),
    ],
)
def test_arguments_without_a_meaning_are_refused(words, told):
    with pytest.raises(saddles.SaddlesError, match=told):
        predict(Decay(), None, Forever(), **({"times": TIMES} | words))


def test_a_theory_that_has_no_times_of_its_own_is_given_some():
    with pytest.raises(saddles.SaddlesError, match="Fixed needs `times`, the instants to save at"):
        predict(Decay(), None, Fixed())
    assert predict(Decay(), None, Fixed(), times=TIMES).sizes["time"] == len(TIMES)


class Fixed:
    """A theory that always wants times."""

    def predict(self, model, task, *, times):
        return saddles.trajectory({"loss": np.ones_like(times)}, times)


@pytest.mark.parametrize("thing", [object(), Decay, 3])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(saddles.SaddlesError, match="The model must"):
        simulate(thing, None, None, times=TIMES)


def test_seeds_that_change_nothing_are_refused():
    @dataclass(frozen=True)
    class Fixed:
        random: bool = False

        def simulate(self, task, method, *, times, seed=0):
            return saddles.trajectory({"x": times}, times)

    saddles.simulate(Fixed(), None, None, times=TIMES)
    for seed in (1, [0, 1, 2]):
        with pytest.raises(saddles.SaddlesError, match="`seed` has no effect"):
            saddles.simulate(Fixed(), None, None, times=TIMES, seed=seed)


def test_runs_on_different_clocks_are_not_stacked():
    class Own:
        def simulate(self, task, method, *, seed):
            return saddles.trajectory({"x": np.zeros(3)}, np.arange(3.0) * (seed + 1))

    with pytest.raises(saddles.SaddlesError, match="Give `times`"):
        saddles.simulate(Own(), None, None, seed=[0, 1])


def test_several_runs_share_the_longest_horizon_and_run_once():
    calls = []

    class Own:
        def horizon(self, task, method, *, seed):
            return np.linspace(0, seed + 1.0, 3), Status(Ending.CONVERGED)

        def simulate(self, task, method, *, seed, times):
            calls.append(seed)
            return saddles.trajectory({"x": times}, times)

    runs = saddles.simulate(Own(), None, None, seed=[0, 4, 2])
    assert calls == [0, 4, 2]
    assert float(runs["time"][-1]) == 5.0


def test_status_is_a_value():
    assert Status.parse("stopped: diverged at step 3").ending is Ending.DIVERGED
    assert Status.parse("stopped: interrupted").ending is Ending.INTERRUPTED
    assert Status.parse("finished").ok
    for status in (Status(), Status(Ending.DIVERGED, "at step 3; try a smaller rate"), Status(Ending.INTERRUPTED)):
        assert Status.parse(str(status)) == status
    together = Status.all_of([Status(), Status(Ending.STOPPED, "too long"), Status(Ending.CONVERGED)])
    assert (together.ending, together.reason) == (Ending.STOPPED, "too long")
    assert Status.all_of([Status(Ending.CONVERGED)] * 2).ending is Ending.CONVERGED
    assert status_of(saddles.trajectory({"x": TIMES}, TIMES, status=Status(Ending.FAILED, "no"))).reason == "no"


@pytest.mark.parametrize("shape", [(4,), (5, 2)])
def test_arrays_that_do_not_fit_the_times_are_refused(shape):
    with pytest.raises(saddles.SaddlesError, match="does not fit"):
        saddles.trajectory({"x": np.zeros(shape)}, TIMES)


def test_jax_stays_as_the_user_has_it():
    """Numbers are float64 inside saddles, and JAX is in single precision again afterwards."""
    code = (
        "import jax.numpy as jnp, numpy as np, saddles; from saddles import linear; "
        "run = saddles.simulate(linear.TwoLayer(9, 0.1), linear.Denoising(4, 1), linear.GradientFlow(until=1.0)); "
        "theory = saddles.predict(linear.TwoLayer(9, 0.1), linear.Denoising(4, 1), linear.SelfConsistent(), times=[1]);"
        "print(run['loss'].dtype, theory['loss'].dtype, jnp.ones(1).dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float64", "float64", "float32"]


def test_a_flow_that_stops_early_does_not_take_the_others_with_it():
    task, method, times = Denoising(3, 1), GradientFlow(max_steps=800), np.linspace(0, 30, 61)
    both = saddles.simulate(TwoLayer(3, [1e-4, 1e3]), task, method, times=times)
    alone = [saddles.simulate(TwoLayer(3, variance), task, method, times=times) for variance in (1e-4, 1e3)]
    assert [status_of(one).ending for one in alone] == [Ending.FINISHED, Ending.STOPPED]
    rows = alone[1].sizes["time"]
    assert rows < len(times)
    np.testing.assert_array_equal(both["loss"].sel(variance=1e-4), alone[0]["loss"])
    np.testing.assert_array_equal(both["loss"].sel(variance=1e3)[:rows], alone[1]["loss"])
    assert np.isnan(both["loss"].sel(variance=1e3)[rows:]).all()
    assert both.attrs["status"] == alone[1].attrs["status"]


def test_runs_that_end_early_are_counted_once():
    task = Denoising(3, 1)
    both = saddles.simulate(TwoLayer(3, [1e-4, 1e-5]), task, GradientFlow(max_steps=5))
    assert "and 1 more of 2 runs" in both.attrs["status"]
