"""The stiff integrator against exact solutions and SciPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from saddles.errors import SaddlesError
from saddles.runtime.threads import one_thread
from saddles.solvers.multistep import Multistep, StepError, StiffFlow


@dataclass
class Dense(StiffFlow):
    """A flow with a Jacobian written out."""

    f: Any
    jacobian: Any

    def field(self, state):
        return self.f(state)

    def respond(self, state, c):
        matrix = np.eye(len(state)) - c * self.jacobian(state)
        return lambda residual: np.linalg.solve(matrix, residual)


def _to(flow, start, end, **options):
    stepper = Multistep(flow, np.array(start), **options)
    while stepper.time < end:
        stepper.advance(end)
    return stepper


def test_stiff_linear_flow_is_exact_to_its_tolerance():
    rates = np.array([-1e6, -1.0, -30.0])
    flow = Dense(lambda y: rates * y, lambda y: np.diag(rates))
    errors = []
    for rtol in (1e-6, 1e-9):
        stepper = _to(flow, [1.0, 1.0, 1.0], 2.0, rtol=rtol, atol=1e-3 * rtol)
        assert stepper.time == 2.0
        errors.append(np.abs(stepper.state - np.exp(2 * rates)).max())
        assert stepper.steps < 2000
    assert errors[0] < 1e-4
    assert errors[1] < 1e-7
    assert errors[1] < 0.05 * errors[0]


def test_van_der_pol_against_scipy():
    def f(y):
        return np.array([y[1], 100.0 * (1 - y[0] ** 2) * y[1] - y[0]])

    def jacobian(y):
        return np.array([[0.0, 1.0], [-200.0 * y[0] * y[1] - 1, 100.0 * (1 - y[0] ** 2)]])

    mine = _to(Dense(f, jacobian), [2.0, 0.0], 100.0, rtol=1e-9, atol=1e-11).state
    theirs = solve_ivp(lambda t, y: f(y), (0, 100.0), [2.0, 0.0], method="Radau", rtol=1e-10, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-8)


def test_a_step_can_be_taken_back():
    flow = Dense(lambda y: -y, lambda y: -np.eye(1))
    stepper = _to(flow, [1.0], 1.0)
    saved = stepper.snapshot()
    stepper.advance(np.inf)
    stepper.restore(saved)
    assert stepper.time == 1.0
    stepper.advance(1.0 + 1e-3)
    assert stepper.state[0] == pytest.approx(np.exp(-stepper.time), rel=1e-6)


def test_values_between_steps_and_the_slope_follow_the_path():
    stepper = Multistep(Dense(lambda y: -y, lambda y: -np.eye(1)), np.array([1.0]), rtol=1e-8, atol=0.0)
    while stepper.time < 1.0:
        before = stepper.time
        stepper.advance(1.0)
        inside = np.linspace(before, stepper.time, 5)
        np.testing.assert_allclose(stepper.between(inside)[:, 0], np.exp(-inside), rtol=1e-6)
        assert stepper.slope[0] == pytest.approx(-stepper.state[0], rel=1e-2 if stepper.steps < 20 else 1e-5)


def test_a_known_path_is_a_history_at_full_order():
    stepper = Multistep(Dense(lambda y: -y, lambda y: -np.eye(1)), np.array([1.0]), rtol=1e-8, atol=0.0)
    stepper.resume(3.0, lambda times: np.exp(-times)[:, None], 0.05)
    assert stepper.order == 5
    assert stepper.slope[0] == pytest.approx(-np.exp(-3.0), rel=1e-6)
    while stepper.time < 4.0:
        stepper.advance(4.0)
    assert stepper.state[0] == pytest.approx(np.exp(-4.0), rel=1e-6)
    assert stepper.steps < 40


@dataclass
class Forgetful(Dense):
    """A flow that knows its Jacobian only after it was asked to renew it."""

    asked: int = 0

    def respond(self, state, c):
        if not self.asked:
            return lambda residual: 1e6 * residual
        return super().respond(state, c)

    def renew(self, state, slope):
        self.asked += 1
        return True


def test_a_wrong_jacobian_is_renewed_once():
    flow = Forgetful(lambda y: -1e3 * y, lambda y: -1e3 * np.eye(1))
    stepper = Multistep(flow, np.array([1.0]))
    stepper.advance(1.0)
    assert flow.asked == 1
    assert stepper.failures == stepper.rejected == 2
    while stepper.time < 0.01:
        stepper.advance(0.01)
    assert stepper.state[0] == pytest.approx(np.exp(-10.0), rel=1e-2)
    assert flow.asked == 1


def test_a_flow_that_ends_says_so():
    flow = Dense(lambda y: np.where(y < 1.5, y**2, np.nan), lambda y: 2 * np.diag(y))
    with pytest.raises(StepError):
        _to(flow, [1.0], 2.0)
    with pytest.raises(SaddlesError, match="finite at its start"):
        Multistep(flow, np.array([2.0]))


def test_one_thread_is_given_back():
    matrix = np.eye(3)
    with one_thread(), one_thread(10_000):
        np.testing.assert_array_equal(matrix @ matrix, matrix)
