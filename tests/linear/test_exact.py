"""The reduced dynamics are the wide network's, for every cost, shape and width."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import saddles
from saddles.linear.model import TwoLayer
from saddles.linear.task import Completion, Denoising, MatrixCost, Regression, Sensing
from saddles.solvers.methods import GradientDescent, GradientFlow
from saddles.solvers.two_layer import bartlett

ROWS, COLUMNS = 9, 13


def _covariance() -> np.ndarray:
    root = np.random.default_rng(5).normal(size=(COLUMNS, COLUMNS + 3))
    return root @ root.T / COLUMNS


def _quartic(matrix):
    return jnp.mean((matrix - 1.0) ** 4) + jnp.mean(jnp.cosh(matrix))


SHAPE: dict[str, Any] = {"dim": COLUMNS, "rank": 2, "dim_out": ROWS, "seed": 3}

TASKS: dict[str, Any] = {
    "denoising": Denoising(**SHAPE),
    "completion": Completion(**SHAPE, fraction=0.4),
    "sensing": Sensing(**SHAPE, measurements=60),
    "regression": Regression(**SHAPE, covariance=_covariance()),
    "custom": MatrixCost(_quartic, (ROWS, COLUMNS)),
}
RATES = {"denoising": 1.0, "completion": 1.0, "sensing": 1.0, "regression": 1.0, "custom": 0.05}
WIDTHS = [1, 5, 11, 18, 22, 23, 60]
"""Below the dimensions, between d and d_in + d_out = 22, at it, and above."""


def wide_descent(task, first: np.ndarray, second: np.ndarray, rate: float, steps: int) -> list[np.ndarray]:
    """Plain gradient descent on the weights of the wide network, by automatic differentiation."""
    loss = jax.jit(jax.grad(lambda weights: task.cost(weights[1] @ weights[0])))
    weights = (jnp.asarray(first), jnp.asarray(second))
    seen = [np.asarray(weights[1] @ weights[0])]
    for _ in range(steps):
        slope = loss(weights)
        weights = (weights[0] - rate * slope[0], weights[1] - rate * slope[1])
        seen.append(np.asarray(weights[1] @ weights[0]))
    return seen


def weights(width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng([seed, width])
    scale = 0.4 / np.sqrt(np.sqrt(width))
    return scale * draw.normal(size=(width, COLUMNS)), scale * draw.normal(size=(ROWS, width))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("width", WIDTHS)
def test_reduced_descent_is_the_wide_networks(name, width):
    first, second = weights(width)
    expected = wide_descent(TASKS[name], first, second, RATES[name], 500)
    run = saddles.simulate(
        TwoLayer.from_weights(first, second), TASKS[name], GradientDescent(RATES[name], 500), keep=("matrix",)
    )
    scale = max(np.abs(m).max() for m in expected)
    assert np.abs(run["matrix"].values - np.stack(expected)).max() < 1e-12 * scale
    assert np.abs(expected[-1] - expected[0]).max() > 0.1 * scale, "nothing was learned, so nothing was compared"


@pytest.mark.parametrize("name", TASKS)
def test_gradient_of_each_cost_is_its_derivative(name):
    cost = TASKS[name].cost
    matrix = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, COLUMNS)))
    np.testing.assert_allclose(cost.gradient(matrix), jax.grad(lambda a: cost(a))(matrix), rtol=1e-12, atol=1e-14)


def test_costs_are_what_they_say():
    matrix = np.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    denoising, completion, regression = Denoising(**SHAPE), Completion(**SHAPE, fraction=0.4), TASKS["regression"]
    gap = matrix - denoising.observed
    assert float(denoising.cost(jnp.asarray(matrix))) == pytest.approx((gap**2).sum() / (ROWS * COLUMNS), rel=1e-13)
    seen = [(matrix - completion.observed)[i, j] ** 2 for i, j in zip(*np.nonzero(completion.mask), strict=True)]
    assert float(completion.cost(jnp.asarray(matrix))) == pytest.approx(np.mean(seen), rel=1e-13)
    noiseless = Sensing(**SHAPE, noise=0.0, measurements=60)
    assert float(noiseless.cost(jnp.asarray(noiseless.target))) == pytest.approx(0.0, abs=1e-28)
    direct = [np.sum(x.reshape(ROWS, COLUMNS) * (matrix - noiseless.target)) ** 2 for x in noiseless.probes]
    assert float(noiseless.cost(jnp.asarray(matrix))) == pytest.approx(np.mean(direct), rel=1e-12)
    gap = matrix - regression.observed
    expected = np.trace(gap @ _covariance() @ gap.T) / (ROWS * COLUMNS)
    assert float(regression.cost(jnp.asarray(matrix))) == pytest.approx(expected, rel=1e-12)


def test_noise_has_its_size_and_is_not_made_of_the_target():
    count, noise = 4000, 0.7
    sensing = Sensing(**SHAPE, noise=noise, measurements=count)
    # the cost at A* is the mean of count squared errors: a χ² over count, whose relative spread is √(2/count)
    assert float(sensing.cost(jnp.asarray(sensing.target))) == pytest.approx(noise**2, rel=5 * np.sqrt(2 / count))
    denoising = Denoising(60, 3, noise=noise)
    error = denoising.observed - denoising.target
    assert error.std() == pytest.approx(noise, rel=5 / np.sqrt(2 * error.size))
    assert abs(np.corrcoef(error.ravel(), denoising.target.ravel())[0, 1]) < 5 / np.sqrt(error.size)


def test_truths_have_the_size_they_say():
    target = Denoising(300, 5, seed=2).target  # entries K^{-1/2} Σ u_k v_k have variance 1, whatever K is
    assert np.mean(target**2) == pytest.approx(1, rel=0.15)  # 1,500 factors on each side: 5 standard deviations
    values = np.linalg.svd(Denoising(9, 2, dim_out=4, spectrum=(2.0, 0.5)).target, compute_uv=False)
    np.testing.assert_allclose(values[:2], np.array([2.0, 0.5]) * 6, rtol=1e-12)


def test_regression_with_identity_covariance_is_denoising():
    plain, regression = Denoising(8, 2, seed=1), Regression(8, 2, seed=1)
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)))
    assert float(plain.cost(matrix)) == pytest.approx(float(regression.cost(matrix)), rel=1e-14)


def test_descent_converges_to_the_flow_with_slope_one():
    """Euler's method is of first order: halving the rate halves the error."""
    model, task = TwoLayer(50, 0.05), TASKS["denoising"]
    flow = saddles.simulate(model, task, GradientFlow(rtol=1e-11), times=[20.0], seed=4)["matrix"].values[0]
    errors = []
    rates = [0.4, 0.2, 0.1, 0.05]
    for rate in rates:
        run = saddles.simulate(model, task, GradientDescent(rate, round(20 / rate)), times=[20.0], seed=4)
        errors.append(np.abs(run["matrix"].values[0] - flow).max())
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("stiff", [False, True])
def test_flow_agrees_with_the_wide_networks_flow(stiff):
    first, second = weights(40)
    task = TASKS["denoising"]
    rough, fine, finer = (wide_descent(task, first, second, 2.0 / n, n)[-1] for n in (250, 500, 1000))
    expected = (rough - 6 * fine + 8 * finer) / 3
    model = TwoLayer.from_weights(first, second)
    found = saddles.simulate(model, task, GradientFlow(rtol=1e-8, stiff=stiff), times=[2.0])["matrix"].values[0]
    assert np.abs(found - expected).max() < 1e-7, "against Richardson's extrapolation of Euler steps"


@pytest.mark.parametrize("freedom", [6, 9, 40])
def test_drawn_factor_has_the_law_of_the_wide_one(freedom):
    """LLᵀ and ZZᵀ have the same law: entries, trace, and eigenvalues, by Kolmogorov and Smirnov.

    With 4,000 draws a shift of 5 % of a standard deviation is found; a factor with one degree of
    freedom too few on the diagonal fails (tried below).
    """
    size, draws = 6, 4000
    draw = np.random.default_rng(freedom)
    ours = [bartlett(size, freedom, draw) for _ in range(draws)]
    theirs = [draw.normal(size=(size, freedom)) for _ in range(draws)]
    looks = {
        "last diagonal": lambda z: (z @ z.T)[-1, -1],
        "corner": lambda z: (z @ z.T)[0, -1],
        "determinant": lambda z: np.linalg.slogdet(z @ z.T)[1],
        "largest": lambda z: np.linalg.norm(z, 2),
        "trace": lambda z: np.sum(z**2),
    }
    levels = {name: kstest([look(z) for z in ours], [look(z) for z in theirs]).pvalue for name, look in looks.items()}
    assert min(levels.values()) > 1e-4, levels
    wrong = [bartlett(size, freedom + 2, draw) for _ in range(draws)]
    assert kstest([looks["trace"](z) for z in wrong], [looks["trace"](z) for z in theirs]).pvalue < 1e-6


def test_from_weights_reduces_to_a_factor_with_the_same_gram():
    first, second = weights(200)
    inner, outer = TwoLayer.from_weights(first, second).start(TASKS["denoising"])
    assert inner.shape == (COLUMNS, ROWS + COLUMNS)
    stacked = np.concatenate([first.T, second])
    reduced = np.concatenate([inner, outer])
    np.testing.assert_allclose(reduced @ reduced.T, stacked @ stacked.T, rtol=0, atol=1e-13)


def test_width_of_a_trillion_costs_a_small_factor():
    inner, outer = TwoLayer(10**12, 1e-12).start(Denoising(5, 2, dim_out=4))
    assert inner.shape == (5, 9)
    np.testing.assert_allclose(outer @ outer.T, np.eye(4), atol=1e-5)
    assert np.abs(outer @ inner.T).max() < 1e-5
