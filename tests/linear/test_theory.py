"""Each theory against an independent solution of its own equation, its limits, and training."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import saddles
from saddles.errors import SaddlesError
from saddles.linear.aligned import aligned_mode
from saddles.linear.model import TwoLayer
from saddles.linear.phases import leading_time, phase, recovery_time
from saddles.linear.task import Completion, Denoising, MatrixCost, Regression, Sensing
from saddles.linear.theory import Aligned, Balanced, Lazy, SelfConsistent
from saddles.solvers.methods import GradientDescent, GradientFlow

TIMES = np.linspace(0.0, 12.0, 7)


def integrate(field, start: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Direct integration of a matrix equation by SciPy, sharing nothing with saddles."""
    flat = solve_ivp(
        lambda t, y: field(y.reshape(start.shape)).ravel(), (0, times[-1]), start.ravel(), "DOP853", times,
        rtol=1e-11, atol=1e-13,
    ).y  # fmt: skip
    return flat.T.reshape(-1, *start.shape)


def root(matrix: np.ndarray) -> np.ndarray:
    """The square root of a symmetric positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def equation_one(task, threshold: float):
    """The right-hand side of the paper's equation (1), with two matrix square roots each time."""

    def field(matrix: np.ndarray) -> np.ndarray:
        gradient = np.asarray(task.cost.gradient(matrix))
        left = root(matrix @ matrix.T + threshold**2 * np.eye(len(matrix)))
        right = root(matrix.T @ matrix + threshold**2 * np.eye(matrix.shape[1]))
        return -left @ gradient - gradient @ right

    return field


def start_of(model, task, seed: int) -> np.ndarray:
    inner, outer = model.start(task, seed)
    return outer @ inner.T


@pytest.mark.parametrize("shape", [(6, 6), (5, 8), (8, 5)])
@pytest.mark.parametrize("width", [2, 40])
def test_self_consistent_is_equation_one(shape, width):
    """Non-square and rank-deficient starts (width 2) included."""
    task = Denoising(shape[1], 2, dim_out=shape[0], seed=2)
    model = TwoLayer(width, 0.05)
    expected = integrate(equation_one(task, model.threshold), start_of(model, task, 7), TIMES)
    found = saddles.predict(model, task, SelfConsistent(), times=TIMES, seed=7)
    assert np.abs(found["matrix"].values - expected).max() < 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize(
    "task",
    [
        Completion(6, 2, seed=2),
        Sensing(6, 2, seed=2, measurements=50),
        Regression(6, 2, seed=2, covariance=np.diag([1.0, 2.0, 0.5, 1.0, 0.2, 3.0])),
    ],
    ids=lambda task: type(task).__name__,
)
def test_self_consistent_is_equation_one_for_other_costs(task):
    model = TwoLayer(30, 0.05)
    expected = integrate(equation_one(task, model.threshold), start_of(model, task, 1), TIMES)
    found = saddles.predict(model, task, SelfConsistent(), times=TIMES, seed=1)
    assert np.abs(found["matrix"].values - expected).max() < 1e-8 * np.abs(expected).max()


def test_self_consistent_factor_has_the_predicted_blocks():
    matrix = np.random.default_rng(0).normal(size=(4, 7))
    factor = SelfConsistent().factor(matrix, 0.3)
    gram = factor @ factor.T
    np.testing.assert_allclose(gram[7:, :7], matrix, atol=1e-13)
    np.testing.assert_allclose(gram[:7, :7], root(matrix.T @ matrix + 0.09 * np.eye(7)), atol=1e-12)
    np.testing.assert_allclose(gram[7:, 7:], root(matrix @ matrix.T + 0.09 * np.eye(4)), atol=1e-12)


def test_self_consistent_keeps_a_tiny_threshold():
    """σ²w = 1e-9 beside singular values of order one: a Gram matrix would lose it, a factor does not."""
    matrix = np.diag([1.0, 1e-3, 0.0])
    factor = SelfConsistent().factor(matrix, 1e-9)
    smallest = np.linalg.svd(factor, compute_uv=False)[-1] ** 2
    assert smallest == pytest.approx(1e-18 / 2, rel=1e-6)


def test_balanced_is_its_equation():
    task, model = Denoising(6, 2, seed=2), TwoLayer(40, 0.05)

    def field(matrix: np.ndarray) -> np.ndarray:
        gradient = np.asarray(task.cost.gradient(matrix))
        left, values, right = np.linalg.svd(matrix)
        return -(left * values) @ left.T @ gradient - gradient @ (right.T * values) @ right

    expected = integrate(field, start_of(model, task, 7), TIMES)
    found = saddles.predict(model, task, Balanced(), times=TIMES, seed=7)
    assert np.abs(found["matrix"].values - expected).max() < 1e-7


def test_balanced_stays_in_the_rank_it_starts_with():
    """A start of rank 2 never grows a third direction, however long."""
    task, model = Denoising(8, 4, seed=2), TwoLayer(2, 0.1)
    found = saddles.predict(model, task, Balanced(), times=np.linspace(0, 200, 5), seed=1)
    assert found["singular_value"].isel(mode=2).max() < 1e-12
    assert found["singular_value"].isel(mode=1)[-1] > 1


def _log_cosh(matrix):
    return jnp.mean(jnp.log(jnp.cosh(matrix - 1.0)))


@pytest.mark.parametrize(
    "task",
    [
        Denoising(6, 2, seed=2),
        Completion(6, 2, seed=2),
        Regression(6, 2, seed=2, covariance=np.diag([1.0, 2.0, 0.5, 1.0, 0.2, 3.0])),
        Sensing(6, 2, seed=2, measurements=50),
        MatrixCost(_log_cosh, (6, 6)),
    ],
    ids=lambda task: type(task).__name__,
)
def test_lazy_is_its_equation(task):
    model = TwoLayer(400, 0.01)
    expected = integrate(
        lambda a: -2 * model.threshold * np.asarray(task.cost.gradient(a)), start_of(model, task, 3), TIMES
    )
    found = saddles.predict(model, task, Lazy(), times=TIMES, seed=3)
    assert np.abs(found["matrix"].values - expected).max() < 1e-8


def test_lazy_descent_is_the_papers_closed_form():
    """A(t) = (A*+E) + (1 − 4ησ²w/d²)^t (A(0) − A* − E), section 1.4."""
    task, model = Denoising(7, 2, seed=2), TwoLayer(400, 0.01)
    method = GradientDescent(0.5, 9)
    found = saddles.predict(model, task, Lazy(method), seed=3)["matrix"].values
    factor = (1 - 4 * 0.5 * model.threshold / 49) ** np.arange(10)
    first = start_of(model, task, 3)
    expected = task.observed + factor[:, None, None] * (first - task.observed)
    np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize("threshold", [1e-6, 0.3, 50.0])
@pytest.mark.parametrize("start", [-0.5, 0.0, 1e-4, 9.0])
def test_aligned_mode_solves_its_equation(threshold, start):
    target, pace, end = 4.0, 0.1, 20.0
    found = solve_ivp(
        lambda t, s: pace * np.hypot(s, threshold) * (target - s), (0, end), [start], "DOP853",
        rtol=1e-12, atol=1e-14,
    ).y[0, -1]  # fmt: skip
    assert float(aligned_mode(end, np.array(start), target, threshold, pace)) == pytest.approx(
        found, rel=1e-7, abs=1e-9
    )


@pytest.mark.parametrize("threshold", [1e6, 1e12, 1e20])
@pytest.mark.parametrize("start", [-2e-3, 0.0, 1e-6, 3.0])
def test_a_mode_far_below_the_threshold_keeps_its_digits(threshold, start):
    """There s' = pace σ²w (s* − s) up to (s/σ²w)²; s used to be a difference of numbers of the size of σ²w."""
    target, times = 1e-3, np.array([0.0, 1e-3, 0.5, 40.0])
    found = [float(aligned_mode(t / threshold, np.array(start), target, threshold, 1.0)) for t in times]
    np.testing.assert_allclose(found, target + (start - target) * np.exp(-times), rtol=1e-10, atol=1e-16)


@pytest.mark.parametrize("threshold", [1e-30, 1e-12, 1e-2, 1.0, 1e20])
@pytest.mark.parametrize("start", [-1e6, -1.0, -1e-9, 1e-5, 2.0, 1e6])
@pytest.mark.parametrize("target", [0.0, 1e-12, 0.5, 1e6])
def test_a_mode_begins_at_its_start_and_goes_on_from_where_it_is(threshold, start, target):
    """At starts, targets and thresholds of any size beside each other."""

    def after(t, first):
        return float(aligned_mode(t, np.array(first), np.array(target), threshold, 1.0))

    assert after(0.0, start) == pytest.approx(start, rel=1e-12)
    for time in np.array([1e-3, 1.0, 30.0]) / np.hypot(target, threshold):
        rounding = 1e-12 * max(target, abs(start))
        assert after(2 * time, start) == pytest.approx(after(time, after(time, start)), rel=1e-9, abs=rounding)


@pytest.mark.parametrize(("kind", "threshold"), [("float32", 1e-25), ("float64", 1e-160), ("float64", 1e-300)])
def test_a_mode_that_starts_against_its_target_far_above_the_threshold_turns(kind, threshold):
    """It used to be infinite: x is of size σ²w there, and the products of such numbers underflowed."""
    values = [jnp.asarray(value, kind) for value in (1e4, -1.0, 1.0, threshold, 1.0)]
    assert float(aligned_mode(*values)) == pytest.approx(1.0)


def test_aligned_equals_self_consistent_from_an_aligned_start():
    task = Denoising(6, 2, seed=5)
    left, _, right = np.linalg.svd(task.observed)
    values = np.array([0.5, 0.3, 0.2, 0.1, 0.05, 0.01])
    half = np.sqrt(values)
    model = TwoLayer.from_weights((right.T * half).T, left * half, variance=0.02)
    found = saddles.predict(model, task, Aligned(), times=TIMES)
    expected = saddles.predict(model, task, SelfConsistent(rtol=1e-11), times=TIMES)
    errors = saddles.compare(expected, found)["error"].sel(kind="max_absolute")
    assert float(errors.max()) < 1e-8


def test_limits_of_the_self_consistent_dynamics():
    """Far above all singular values it is lazy, far below (and from full rank) it is balanced."""
    task = Denoising(6, 2, seed=2)
    wide = TwoLayer(10**12, 1e-8)
    times = np.linspace(0, 1e-3, 5)
    gap = saddles.compare(
        saddles.predict(wide, task, SelfConsistent(), times=times), saddles.predict(wide, task, Lazy(), times=times)
    )
    assert float(gap["error"].sel(variable="matrix", kind="max_relative")) < 1e-5
    first = np.random.default_rng(1).normal(size=(6, 6))
    narrow = TwoLayer.from_weights(first, np.random.default_rng(2).normal(size=(6, 6)), variance=1e-9)
    gap = saddles.compare(
        saddles.predict(narrow, task, SelfConsistent(), times=TIMES),
        saddles.predict(narrow, task, Balanced(), times=TIMES),
    )
    assert float(gap["error"].sel(variable="matrix", kind="max_relative")) < 1e-5


def test_training_approaches_the_self_consistent_dynamics_as_the_width_grows():
    """At fixed σ²w the difference falls like √(d/w): over six decades, by a factor of about a thousand."""
    task = Denoising(10, 2, seed=9)
    gaps = []
    for width in (10**3, 10**5, 10**7, 10**9):
        model = TwoLayer(width, 3.0 / width)
        times = np.linspace(0, 40, 21)
        measured = saddles.simulate(model, task, GradientFlow(rtol=1e-10), times=times, seed=2)
        gap = saddles.compare(measured, saddles.predict(model, task, SelfConsistent(), times=times, seed=2))
        gaps.append(float(gap["error"].sel(variable="matrix", kind="max_relative")))
    slope = np.polyfit(np.log([1e3, 1e5, 1e7, 1e9]), np.log(gaps), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_prediction_can_be_restarted_from_the_middle():
    """The flow is autonomous: predicting from the matrix at t = 5 goes on where the first run went."""
    task, model = Denoising(6, 2, seed=2), TwoLayer(300, 0.01)
    whole = saddles.predict(model, task, SelfConsistent(), times=[5.0, 10.0], seed=1)["matrix"].values
    factor = SelfConsistent().factor(whole[0], model.threshold)
    middle = TwoLayer.from_weights(factor[:6].T, factor[6:])
    resumed = saddles.simulate(middle, task, GradientFlow(), times=[5.0])["matrix"].values[0]
    np.testing.assert_allclose(resumed, whole[1], atol=1e-8)


@pytest.mark.parametrize(
    ("gamma_w", "gamma_variance", "expected"),
    [
        (0.9, -3.0, "underparametrised"),
        (1.5, -0.5, "noisy"),
        (2.6, -1.4, "lazy"),
        (2.25, -1.85, "active"),
        (1.2, -0.7, "active"),
        (2.0, -1.2, "active"),
    ],
)
def test_phase(gamma_w, gamma_variance, expected):
    assert phase(gamma_w, gamma_variance) == expected


def test_recovery_time_is_the_formula_of_theorem_2():
    """By hand for a = (1, ½), Δ = ½: c = ½·¼/¾ = 1/6, so ½/½ + 2/(1/6) + 1/1 = 14."""
    assert recovery_time(100, 1.5, -1.0, [1.0, 0.5]) == pytest.approx(14 * 100 * np.log(100))
    assert leading_time(100, 1.5, -1.0, [1.0, 0.5]) == pytest.approx(0.25 * 100 * np.log(100))


@pytest.mark.parametrize("spectrum", [[1.0], [0.7, 0.7, 0.7]])
def test_recovery_time_says_where_it_is_undefined(spectrum):
    with pytest.raises(SaddlesError, match="two different"):
        recovery_time(100, 1.5, -1.0, spectrum)


def test_recovery_time_needs_the_active_regime():
    with pytest.raises(SaddlesError, match="only where"):
        recovery_time(100, 2.5, -1.0, [1.0, 0.5])


def test_aligned_refuses_other_costs():
    with pytest.raises(SaddlesError, match="Denoising"):
        saddles.predict(TwoLayer(9, 0.1), Completion(6, 2), Aligned(), times=TIMES)
