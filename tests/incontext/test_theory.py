"""Alternating flows against closed forms, Algorithm 1 of lab `diagonal`, and simulations."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import saddles
from saddles import diagonal
from saddles.incontext import (
    AlternatingFlows,
    GradientFlow,
    Merged,
    Neurons,
    Regression,
    Samples,
    SelfConsistent,
    Separate,
    Wide,
)
from saddles.incontext.linear_networks import conjectured

TASK = Regression([0.4, 0.3, 0.2, 0.1], 31)


def _products(x, theta):
    """All coordinates of a diagonal network: a neuron lives on the one at which it starts."""
    half = len(theta) // 2
    return jnp.sum(theta[:half] * theta[half:] * x)


def _diagonal(seed: int, dim: int, shared: float):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(3 * dim, dim)) + shared * draw.normal(size=(3 * dim, 1))
    targets = inputs @ draw.normal(size=dim) + 0.3 * draw.normal(size=3 * dim)
    return inputs, targets


# Of seed 6 a coordinate leaves, and returns after a wait of 83 units. Of seed 206 one leaves long before the others
# rest, and would pass through zero on round-off. Of seed 101 Newton's round-off would learn a coordinate asleep.
# Of seed 702 one is pulled to zero by 3e-5 of the first pull; of seed 700 one wakes by 5e-6 of it.
@pytest.mark.parametrize(
    ("seed", "dim", "shared"),
    [(0, 4, 0.5), (6, 4, 0.5), (206, 4, 2.0), (101, 5, 2.0), (702, 4, 6.0), (700, 5, 6.0)],
)
def test_algorithm_1_is_a_special_case(seed, dim, shared):
    """The same stages, times, exits and losses; at norm 1/√2 the sum u + v is 1, where Algorithm 1 activates."""
    inputs, targets = _diagonal(seed, dim, shared)
    log_alpha = -60.0
    network, task = diagonal.LinearDiagonal(dim, log_alpha=log_alpha), diagonal.Supervised(inputs, targets)
    u, v = network.start(task, seed)
    model = Neurons(_products, 2, 2 * dim, dim, float(np.exp(log_alpha)), np.concatenate([np.diag(u), np.diag(v)], 1))
    ours = saddles.predict(model, Samples(inputs, targets), AlternatingFlows(norm=2**-0.5))
    known = saddles.predict(network, task, diagonal.Incremental(20, finite=True), seed=seed)
    assert ours.attrs["status"] == known.attrs["status"] == "finished"
    np.testing.assert_array_equal(ours["stage_neuron"][1:], known["stage_coordinate"])
    np.testing.assert_array_equal(ours["stage_left"][1:], known["stage_left"])
    np.testing.assert_allclose(ours["stage_time"][1:], known["stage_time"] * -log_alpha, rtol=5e-5)
    np.testing.assert_allclose(ours["plateau"][1:], known["stage_loss"], rtol=1e-6)


def _triples(x, theta):
    """A diagonal network of degree three: a neuron lives on the coordinate at which it starts."""
    return jnp.sum(jnp.prod(theta.reshape(3, -1), axis=0) * x)


@pytest.mark.parametrize("seed", [1799, 2868])
def test_a_neuron_of_degree_three_shrinks_slowly_while_it_sleeps_again(seed):
    """It shrinks like 1/t, and wakes again much earlier than from its first size (1.6 and 3.1 times as late).

    The flow is that of one number a coordinate, a' = 2a²(±residual), by LSODA.
    """
    draw, scale = np.random.default_rng(seed), 1e-4
    inputs = draw.normal(size=(9, 3)) + draw.normal(size=(9, 1))
    targets = inputs @ draw.normal(size=3) + 0.3 * draw.normal(size=9)
    signs = np.sign(draw.normal(size=3))
    weights = np.concatenate([np.diag(signs), np.eye(3), np.eye(3)], axis=1)
    told = saddles.predict(Neurons(_triples, 3, 9, 3, scale, weights), Samples(inputs, targets), AlternatingFlows())
    assert told["stage_left"].values.tolist() == [0, 0, 1, 0, 0]
    assert int(told["stage_neuron"][4]) == int(told["stage_neuron"][1])
    covariance, cross = inputs.T @ inputs / 9, inputs.T @ targets / 9
    flow = solve_ivp(
        lambda t, a: 2 * signs * (cross - covariance @ (signs * a**3)) * a**2, (0, 6 / scale), np.full(3, scale),
        "LSODA", rtol=1e-10, atol=1e-14, dense_output=True,
    )  # fmt: skip
    late = np.linspace(float(told["stage_time"][3]) * 1.005, 6 / scale, 20_001)
    back = flow.sol(late)[int(told["stage_neuron"][1])]
    seen = late[np.argmax(back > 0.5 * back[-1])]
    assert float(told["stage_time"][4]) == pytest.approx(seen, rel=0.005)


def test_separate_heads_stage_by_stage():
    """Plateaus to rounding; times within what the start neglects, which falls with it."""
    errors = []
    for scale in (1e-2, 1e-4):
        model = Separate(8, 1, scale)
        predicted = saddles.predict(model, TASK, AlternatingFlows(), seed=3)
        np.testing.assert_allclose(predicted["plateau"], TASK.plateaus, rtol=1e-6)
        flow = saddles.simulate(model, TASK, GradientFlow(rtol=1e-7), seed=3)
        middle = (TASK.plateaus[1:] + TASK.plateaus[:-1]) / 2
        seen = np.interp(-middle, -flow["loss"].values, flow["time"].values)
        errors.append(np.abs(predicted["stage_time"].values[1:] / seen - 1).max())
    assert errors[0] < 0.02
    assert errors[1] < 0.05 * errors[0]


def test_merged_heads_drop_once():
    predicted = saddles.predict(Merged(4, 1e-6), TASK, AlternatingFlows(), seed=1)
    assert predicted.sizes["stage"] == 2
    assert float(predicted["plateau"][-1]) == pytest.approx(TASK.plateaus[-1], rel=1e-6)
    # Utility ½θᵀAθ with A = [[0, g], [gᵀ, 0]], g = 2Λ²: both v and U grow at the rate ‖g‖.
    rate = np.linalg.norm(2 * TASK.matrix**2)
    assert float(predicted["stage_time"][1]) == pytest.approx(np.log(1e6) / rate, rel=0.15)


def test_wide_head_follows_the_self_consistent_theory():
    """Lazy (σ²w = 10) and active (1e-3); the null is the theory of the other region."""
    task, times = Regression(np.linspace(0.2, 1.0, 6), 60), np.linspace(0, 40, 41)
    gaps = {}
    for threshold in (10.0, 1e-3):
        model = Wide(1e5, threshold / 1e5)
        flow = saddles.simulate(model, task, GradientFlow(), times=times)
        for other in (10.0, 1e-3):
            theory = saddles.predict(Wide(1e5, other / 1e5), task, SelfConsistent(), times=times)
            gaps[threshold, other] = float(np.abs(theory["loss"] - flow["loss"]).max())
    assert max(gaps[10.0, 10.0], gaps[1e-3, 1e-3]) < 3e-3
    assert min(gaps[10.0, 1e-3], gaps[1e-3, 10.0]) > 0.3


def test_the_conjecture_skips_a_saddle_where_covariances_commute():
    """Σ_xx = diag(0.1, 1), B = diag(6, 1): the flow first learns μ = 1, not μ = 3.6; integrating the neurons tells."""
    inputs, truth = np.diag([0.1, 1.0]), np.diag([6.0, 1.0])
    np.testing.assert_allclose(conjectured(inputs, truth).plateaus, [4.6, 1.0, 0.0], atol=1e-12)
    points = np.sqrt(2) * np.sqrt(inputs)
    model = Neurons(lambda x, theta: theta[:2] * (theta[2:] @ x), 2, 4, 2, 1e-8, np.kron([[1.0, 1.0]], np.eye(2)))
    told = saddles.predict(model, Samples(points, points @ truth.T), AlternatingFlows())
    np.testing.assert_allclose(told["plateau"], [4.6, 3.6, 0.0], atol=1e-6)
    np.testing.assert_allclose(np.diff(told["stage_time"])[0], np.log(1e8) / 2 - np.log(2) / 4, rtol=1e-3)


def test_the_conjecture_has_the_times_of_modes_that_do_not_meet():
    """With white inputs every mode grows on its own, at rate 2σ_k: its slope is 1/(2σ_k)."""
    told = conjectured(np.eye(3), np.diag([3.0, 2.0, 1.0]))
    np.testing.assert_allclose(told.slopes, [1 / 6, 1 / 4, 1 / 2])
    np.testing.assert_allclose(told.plateaus, [14.0, 5.0, 1.0, 0.0])


def test_a_neuron_of_ones_own_is_checked():
    def crooked(x, theta):
        return theta[0] * (theta[1:] @ x)

    task = Samples(np.eye(3), np.ones(3))
    with pytest.raises(saddles.SaddlesError, match="not homogeneous of degree 3"):
        saddles.predict(Neurons(crooked, 3, 4, 5, 1e-4), task, AlternatingFlows())
    with pytest.raises(saddles.SaddlesError, match="predicts sums of neurons"):
        saddles.predict(Wide(10, 0.1), TASK, AlternatingFlows())
    with pytest.raises(saddles.SaddlesError, match=r"every neuron must begin below norm=1, .* the largest begins at"):
        saddles.predict(Separate(4, 1, 2.0), TASK, AlternatingFlows())
