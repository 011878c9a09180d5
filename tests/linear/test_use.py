"""The lab as a user meets it: axes, clocks, defaults, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import saddles
from saddles.errors import SaddlesError
from saddles.linear.model import TwoLayer
from saddles.linear.task import Completion, Denoising, MatrixCost, Regression, Sensing
from saddles.linear.theory import Lazy, SelfConsistent
from saddles.solvers.methods import GradientDescent, GradientFlow

TASK = Denoising(6, 2, seed=1)
MODEL = TwoLayer(50, 0.02)


def test_names_and_axes():
    run = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 10, save_every=3))
    assert run["matrix"].dims == ("time", "row", "column")
    assert run["singular_value"].dims == ("time", "mode")
    assert {"train_error", "test_error", "loss"} <= set(run.data_vars)
    assert run["step"].values.tolist() == [0, 3, 6, 9, 10]
    np.testing.assert_allclose(run["time"], 0.5 * run["step"])
    np.testing.assert_allclose(run["train_error"][-1], np.mean((run["matrix"][-1] - TASK.observed) ** 2))
    np.testing.assert_allclose(run["test_error"][-1], np.mean((run["matrix"][-1] - TASK.target) ** 2))
    np.testing.assert_allclose(
        run["singular_value"][-1], np.linalg.svd(run["matrix"][-1], compute_uv=False), atol=1e-12
    )
    assert run.attrs["method"] == "GradientDescent(rate=0.5, steps=10, save_every=3)"
    assert run.attrs["status"] == "finished"


def test_large_matrices_are_kept_only_on_request():
    task = Denoising(200, 2)
    few, many = (GradientDescent(0.1, n) for n in (2, 50))
    assert "matrix" in saddles.simulate(MODEL, task, few)
    assert "matrix" not in saddles.simulate(MODEL, task, many, keep=None)
    assert "matrix" in saddles.simulate(MODEL, task, GradientDescent(0.1, 50, 1), keep=("matrix", "errors"))
    assert "matrix" not in saddles.simulate(MODEL, task, few, keep=())


def test_errors_alone():
    run = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 4), keep=("errors",))
    assert "singular_value" not in run
    assert "test_error" in run


def test_lists_become_axes():
    model = TwoLayer([20, 400], [0.01, 0.02, 0.03])
    run = saddles.simulate(model, TASK, GradientDescent(0.5, 4), seed=[5, 6])
    assert run["loss"].dims == ("time", "width", "variance", "seed")
    assert run["loss"].shape == (5, 2, 3, 2)
    one = saddles.simulate(TwoLayer(400, 0.02), TASK, GradientDescent(0.5, 4), seed=6)
    np.testing.assert_array_equal(run["matrix"].sel(width=400, variance=0.02, seed=6), one["matrix"])


def test_flows_of_several_seeds_share_one_clock():
    runs = saddles.simulate(MODEL, TASK, GradientFlow(), seed=[0, 1, 2])
    assert runs["loss"].dims == ("time", "seed")
    assert np.isfinite(runs["loss"].values).all()
    assert runs.attrs["status"] == "finished"
    first, last = runs["loss"].isel(time=0), runs["loss"].isel(time=-1)
    assert (last < 1e-3 * first).all()


def test_flow_with_a_narrow_network_settles_too():
    run = saddles.simulate(TwoLayer(1, 0.1), TASK, GradientFlow())
    assert run.attrs["status"] == "finished"
    left, values, right = np.linalg.svd(TASK.observed)
    np.testing.assert_allclose(
        run["matrix"].values[-1], values[0] * np.outer(left[:, 0], right[0]), atol=0.05 * values[0]
    )


@pytest.mark.parametrize("theory", [SelfConsistent(), Lazy()])
def test_predictions_without_times_settle(theory):
    made = saddles.predict(MODEL, TASK, theory)
    assert made.attrs["status"] == "finished"
    assert float(made["loss"][-1]) < 1e-3 * float(made["loss"][0])


def test_asked_times_are_kept():
    times = [0.5, 1.0, 4.0]
    assert saddles.simulate(MODEL, TASK, GradientFlow(), times=times)["time"].values.tolist() == times
    assert saddles.simulate(MODEL, TASK, GradientDescent(0.5, 8), times=times)["step"].values.tolist() == [1, 2, 8]
    assert saddles.predict(MODEL, TASK, SelfConsistent(), times=times)["time"].values.tolist() == times


def test_single_precision_on_request():
    double = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 20))
    single = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 20), precision="float32")
    assert single["matrix"].dtype == np.float32
    assert double["matrix"].dtype == np.float64
    np.testing.assert_allclose(single["matrix"], double["matrix"], atol=1e-5)


def test_device_is_chosen():
    saddles.simulate(MODEL, TASK, GradientDescent(0.5, 2), device="cpu:0")
    with pytest.raises(SaddlesError, match="this machine has cpu:0"):
        saddles.simulate(MODEL, TASK, GradientDescent(0.5, 2), device="tpu:5")


def test_a_diverging_run_keeps_what_it_had():
    run = saddles.simulate(MODEL, TASK, GradientDescent(300.0, 200))
    assert run.attrs["status"].startswith("stopped: diverged at step")
    assert "try a smaller one" in run.attrs["status"]
    assert 1 <= run.sizes["time"] < 201
    assert np.isfinite(run["loss"].values).all()


def _nan(matrix):
    return jnp.sum(matrix) * jnp.nan


def _late_nan(matrix):
    return jnp.sum(jnp.where(matrix > 5, jnp.nan, (matrix - 10.0) ** 2))


def test_cost_that_turns_nan_stops_the_run():
    run = saddles.simulate(MODEL, MatrixCost(_late_nan, (4, 4)), GradientDescent(0.01, 100))
    assert run.attrs["status"].startswith("stopped: diverged")
    assert np.isfinite(run["loss"].values).all()


BAD = {
    "negative variance": (lambda: TwoLayer(10, -0.1), "must be positive"),
    "zero width": (lambda: TwoLayer(0, 0.1), "at least 1"),
    "broken width": (lambda: TwoLayer(2.5, 0.1), "whole number"),
    "rank above dimension": (lambda: Denoising(5, 6), "between 1 and the dimension 5"),
    "rank above the smaller": (lambda: Denoising(5, 4, dim_out=3), "dimension 3"),
    "negative noise": (lambda: Denoising(5, 2, noise=-1.0), "at least 0"),
    "no dimension": (lambda: Denoising(0, 1), "at least 1"),
    "spectrum of another length": (lambda: Denoising(5, 2, spectrum=[1.0]), "rank = 2"),
    "fraction": (lambda: Completion(5, 2, fraction=1.5), "between 0 and 1"),
    "measurements": (lambda: Sensing(5, 2, measurements=0), "at least one"),
    "covariance": (lambda: Regression(5, 2, covariance=-np.eye(5)), "positive semidefinite"),
    "cost of a matrix": (lambda: MatrixCost(lambda a: a, (3, 3)), "one number"),
    "cost that fails": (lambda: MatrixCost(lambda a: a @ jnp.ones((7, 7)), (3, 3)), "jax.numpy"),
    "nan cost": (lambda: saddles.simulate(MODEL, MatrixCost(_nan, (3, 3)), GradientDescent(0.1, 3)), "finite number"),
    "nan cost, theory": (lambda: saddles.predict(MODEL, MatrixCost(_nan, (3, 3)), SelfConsistent()), "finite number"),
    "negative rate": (lambda: GradientDescent(-1.0, 3), "positive learning rate"),
    "negative steps": (lambda: GradientDescent(1.0, -3), "at least 0"),
    "negative time": (lambda: GradientFlow(until=-1.0), "positive time"),
    "tolerance": (lambda: GradientFlow(rtol=2.0), "between 0 and 1"),
    "weights that do not fit": (lambda: TwoLayer.from_weights(np.ones((3, 4)), np.ones((4, 4))), "width × d_in"),
    "weights with nan": (lambda: TwoLayer.from_weights(np.ones((3, 4)) * np.nan, np.ones((4, 3))), "finite"),
    "weights of another task": (
        lambda: saddles.simulate(TwoLayer.from_weights(np.ones((3, 4)), np.ones((4, 3))), TASK, GradientFlow()),
        "the task has shape",
    ),
    "keep": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), keep=("matrices",)), "can be kept"),
    "times beyond": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), times=[9.0]), "raise `steps`"),
    "falling times": (lambda: saddles.simulate(MODEL, TASK, GradientFlow(), times=[2.0, 1.0]), "increasing times"),
    "another method": (lambda: saddles.simulate(MODEL, TASK, Lazy()), "GradientDescent or GradientFlow"),
    "a method as a theory": (lambda: saddles.predict(MODEL, TASK, GradientDescent(0.1, 3)), "a module `theory`"),
    "no seeds": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), seed=[]), "empty list"),
    "precision": (lambda: saddles.simulate(MODEL, TASK, GradientFlow(), precision="float16"), "float64 or float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name):
    make, words = BAD[name]
    with pytest.raises(SaddlesError) as caught:
        make()
    sentence = str(caught.value)
    assert words in sentence
    assert "\n" not in sentence
    assert "came" in sentence
    assert "; " in sentence, "no hint what to try"
