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
    assert "not learned" in found.attrs["status"]


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
        (lambda: SymmetricTwoLayer(weights=np.array([[1.0, 2.0], [2.0, 1.0]])).start(2), "positive semidefinite"),
        (lambda: SymmetricTwoLayer(factor=np.ones((3, 2))).start(2), "2 rows"),
        (lambda: OneLayer(np.ones((2, 3))).start(2), "match the task"),
        (lambda: MLP((0,)), "at least 1"),
        (lambda: MLP((4,), "tanh"), "linear or relu"),
        (lambda: SGD(-1.0), "positive"),
        (lambda: SGD(0.1, loss="max"), "sum or mean"),
    ],
)
def test_bad_models_are_named(make, word):
    with pytest.raises(SaddlesError, match=word):
        make()


def test_pairs_that_do_not_run_are_named():
    with pytest.raises(SaddlesError, match="use one of these pairs"):
        simulate(MLP(), Identity((1.0,), 0.1), GradientFlow())
    with pytest.raises(SaddlesError, match="save_every"):
        simulate(MLP(), Identity((1.0,), 0.1, samples=200), SGD(0.1), times=[0.0, 1.0])


def test_every_pair_says_which_assumption_it_breaks():
    task = Identity((1.0, 1.5), 0.1)
    model = SymmetricTwoLayer.uniform(2, 2, 0.2)
    flow = simulate(model, task, GradientFlow(), times=[0.0, 1.0])
    assert "D.5 is broken" in flow.attrs["assumptions"]
    assert "D.2" not in flow.attrs["assumptions"]
    assert "D.2 is broken" in simulate(model, task, GradientDescent(0.1, 5)).attrs["assumptions"]
