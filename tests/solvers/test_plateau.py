"""The plateau-crossing solver: against closed forms and an independent integrator, and its cost."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from saddles.core.status import FINISHED, Ending
from saddles.solvers.log_scale import LogScale
from saddles.solvers.plateau import follow


class Quadratic:
    """½(β−b)ᵀH(β−b), with counts."""

    def __init__(self, target, hessian):
        self.target, self.hessian, self.gradients, self.products = target, hessian, 0, 0

    def force(self, beta):
        self.gradients += 1
        return self.hessian @ (self.target - beta)

    def columns(self, beta, chosen):
        self.products += len(chosen)
        return self.hessian[:, chosen]


def _coupled(size=5, seed=0):
    draw = np.random.default_rng([seed, 1])
    mix = draw.normal(size=(size, size)) / np.sqrt(size)
    return (
        Quadratic(draw.normal(size=size), mix @ mix.T + 0.5 * np.eye(size)),
        draw.normal(size=size),
        draw.normal(size=size),
    )


def _tight(problem, coords, times):
    """S by an explicit method of order 8 at its tightest (trial steps may overflow and are rejected)."""
    with np.errstate(all="ignore"):
        return solve_ivp(
            lambda t, s: problem.hessian @ (problem.target - coords.beta(s)), (0, times[-1]), np.zeros(coords.size),
            t_eval=times, method="DOP853", rtol=1e-12, atol=1e-11,
        ).y.T  # fmt: skip


def _logistic(time, coords, target):
    """β of one coordinate with L = ½(β−b)², exactly: with x = p², x' = 2x(b − (x − c²/x)/4)."""
    c2 = np.exp(2 * (coords.log_p + coords.log_q))
    root = np.sqrt(4 * target**2 + c2)
    top, low = 2 * target + root, 2 * target - root
    start = np.exp(2 * coords.log_p)
    ratio = (top - start) / (start - low) * np.exp(-0.5 * (top - low) * time)
    x = (top + low * ratio) / (1 + ratio)
    return 0.25 * (x - c2 / x)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
def test_one_coordinate_against_its_closed_form(tolerance):
    problem = Quadratic(np.array([0.8]), np.eye(1))
    coords = LogScale.from_weights([1.0], [0.3], np.log(1e-8))
    times = np.linspace(0.0, 60.0, 121)
    path = follow(problem.force, problem.columns, coords, 60.0, times=times, tolerance=tolerance)
    exact = np.array([_logistic(t, coords, 0.8)[0] for t in times])
    assert path.status == FINISHED
    np.testing.assert_allclose(coords.beta(path.shifts)[:, 0], exact, rtol=60 * tolerance, atol=1e-18)


@pytest.mark.parametrize("decades", [6, 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_error_against_a_tight_reference_scales_with_the_tolerance(decades, seed):
    problem, u, v = _coupled(seed=seed)
    coords = LogScale.from_weights(u, v, -decades * np.log(10))
    times = np.linspace(0.0, 8 * decades, 41)
    tight = _tight(problem, coords, times)
    for tolerance in (1e-4, 1e-6):
        path = follow(problem.force, problem.columns, coords, times[-1], times=times, tolerance=tolerance)
        gap = np.abs(path.shifts - tight).max()
        assert gap < 300 * tolerance
        assert (path.crossings[:, 2] <= tolerance).all()


def test_plateaus_are_crossed_and_cost_nothing_more_when_longer():
    spent = []
    for decades in (100, 1000, 10000):
        problem, u, v = _coupled(4, seed=3)
        scale = decades * np.log(10)
        coords = LogScale.from_weights(u, v, -scale)
        path = follow(problem.force, problem.columns, coords, 12 * scale)
        assert len(path.crossings) >= 4
        spent.append(problem.gradients + problem.products)
    assert max(spent) <= 1.3 * min(spent)
    assert max(spent) <= 100 * (len(path.crossings) + 1)


def test_crossing_and_stepping_agree():
    problem, u, v = _coupled(4, seed=5)
    coords = LogScale.from_weights(u, v, -60.0)
    crossed = follow(problem.force, problem.columns, coords, 900.0, times=np.linspace(0, 900, 31), tolerance=1e-7)
    stepped = follow(
        problem.force, problem.columns, coords, 900.0, times=np.linspace(0, 900, 31), tolerance=1e-7, cross=False
    )
    assert len(crossed.crossings) >= 2
    assert not len(stepped.crossings)
    np.testing.assert_allclose(crossed.shifts, stepped.shifts, atol=5e-5)


def test_tied_coordinates_have_a_flat_direction_and_keep_their_ratio():
    problem = Quadratic(np.array([1.0, 1.0]), np.ones((2, 2)))
    coords = LogScale.from_weights([1.0, 0.6], [0.2, 0.5], -200.0)
    path = follow(problem.force, problem.columns, coords, 800.0)
    beta = coords.beta(path.shifts[-1])
    assert beta.sum() == pytest.approx(2.0, rel=1e-6)
    assert beta[0] / beta[1] == pytest.approx((1.2 / 1.1) ** 2, rel=1e-6)


def test_a_force_that_is_not_a_number_ends_the_run_with_a_status():
    coords = LogScale.from_weights([1.0], [0.5], -5.0)
    path = follow(
        lambda beta: np.where(beta > 0.3, np.nan, 1.0 - beta), lambda beta, chosen: np.eye(1)[:, chosen], coords, 100.0
    )
    assert path.status.ending == Ending.DIVERGED
    assert np.isfinite(path.shifts).all()


def test_no_crossing_while_a_coordinate_leaves():
    hessian = np.array([[1.0, 0.95], [0.95, 1.0]])
    problem = Quadratic(np.linalg.solve(hessian, np.array([1.0, 0.97])), hessian)
    coords = LogScale.from_weights([1.0, 1.0], [0.5, 0.4], -40.0)
    times = np.linspace(0.0, 4000.0, 81)
    tight = _tight(problem, coords, times)
    path = follow(problem.force, problem.columns, coords, 4000.0, times=times)
    assert np.abs(path.shifts - tight).max() < 5e-3
