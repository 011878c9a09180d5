import numpy as np
import pytest

from saddles import SaddlesError, compare, predict, simulate
from saddles.concepts import (
    MLP,
    SGD,
    GradientDescent,
    GradientFlow,
    Identity,
    OneLayer,
    OneLayerTheory,
    SymmetricTwoLayer,
)
from saddles.core.status import Ending, status_of

TWO = Identity((1.0, 2.0), 0.1)


def test_one_layer_flow_is_theorem_4_1():
    task = Identity((1.0, 2.0), 0.3, dim=4, rotate=True)
    times = np.linspace(0, 5, 11)
    measured = simulate(OneLayer(), task, GradientFlow(), times=times, seed=3)
    predicted = predict(OneLayer(), task, OneLayerTheory(), times=times, seed=3)
    assert float(compare(measured, predicted)["error"].sel(kind="max_relative").max()) < 1e-7


def test_descent_converges_to_the_flow_at_first_order():
    task = Identity((1.0, 2.0), 0.3)
    model = SymmetricTwoLayer.uniform(2, 2, 0.3, seed=1)
    times = np.linspace(0, 3, 7)
    flow = simulate(model, task, GradientFlow(), times=times)
    errors = [
        float(
            np.abs(
                simulate(model, task, GradientDescent(rate, round(3 / rate)), times=times)["output"] - flow["output"]
            ).max()
        )
        for rate in (0.01, 0.005, 0.0025)
    ]
    slopes = np.diff(np.log(errors)) / np.diff(np.log([0.01, 0.005, 0.0025]))
    np.testing.assert_allclose(slopes, 1.0, atol=0.1)


def test_rotation_changes_nothing_but_the_frame():
    plain = Identity((1.0, 2.0), 0.3, dim=3)
    turned = Identity((1.0, 2.0), 0.3, dim=3, rotate=True, seed=8)
    factor = np.random.default_rng(0).normal(size=(3, 3)) * 0.2
    times = np.linspace(0, 4, 9)
    a = simulate(SymmetricTwoLayer(factor=factor), plain, GradientFlow(), times=times)
    b = simulate(SymmetricTwoLayer(factor=turned.rotation @ factor), turned, GradientFlow(), times=times)
    np.testing.assert_allclose(a["jacobian"], b["jacobian"], atol=1e-8)
    np.testing.assert_allclose(a["output"], b["output"], atol=1e-8)


def test_major_entries_stay_below_one_and_rank_is_kept():
    task = Identity((1.0, 2.0, 1.5), 0.2)
    factor = np.random.default_rng(2).normal(size=(3, 2)) * 0.3
    found = simulate(SymmetricTwoLayer(factor=factor), task, GradientFlow(until=30.0))
    jacobian = found["jacobian"].values
    assert np.diagonal(jacobian, axis1=1, axis2=2).max() <= 1 + 1e-9
    assert (np.linalg.eigvalsh(jacobian)[:, 0] < 1e-12).all()


def test_a_rank_deficient_start_is_reported():
    task = Identity((1.0, 2.0), 0.2)
    found = simulate(SymmetricTwoLayer(factor=np.array([[0.1], [0.2]])), task, GradientFlow(max_steps=2000))
    assert status_of(found).ending is Ending.STOPPED


def test_weights_and_factor_are_the_same_start():
    task = Identity((1.0, 2.0), 0.2)
    factor = np.array([[0.1, 0.02], [0.05, 0.2]])
    times = np.linspace(0, 4, 5)
    a = simulate(SymmetricTwoLayer(factor=factor), task, GradientFlow(), times=times)
    b = simulate(SymmetricTwoLayer(weights=factor @ factor.T), task, GradientFlow(), times=times)
    np.testing.assert_allclose(a["jacobian"], b["jacobian"], atol=1e-8)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SymmetricTwoLayer(), "exactly one"),
        (lambda: SymmetricTwoLayer(weights=np.array([[1.0, 2.0], [2.0, 1.0]])).start(TWO), "positive semidefinite"),
        (lambda: SymmetricTwoLayer(factor=np.ones((3, 2))).start(TWO), "2 rows"),
        (lambda: OneLayer(np.ones((2, 3))).start(TWO), "match the task"),
        (lambda: SymmetricTwoLayer.uniform(3, 3, 0.1).start(TWO), "dimension 2"),
        (lambda: SymmetricTwoLayer(factor=np.ones((2, 2)), hidden=2), "drawn factor"),
        (lambda: SymmetricTwoLayer(top=-0.1), "positive"),
        (lambda: MLP((2,), scale=0.1), "init='gaussian'"),
        (lambda: MLP((0,)), "at least 1"),
        (lambda: MLP((4,), "tanh"), "'linear' or 'relu'"),
        (lambda: SGD(-1.0), "positive"),
        (lambda: SGD(0.1, loss="max"), "'sum' or 'mean'"),
    ],
)
def test_bad_models_are_named(make, word):
    with pytest.raises(SaddlesError, match=word):
        make()


def test_pairs_that_do_not_run_are_named():
    with pytest.raises(SaddlesError, match=r"SGD trains OneLayer, MLP.*got SymmetricTwoLayer"):
        simulate(SymmetricTwoLayer(top=0.1), Identity((1.0,), 0.1, samples=200), SGD(0.1))
    with pytest.raises(SaddlesError, match=r"MLP is trained by GradientFlow.*got str"):
        simulate(MLP(), Identity((1.0,), 0.1), "sgd")
    with pytest.raises(SaddlesError, match="`keep` must be names out of jacobian; got 'terms'"):
        simulate(OneLayer(), Identity((1.0,), 0.1), GradientFlow(), keep=["terms"])


@pytest.mark.parametrize("model", [MLP((3,)), MLP((3,), "relu"), MLP((3,), bias=True)])
def test_descent_of_an_mlp_is_sgd_on_all_points(model):
    task = Identity((1.0, 2.0), 0.3, dim=3, samples=50, rotate=True)
    steps = simulate(model, task, GradientDescent(0.1, 20, 5), seed=2)
    whole = simulate(model, task, SGD(0.1, batch=None, epochs=20, save_every=5), seed=2)
    np.testing.assert_allclose(steps["output"], whole["output"], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(steps["loss"], whole["loss"], rtol=1e-10)
    assert ("jacobian" in steps) == ("jacobian" in whole) == (model == MLP((3,)))


def test_an_mlp_of_one_layer_is_the_one_layer():
    task = Identity((1.0, 2.0), 0.3, dim=3, rotate=True)
    ((start, _),) = MLP().start(task, 4)
    ours = simulate(MLP(), task, GradientFlow(until=3.0), seed=4)
    theirs = simulate(OneLayer(start), task, GradientFlow(until=3.0))
    assert float(compare(ours, theirs)["error"].sel(kind="max_relative").max()) < 1e-8
    assert {"jacobian", "output", "loss"} <= set(compare(ours, theirs)["variable"].values)


def test_seeds_draw_the_pair():
    task, times = Identity((1.0, 2.0), 0.3), np.linspace(0, 2, 5)
    model = SymmetricTwoLayer(top=0.2)
    runs = simulate(model, task, GradientFlow(), times=times, seed=[0, 1, 2])
    assert len({float(value) for value in runs["loss"][0]}) == 3
    fixed = simulate(SymmetricTwoLayer.uniform(2, 2, 0.2, seed=1), task, GradientFlow(), times=times)
    np.testing.assert_array_equal(runs["jacobian"].sel(seed=1), fixed["jacobian"])
    scales = simulate(SymmetricTwoLayer(scale=[0.1, 0.2]), task, GradientFlow(), seed=[0, 1])
    assert scales["loss"].dims == ("time", "scale", "seed")
    assert status_of(scales).ok


def test_every_pair_says_which_assumption_it_breaks():
    task = Identity((1.0, 1.5), 0.1)
    model = SymmetricTwoLayer.uniform(2, 2, 0.2)
    flow = simulate(model, task, GradientFlow(), times=[0.0, 1.0])
    assert "D.5 is broken" in flow.attrs["assumptions"]
    assert "D.2" not in flow.attrs["assumptions"]
    assert "D.2 is broken" in simulate(model, task, GradientDescent(0.1, 5)).attrs["assumptions"]
