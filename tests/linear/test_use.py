"""The lab as a user meets it: axes, clocks, defaults, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import saddles
from saddles.concepts import Identity
from saddles.core.status import Ending, status_of
from saddles.diagonal import AttentionHead
from saddles.errors import SaddlesError
from saddles.linear.model import TwoLayer
from saddles.linear.task import Completion, Denoising, MatrixCost, Regression, Sensing
from saddles.linear.theory import Aligned, Balanced, Lazy, SelfConsistent
from saddles.solvers.methods import GradientDescent, GradientFlow

TASK = Denoising(6, 2, seed=1)
MODEL = TwoLayer(50, 0.02)
MOVED = (SelfConsistent, Balanced, Lazy)


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
    assert "matrix" in saddles.simulate(
        MODEL, task, GradientDescent(0.1, 50, 1), keep=("matrix",), skip=("singular_value",)
    )
    assert "matrix" not in saddles.simulate(MODEL, task, few, keep=())


@pytest.mark.parametrize("theory", [None, SelfConsistent(), Lazy(), Aligned()])
def test_what_is_skipped_is_not_computed_and_keeps_the_rest(theory):
    words = {"times": [0.0, 1.0], "skip": ("singular_value",)}
    run = (
        saddles.simulate(MODEL, TASK, GradientFlow(), **words)
        if theory is None
        else saddles.predict(MODEL, TASK, theory, **words)
    )
    assert "singular_value" not in run
    assert {"test_error", "matrix"} <= set(run)


def test_the_old_way_to_skip_warns_and_works():
    with pytest.warns(DeprecationWarning, match="skip="):
        run = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 4), keep=("errors",))
    assert set(run.data_vars) == {"loss", "train_error", "test_error", "threshold", "hidden_units"}


def test_the_old_name_of_a_theorys_method_warns_and_works():
    with pytest.warns(DeprecationWarning, match="`method`"):
        theory = SelfConsistent(descent=GradientDescent(0.5, 4))
    assert theory == SelfConsistent(GradientDescent(0.5, 4))


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
    assert status_of(runs).ok
    first, last = runs["loss"].isel(time=0), runs["loss"].isel(time=-1)
    assert (last < 1e-3 * first).all()


def test_flow_with_a_narrow_network_settles_too():
    run = saddles.simulate(TwoLayer(1, 0.1), TASK, GradientFlow())
    assert status_of(run).ending == Ending.CONVERGED
    left, values, right = np.linalg.svd(TASK.observed)
    np.testing.assert_allclose(
        run["matrix"].values[-1], values[0] * np.outer(left[:, 0], right[0]), atol=0.05 * values[0]
    )


def test_a_balanced_prediction_of_a_narrow_network_settles_too():
    """Of rank 1 its cost never falls far, and its gradient does not either."""
    predicted = saddles.predict(TwoLayer(1, 0.1), TASK, Balanced(), skip=("singular_value",))
    assert status_of(predicted).ending == Ending.CONVERGED
    best = np.sum(np.linalg.svd(TASK.observed)[1][1:] ** 2) / TASK.observed.size
    assert float(predicted["loss"][-1]) == pytest.approx(best, rel=1e-4)


def test_a_narrow_network_is_not_done_at_its_first_saddle():
    """Three modes of 40, 20 and 5 from weights of 1e-6, one after another: between them hardly anything moves."""
    task, model = Denoising(20, 3, noise=0.0, spectrum=(40.0, 20.0, 5.0), seed=1), TwoLayer(3, 1e-12)
    for run in (saddles.simulate(model, task, GradientFlow()), saddles.predict(model, task, Balanced())):
        assert status_of(run).ending == Ending.CONVERGED
        np.testing.assert_allclose(run["singular_value"].isel(time=-1)[:3], [800.0, 400.0, 100.0], rtol=0.1)


@pytest.mark.parametrize("theory", [SelfConsistent(), Lazy()])
def test_predictions_without_times_settle(theory):
    predicted = saddles.predict(MODEL, TASK, theory)
    assert status_of(predicted).ending == Ending.CONVERGED
    assert float(predicted["loss"][-1]) < 1e-3 * float(predicted["loss"][0])


@pytest.mark.parametrize("theory", [SelfConsistent(), Lazy(), Aligned()])
def test_predictions_of_several_seeds_share_one_clock(theory):
    predicted = saddles.predict(MODEL, TASK, theory, seed=[0, 1])
    assert predicted["loss"].dims == ("time", "seed")
    assert np.isfinite(predicted["loss"].values).all()


def test_asked_times_are_kept():
    times = [0.5, 1.0, 4.0]
    assert saddles.simulate(MODEL, TASK, GradientFlow(), times=times)["time"].values.tolist() == times
    assert saddles.simulate(MODEL, TASK, GradientDescent(0.5, 8), times=times)["step"].values.tolist() == [1, 2, 8]
    assert saddles.predict(MODEL, TASK, SelfConsistent(), times=times)["time"].values.tolist() == times


@pytest.mark.parametrize("theory", [*(moved(GradientDescent(0.5, 4)) for moved in MOVED), Lazy(), Aligned()])
def test_theories_in_single_precision(theory):
    single = saddles.predict(MODEL, TASK, theory, times=[0.0, 1.0], precision="float32")
    double = saddles.predict(MODEL, TASK, theory, times=[0.0, 1.0])
    assert single["matrix"].dtype == np.float32
    assert double["matrix"].dtype == np.float64
    np.testing.assert_allclose(single["matrix"], double["matrix"], atol=1e-5)


def test_single_precision_on_request():
    double = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 20))
    single = saddles.simulate(MODEL, TASK, GradientDescent(0.5, 20), precision="float32")
    assert single["matrix"].dtype == np.float32
    assert double["matrix"].dtype == np.float64
    np.testing.assert_allclose(single["matrix"], double["matrix"], atol=1e-5)


def test_device_is_chosen():
    saddles.simulate(MODEL, TASK, GradientDescent(0.5, 2), device="cpu:0")
    with pytest.raises(SaddlesError, match=r"one of this machine's \(cpu:0\)"):
        saddles.simulate(MODEL, TASK, GradientDescent(0.5, 2), device="tpu:5")


def test_a_diverging_run_keeps_what_it_had():
    run = saddles.simulate(MODEL, TASK, GradientDescent(300.0, 200))
    assert status_of(run).ending == Ending.DIVERGED
    assert "try a smaller rate" in status_of(run).reason
    assert 1 <= run.sizes["time"] < 201
    assert np.isfinite(run["loss"].values).all()


def _nan(matrix):
    return jnp.sum(matrix) * jnp.nan


def _late_nan(matrix):
    return jnp.sum(jnp.where(matrix > 5, jnp.nan, (matrix - 10.0) ** 2))


def test_cost_that_turns_nan_stops_the_run():
    run = saddles.simulate(MODEL, MatrixCost(_late_nan, (4, 4)), GradientDescent(0.01, 100))
    assert status_of(run).ending == Ending.DIVERGED
    assert np.isfinite(run["loss"].values).all()


BAD = {
    "negative variance": (lambda: TwoLayer(10, -0.1), "`variance` must be positive"),
    "zero width": (lambda: TwoLayer(0, 0.1), "at least 1"),
    "broken width": (lambda: TwoLayer(2.5, 0.1), "whole number"),
    "rank above dimension": (lambda: Denoising(5, 6), "between 1 and the dimension 5"),
    "rank above the smaller": (lambda: Denoising(5, 4, dim_out=3), "dimension 3"),
    "negative noise": (lambda: Denoising(5, 2, noise=-1.0), "at least 0"),
    "no dimension": (lambda: Denoising(0, 1), "at least 1"),
    "spectrum of another length": (lambda: Denoising(5, 2, spectrum=[1.0]), "rank = 2"),
    "spectrum with nan": (lambda: Denoising(5, 2, spectrum=[1.0, np.nan]), "rank = 2 positive numbers"),
    "seed of a task": (lambda: Denoising(5, 2, seed=-1), "`seed` must be a whole number of at least 0"),
    "fraction": (lambda: Completion(5, 2, fraction=1.5), "between 0 and 1"),
    "measurements": (lambda: Sensing(5, 2, measurements=0), "at least 1"),
    "covariance": (lambda: Regression(5, 2, covariance=-np.eye(5)), "positive semidefinite"),
    "cost of a matrix": (lambda: MatrixCost(lambda a: a, (3, 3)), "one number"),
    "cost that fails": (lambda: MatrixCost(lambda a: a @ jnp.ones((7, 7)), (3, 3)), "jax.numpy"),
    "cost that fails otherwise": (lambda: MatrixCost(lambda a: getattr(a, "no" + "thing"), (3, 3)), "AttributeError"),
    "cost of no columns": (lambda: MatrixCost(lambda a: a.sum(), (3, 0)), "`shape` must be two whole numbers"),
    "weights that never move": (
        lambda: saddles.simulate(
            TwoLayer.from_weights(np.zeros((3, 6)), np.zeros((6, 3)), variance=1.0), TASK, GradientFlow()
        ),
        "no time scale",
    ),
    "a start too small to be squared": (lambda: saddles.predict(TwoLayer(9, 1e-300), TASK, Lazy()), "no time scale"),
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
    "keep": (
        lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), keep=("matrices",)),
        "names out of matrix, gram",
    ),
    "keep a factor": (
        lambda: saddles.predict(MODEL, TASK, Lazy(), keep=("gram",)),
        "names out of matrix;",
    ),
    "skip": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), skip=("loss",)), "singular_value"),
    "unknown option": (
        lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), speed=2),
        "`speed` has no meaning",
    ),
    "times beyond": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), times=[9.0]), "Raise `steps`"),
    "falling times": (lambda: saddles.simulate(MODEL, TASK, GradientFlow(), times=[2.0, 1.0]), "increasing numbers"),
    "another method": (lambda: saddles.simulate(MODEL, TASK, Lazy()), "GradientFlow or GradientDescent"),
    "a task of another lab": (lambda: saddles.simulate(MODEL, Identity([1.0, 2.0], 0.1), GradientFlow()), "Denoising"),
    "a model of another lab": (lambda: saddles.predict(AttentionHead(3), TASK, Lazy()), "TwoLayer"),
    "seed of given weights": (
        lambda: saddles.simulate(TwoLayer.from_weights(np.eye(6), np.eye(6)), TASK, GradientFlow(), seed=1),
        "nothing is random",
    ),
    "no seeds": (lambda: saddles.simulate(MODEL, TASK, GradientDescent(0.1, 3), seed=[]), "a list of them"),
    "precision": (lambda: saddles.simulate(MODEL, TASK, GradientFlow(), precision="float16"), "'float64' or 'float32'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name):
    make, words = BAD[name]
    with pytest.raises(SaddlesError) as caught:
        make()
    sentence = str(caught.value)
    assert words in sentence
    assert "\n" not in sentence
    assert "came" not in sentence
