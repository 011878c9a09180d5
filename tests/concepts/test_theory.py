import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from saddles import SaddlesError, compare, predict, simulate
from saddles.concepts import (
    MLP,
    GradientFlow,
    Identity,
    OneLayer,
    OneLayerTheory,
    SymmetricTwoLayer,
    TwoLayerTheory,
)
from saddles.concepts.observe import kinds, terms
from saddles.concepts.pivots import pivots, pivots_of_factor
from saddles.concepts.theory import paper_field, two_layer_field
from saddles.core.status import Ending, status_of


def _psd(draw, size):
    factor = draw.normal(size=(size, size))
    return factor @ factor.T


@pytest.mark.parametrize("seed", range(3))
def test_theorem_4_1_is_the_matrix_exponential(seed):
    draw = np.random.default_rng(seed)
    task = Identity((1.0, 2.0, 0.5), draw.uniform(0.1, 1, 3), dim=6)
    start = draw.normal(size=(6, 6))
    times = np.linspace(0, 8, 9)
    found = predict(OneLayer(start), task, OneLayerTheory(), times=times)
    for t, jacobian, output in zip(times, found["jacobian"].values, found["output"].values, strict=True):
        decay = scipy.linalg.expm(-task.second_moment * t)
        exact = np.eye(6) + (start - np.eye(6)) @ decay
        np.testing.assert_allclose(jacobian, exact, atol=1e-12)
        np.testing.assert_allclose(output, exact @ task.test_point, atol=1e-12)


def test_theorem_4_1_holds_in_any_frame_and_on_samples():
    task = Identity((1.0, 2.0), (0.5, 0.2), dim=4, samples=30, rotate=True, seed=2)
    start = np.random.default_rng(0).normal(size=(4, 4))
    found = predict(OneLayer(start), task, OneLayerTheory(), times=np.array([0.0, 1.5]))
    exact = np.eye(4) + (start - np.eye(4)) @ scipy.linalg.expm(-1.5 * task.second_moment)
    np.testing.assert_allclose(found["jacobian"][1], task.rotation.T @ exact @ task.rotation, atol=1e-12)
    np.testing.assert_allclose(found["output"][1], task.rotation.T @ exact @ task.test_point, atol=1e-12)
    np.testing.assert_allclose(found["growth"] + found["noise_term"], found["output"], atol=1e-12)


def test_the_sum_stopped_at_s_is_wrong_away_from_the_test_point():
    task = Identity((1.0,), 0.1, dim=2)
    start = np.array([[0.0, 0.7], [0.0, 0.3]])
    jacobian = predict(OneLayer(start), task, OneLayerTheory(), times=np.array([0.0, 5.0]))["jacobian"][1].values
    np.testing.assert_allclose(jacobian[:, 1], start[:, 1], rtol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_two_layer_field_is_the_gradient_of_the_loss(seed):
    draw = np.random.default_rng(seed)
    factor = jnp.asarray(draw.normal(size=(5, 7)))
    moment = jnp.asarray(np.diag(draw.uniform(0, 2, 5)))

    def loss(u):
        root = jnp.sqrt(moment)
        return 0.5 * jnp.sum(((u @ u.T - jnp.eye(5)) @ root) ** 2)

    slope = -jax.grad(loss)(factor)
    flow = slope @ factor.T + factor @ slope.T
    ours = two_layer_field(factor @ factor.T, moment)
    np.testing.assert_allclose(ours, flow, rtol=1e-12, atol=1e-12 * float(jnp.abs(flow).max()))
    half = paper_field(factor @ factor.T, moment)
    np.testing.assert_allclose(2 * half, flow, atol=1e-12 * float(jnp.abs(flow).max()))


def test_terms_add_up_to_the_paper_field_and_match_a_loop():
    draw = np.random.default_rng(1)
    W, a = _psd(draw, 4), draw.uniform(0, 2, 4)
    found = terms(W, a)
    total = found["growth"] - found["suppression"] - found["noise_term"]
    np.testing.assert_allclose(total, paper_field(jnp.asarray(W), jnp.asarray(np.diag(a))), rtol=1e-12)
    for i in range(4):
        for j in range(4):
            noise = 0.5 * sum(W[k, i] * W[k, j] * (a[i] + a[j] + 2 * a[k]) for k in range(4) if k not in (i, j))
            assert found["noise_term"][i, j] == pytest.approx(noise, rel=1e-12)
            off = W[j, j] * (3 * a[j] + a[i]) if i != j else 0
            assert found["suppression"][i, j] == pytest.approx(0.5 * W[i, j] * (W[i, i] * (3 * a[i] + a[j]) + off))


def test_two_layer_theory_meets_the_flow_of_the_factor():
    task = Identity((1.0, 2.0), 0.3, dim=3, rotate=True, seed=1)
    model = SymmetricTwoLayer.gaussian(3, 4, 0.2, seed=4)
    times = np.linspace(0, 6, 25)
    measured = simulate(model, task, GradientFlow(), times=times)
    predicted = predict(model, task, TwoLayerTheory(), times=times)
    errors = compare(measured, predicted)["error"]
    assert {"output", "jacobian", "growth", "suppression", "noise_term", "loss", "test_loss"} <= set(
        errors["variable"].values
    )
    assert float(errors.sel(kind="max_relative").max()) < 1e-7
    np.testing.assert_allclose(measured["paper_time"], 2 * times)


def test_a_diagonal_start_is_logistic():
    task = Identity((1.0, 2.0), 0.3)
    start = np.diag([0.01, 0.02])
    times = np.linspace(0, 8, 33)
    found = predict(SymmetricTwoLayer(weights=start), task, TwoLayerTheory(), times=times)
    for p in (0, 1):
        grown = start[p, p] * np.exp(4 * task.strengths[p] * times)
        np.testing.assert_allclose(found["jacobian"][:, p, p], grown / (1 - start[p, p] + grown), rtol=1e-7)


def test_a_power_below_one_is_refused():
    with pytest.raises(SaddlesError, match="`power` must be at least 1; got -1"):
        TwoLayerTheory(power=-1)


def test_power_two_is_another_flow():
    task = Identity((1.0, 2.0), 0.3)
    model = SymmetricTwoLayer(weights=np.diag([0.01, 0.01]))
    times = np.array([0.0, 1.0])
    squared = predict(model, task, TwoLayerTheory(power=2), times=times)["jacobian"][1, 0, 0]
    rate = 4 * task.strengths[0] ** 2
    assert float(squared) == pytest.approx(0.01 * np.exp(rate) / (0.99 + 0.01 * np.exp(rate)), rel=1e-7)


def test_without_times_the_theory_runs_until_learned():
    task = Identity((1.0, 2.0), 0.3)
    found = predict(SymmetricTwoLayer.uniform(2, 2, 0.2), task, TwoLayerTheory())
    assert status_of(found).ending is Ending.CONVERGED
    assert float(found["loss"][-1]) < 1e-3 * float(found["loss"][0])


@pytest.mark.parametrize("mu", [(1.0, 2.0), (1.0, 1.0)])
def test_a_prediction_ends_where_errors_would_learn_what_the_rank_forbids(mu):
    task = Identity(mu, 0.1)
    model = SymmetricTwoLayer(factor=[[0.13], [-0.037]])
    times = np.linspace(0, 40, 81)
    measured = simulate(model, task, GradientFlow(), times=times)
    found = predict(model, task, TwoLayerTheory(), times=times)
    status = status_of(found)
    assert status.ending is Ending.STOPPED
    assert status.reason.startswith("W(0) has rank 1")
    rows = found.sizes["time"]
    assert 10 < rows < len(times)
    np.testing.assert_allclose(found["jacobian"], measured["jacobian"][:rows], atol=1e-5)


def test_a_rank_that_no_error_leaves_ends_nothing():
    found = predict(
        SymmetricTwoLayer(weights=np.diag([0.01, 0.0])), Identity((1.0, 2.0), 0.1), TwoLayerTheory(), times=[0.0, 40.0]
    )
    assert status_of(found).ending is Ending.FINISHED
    np.testing.assert_allclose(found["jacobian"][1], np.diag([1.0, 0.0]), atol=1e-9)


def test_wrong_pairs_are_named():
    task = Identity((1.0,), 0.1)
    with pytest.raises(SaddlesError, match=r"TwoLayerTheory is for SymmetricTwoLayer.*got OneLayer"):
        predict(OneLayer(), task, TwoLayerTheory())
    for model in (SymmetricTwoLayer(top=0.1), MLP((2,)), object()):
        with pytest.raises(SaddlesError, match=f"OneLayerTheory predicts OneLayer.*got {type(model).__name__}"):
            predict(model, task, OneLayerTheory())


def test_pivots_are_squared_cholesky_diagonals():
    draw = np.random.default_rng(3)
    W = _psd(draw, 4) * 1e-3
    a = np.array([0.5, 2.0, 1.0, 3.0])
    order = np.argsort(-a)
    lower = np.linalg.cholesky(W[np.ix_(order, order)])
    times, found = pivots(W, a, "signal")
    np.testing.assert_allclose(found[order], np.diag(lower) ** 2, rtol=1e-10)
    np.testing.assert_allclose(times, np.log(1 / found) / (4 * a), rtol=1e-12)


def test_a_lost_rank_never_grows():
    direction = np.array([0.1, 0.2, 0.3])
    times, found = pivots(np.outer(direction, direction), np.array([1.0, 2.0, 3.0]), "signal")
    assert np.isfinite(times).sum() == 1
    assert (found == 0).sum() == 2


def test_greedy_order_waits_for_a_strong_concept_that_starts_from_nothing():
    W = np.array([[1e-12, 0.5e-7], [0.5e-7, 1e-2]])
    a = np.array([1.1, 1.0])
    signal, _ = pivots(W, a, "signal")
    greedy, _ = pivots(W, a, "greedy")
    task = Identity((0.0, 0.0), variance=a)
    measured = simulate(SymmetricTwoLayer(weights=W), task, GradientFlow(), times=np.linspace(0, 15, 601))
    for p in (0, 1):
        half = measured["time"].values[np.argmax(measured["jacobian"].values[:, p, p] > 0.5)]
        assert greedy[p] == pytest.approx(half, rel=0.02)
    assert abs(signal[1] - greedy[1]) > 0.01


def test_pivots_work_on_stacks():
    draw = np.random.default_rng(0)
    W = np.stack([_psd(draw, 3) * 1e-3 for _ in range(5)])
    a = draw.uniform(0.5, 2, (5, 3))
    times, _ = pivots(W, a)
    for one, w, s in zip(times, W, a, strict=True):
        np.testing.assert_allclose(one, pivots(w, s)[0])


def test_entries_have_kinds():
    names = kinds(3, 2)
    assert names[0, 0] == names[1, 1] == "major"
    assert names[2, 2] == "irrelevant"
    assert names[0, 2] == names[2, 1] == names[0, 1] == "minor"


@pytest.mark.parametrize("order", ["signal", "greedy"])
def test_pivots_of_factor_and_of_product_agree(order):
    draw = np.random.default_rng(5)
    factors, a = draw.normal(size=(20, 3, 4)) * 0.1, draw.uniform(0.5, 2, (20, 3))
    ours, theirs = pivots_of_factor(factors, a, order), pivots(factors @ factors.swapaxes(1, 2), a, order)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-9)


def test_the_factor_tells_small_pivots_from_lost_rank():
    close = np.array([[1.0, 0.0], [1.0, 1e-10]]) * 0.1
    times, found = pivots_of_factor(close, np.array([2.0, 1.0]))
    assert found[1] == pytest.approx(1e-22, rel=1e-4)
    assert np.isfinite(times).all()
    with pytest.raises(SaddlesError, match="'signal' or 'greedy'"):
        pivots(np.eye(2), np.ones(2), "random")
