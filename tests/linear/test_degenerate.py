"""Narrow networks, starts at the saddle, and arguments that used to give numbers or tracebacks without a word."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import saddles
from saddles import measures
from saddles.errors import SaddlesError
from saddles.linear import (
    Balanced,
    Denoising,
    GradientDescent,
    GradientFlow,
    MatrixCost,
    Regression,
    SelfConsistent,
    TwoLayer,
    leading_time,
    recovery_time,
)
from saddles.linear.observe import observer_of
from saddles.linear.task import check_task

TASK = Denoising(5, 1, seed=3)


@pytest.mark.parametrize("method", [GradientFlow(until=20.0), GradientDescent(0.5, 40)])
def test_modes_that_a_narrow_network_does_not_reach_are_aligned_with_nothing(method):
    """Their cosine used to be rounding over rounding, 1e15 or NaN, and NaN ended a flow as diverged."""
    run = saddles.simulate(TwoLayer(2, 0.05), TASK, method, keep=["alignment", "factor"])
    assert run.attrs["status"] == "finished"
    np.testing.assert_array_equal(run["alignment"][:, 2:], 0.0)
    for at in (0, -1):
        inner, outer = run["factor_in"].values[at], run["factor_out"].values[at]
        left, value, right = np.linalg.svd(outer @ inner.T)
        for mode in range(2):
            lengths = np.linalg.norm(outer.T @ left[:, mode]) * np.linalg.norm(inner.T @ right[mode])
            np.testing.assert_allclose(run["alignment"][at, mode], value[mode] / lengths, rtol=1e-9)


@pytest.mark.parametrize(("width", "scale"), [(300, 1.0), (600, 6e-3)])
def test_lazy_modes_of_large_networks_keep_their_alignment_in_single_precision(width, scale):
    """Alone, and beside an active mode of size d = 300; the cosines of float64 are the truth."""
    draw = np.random.default_rng(5)
    inner, outer = scale * draw.normal(size=(2, 300, width))
    if scale < 1:
        inner, outer = (part + width**-0.5 * draw.normal(size=(300, 1)) for part in (inner, outer))
    seen = []
    for kind in ("float32", "float64"):
        observer = observer_of(check_task(Denoising(300, 1)), ["alignment"], 1, kind)
        seen.append(observer.factor(jnp.asarray(inner, kind), jnp.asarray(outer, kind))["alignment"])
    np.testing.assert_allclose(*seen, atol=0.1)


def test_a_balanced_network_is_aligned_and_its_invariant_has_no_relative_drift():
    run = saddles.predict(TwoLayer(2, 0.05), TASK, Balanced(), times=[0.0, 5.0, 50.0], keep=["alignment", "factor"])
    np.testing.assert_allclose(run["alignment"], np.tile([1.0, 1.0, 0.0, 0.0, 0.0], (3, 1)), atol=1e-6)
    assert np.isnan(measures.invariant_drift(run)).all()
    drawn = saddles.predict(TwoLayer(9, 0.05), TASK, SelfConsistent(), times=[0.0, 5.0], keep=["factor"])
    assert float(measures.invariant_drift(drawn)[-1]) < 1e-6


def test_a_balanced_network_at_the_saddle_stays_there():
    """A factor without columns: a flow of it used to end as a traceback."""
    model = TwoLayer.from_weights(np.zeros((4, 5)), np.zeros((5, 4)), 0.1)
    still = float(np.mean(TASK.observed**2))
    for theory in (Balanced(), Balanced(method=GradientDescent(0.1, 3))):
        run = saddles.predict(model, TASK, theory, times=[0.0, 0.1, 0.3])
        np.testing.assert_allclose(run["loss"], still)
        np.testing.assert_array_equal(run["matrix"], 0.0)


def _cost(matrix):
    return jnp.sum((matrix - 1.0) ** 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MatrixCost(_cost, (3, 3), target=np.ones(3)), "`target` must be a finite matrix of shape (3, 3)"),
        (lambda: MatrixCost(_cost, (3, 3), target=np.full((3, 3), np.nan)), "`target` must be a finite matrix"),
        (lambda: MatrixCost(lambda a: jnp.sum(a > 0), (3, 3)), "must return a real number"),
        (lambda: MatrixCost(lambda a: jnp.sum(1j * a), (3, 3)), "must return a real number"),
        (lambda: Regression(2, 1, covariance=1e-9 * np.array([[1.0, 0.9], [0.0, 1.0]])), "symmetric"),
        (lambda: leading_time(50, 1.5, -1.0, [0.0, 1.0]), "`spectrum` must be positive numbers"),
        (lambda: leading_time(50, 1.5, -1.0, []), "`spectrum` must be positive numbers"),
        (lambda: leading_time(50, np.nan, -1.0, [1.0]), "exists only where"),
        (lambda: recovery_time(50, 1.5, -1.0, [1.0, np.nan]), "`spectrum` must be"),
        (lambda: recovery_time(50, 1.5, -np.inf, [1.0, 0.5]), "exists only where"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(make, words):
    with pytest.raises(SaddlesError, match=re.escape(words)):
        make()


def test_a_small_symmetric_covariance_is_taken():
    sigma = 1e-12 * np.array([[2.0, 1.0], [1.0, 1.0]])
    assert Regression(2, 1, covariance=sigma).cost is not None
