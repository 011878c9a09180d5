"""Log-scale coordinates: against the ordinary weights, the inverse, and at scales that float64 cannot hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from saddles.errors import SaddlesError
from saddles.solvers.log_scale import LogScale


def _draw(size=6, seed=0):
    draw = np.random.default_rng([seed, 0])
    return draw.normal(size=size), draw.normal(size=size)


def test_start_is_the_product_of_the_scaled_weights():
    u, v = _draw()
    coords = LogScale.from_weights(u, v, np.log(1e-3))
    np.testing.assert_allclose(coords.beta(np.zeros(6)), 1e-6 * u * v, rtol=1e-12, atol=1e-22)
    got_u, got_v = coords.weights(np.zeros(6))
    np.testing.assert_allclose(got_u, 1e-3 * u, rtol=1e-12)
    np.testing.assert_allclose(got_v, 1e-3 * v, rtol=1e-12)


def test_flow_in_u_and_v_is_the_flow_in_s():
    u, v = _draw(3)
    target = np.array([0.7, -0.4, 0.2])
    coords = LogScale.from_weights(u, v, np.log(0.1))

    def plain(t, state):
        a, b = state[:3], state[3:]
        g = target - a * b
        return np.concatenate([b * g, a * g])

    ordinary = solve_ivp(plain, (0, 20), 0.1 * np.concatenate([u, v]), rtol=1e-11, atol=1e-13).y[:, -1]
    mirror = solve_ivp(lambda t, s: target - coords.beta(s), (0, 20), np.zeros(3), rtol=1e-11, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(np.concatenate(coords.weights(mirror)), ordinary, rtol=1e-7, atol=1e-9)


def test_difference_of_squares_is_conserved_exactly():
    u, v = _draw()
    coords = LogScale.from_weights(u, v, np.log(0.5))
    a, b = coords.weights(np.linspace(-3, 3, 6))
    np.testing.assert_allclose(a**2 - b**2, 0.25 * (u**2 - v**2), rtol=1e-12, atol=1e-14)


def test_slope_is_the_derivative_and_the_closed_form():
    u, v = _draw()
    coords = LogScale.from_weights(u, v, np.log(0.3))
    shift = np.linspace(-1, 1, 6)
    numeric = (coords.beta(shift + 1e-6) - coords.beta(shift - 1e-6)) / 2e-6
    np.testing.assert_allclose(coords.slope(shift), numeric, rtol=1e-8)
    conserved = 0.09 * (u + v) * (u - v)
    np.testing.assert_allclose(coords.slope(shift), np.hypot(2 * coords.beta(shift), conserved), rtol=1e-12)


@given(st.floats(-3000, -1), st.integers(0, 50))
def test_inverse_at_any_scale(log_alpha, seed):
    u, v = _draw(4, seed)
    coords = LogScale.from_weights(u, v, log_alpha)
    beta = np.array([0.5, -2.0, 1e-3, -1e-6])
    np.testing.assert_allclose(coords.beta(coords.shift(beta)), beta, rtol=1e-9)


def test_a_thousand_decades_are_legal():
    coords = LogScale.from_weights([1.0], [0.5], -1000 * np.log(10))
    assert coords.beta(np.zeros(1))[0] == 0.0
    grown = 1000 * np.log(10) - np.log(1.5)
    assert coords.beta(np.array([grown]))[0] == pytest.approx(0.25)


def test_balanced_limit_keeps_its_orthant():
    coords = LogScale.balanced([1.0, -1.0])
    beta = coords.beta(np.array([0.3, 0.3]))
    np.testing.assert_allclose(beta, [0.25 * np.exp(0.6), -0.25 * np.exp(-0.6)])
    np.testing.assert_allclose(coords.shift(beta), [0.3, 0.3])


def test_exponents_scale_each_coordinate():
    coords = LogScale.from_weights([1.0, 1.0], [0.5, 0.5], np.log(1e-2), [1.0, 2.0])
    np.testing.assert_allclose(coords.beta(np.zeros(2)), [0.5e-4, 0.5e-8])


def test_equal_weights_are_legal_for_the_flow():
    coords = LogScale.from_weights([1.0], [1.0], -5.0)
    assert coords.log_q[0] == -np.inf
    assert np.isfinite(coords.beta(np.array([2.0]))).all()


@pytest.mark.parametrize(
    ("u", "v", "log_alpha", "words"),
    [
        ([1.0], [1.0, 2.0], -1.0, "one length"),
        ([np.nan], [1.0], -1.0, "must be finite"),
        ([1.0], [2.0], -np.inf, "`log_alpha` must be finite"),
    ],
)
def test_bad_input_is_explained(u, v, log_alpha, words):
    with pytest.raises(SaddlesError, match=words):
        LogScale.from_weights(u, v, log_alpha)


def test_a_large_start_loses_no_digits_near_zero():
    """From v = 0 β is ½u² sinh 2S; the two terms of the difference are 1e16 and alike."""
    coords = LogScale.from_weights(np.full(3, 1e8), np.zeros(3))
    shift = np.array([3e-17, -2e-9, 0.7])
    np.testing.assert_allclose(coords.beta(shift), 0.5e16 * np.sinh(2 * shift), rtol=1e-12)
