"""Simulation: models by dense loops, gradients by hand, the flow against ordinary integration, descent's laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import softmax

from saddles import simulate
from saddles.diagonal import (
    AttentionHead,
    Descent,
    Diagonal,
    DiagonalTransformer,
    Flow,
    FullHead,
    LinearDiagonal,
    Supervised,
    TeacherStudent,
    squared_error,
)
from saddles.diagonal.risk import risk_of
from saddles.errors import SaddlesError
from saddles.measures import balance_drift


def _head(x, key_query, value_output):
    return softmax(x @ np.diag(key_query) @ x.T, axis=1) @ x @ np.diag(value_output)


def test_head_equals_the_dense_formula():
    draw = np.random.default_rng([0, 4])
    x, beta = draw.normal(size=(3, 4, 5)), draw.normal(size=10)
    dense = np.stack([_head(one, beta[:5], beta[5:]) for one in x])
    np.testing.assert_allclose(AttentionHead(5).output(jnp.asarray(beta), jnp.asarray(x)), dense, atol=1e-12)


def test_transformer_equals_the_dense_formula():
    draw = np.random.default_rng([0, 5])
    model = DiagonalTransformer(3, 2, 2, feedforward=4, seed=1)
    x, beta = draw.normal(size=(2, 4, 3)), draw.normal(size=model.coordinates)
    parts, (first, second) = beta.reshape(2, 2, 2, 3), model.frozen
    dense = []
    for z in x:
        for layer in range(2):
            z = z + sum(_head(z, *parts[layer, head]) for head in range(2))
            z = z + np.asarray(jax.nn.gelu(z @ first[layer], approximate=False)) @ second[layer].T
        dense.append(z)
    np.testing.assert_allclose(model.output(jnp.asarray(beta), jnp.asarray(x)), np.stack(dense), atol=1e-10)
    assert len(model.families) == model.coordinates


def test_full_head_equals_the_dense_formula():
    draw = np.random.default_rng([0, 6])
    x, weights = draw.normal(size=(2, 4, 3)), draw.normal(size=(4, 3, 2))
    k, q, v, o = weights
    dense = [softmax(one @ k @ q.T @ one.T, axis=1) @ one @ v @ o.T for one in x]
    np.testing.assert_allclose(FullHead(3, 2).output(jnp.asarray(weights), jnp.asarray(x)), dense, atol=1e-10)


def test_forces_and_columns_by_finite_differences():
    model = AttentionHead(3)
    task = TeacherStudent(model, 20, 4, seed=1)
    risk = risk_of(model, task)
    beta = 0.3 * np.random.default_rng([0, 7]).normal(size=6)
    for i in (0, 4):
        step = 1e-5 * np.eye(6)[i]
        slope = (risk.losses(np.stack([beta + step, beta - step])) @ np.array([1, -1])) / 2e-5
        assert risk.force(beta)[i] == pytest.approx(-slope, rel=1e-6, abs=1e-10)
        column = -(risk.force(beta + step) - risk.force(beta - step)) / 2e-5
        np.testing.assert_allclose(risk.columns(beta, np.array([i]))[:, 0], column, atol=1e-8)


def test_teacher_has_zero_loss_and_seeds_differ():
    model = AttentionHead(3)
    one, two = TeacherStudent(model, 20, 4, seed=1), TeacherStudent(model, 20, 4, seed=2)
    assert risk_of(model, one).losses(one.truth[None])[0] == pytest.approx(0, abs=1e-25)
    assert not np.allclose(one.inputs, two.inputs)
    assert (TeacherStudent(model, 20, 4, seed=1, sparsity=2).truth != 0).sum() == 2


def test_flow_equals_ordinary_gradient_flow_of_the_weights():
    model = AttentionHead(3)
    task = TeacherStudent(model, 30, 4, seed=3)
    mean = risk_of(model, task).mean
    both = jax.jit(jax.grad(lambda w: mean(w[0] * w[1])))
    start = 1e-2 * np.stack(model.start(0))
    times = np.linspace(0.0, 30.0, 7)
    plain = solve_ivp(
        lambda t, w: -np.asarray(both(jnp.asarray(w.reshape(2, 6)))).ravel(), (0, times[-1] * np.log(100)),
        start.ravel(), t_eval=times * np.log(100), rtol=1e-9, atol=1e-12,
    ).y.T.reshape(-1, 2, 6)  # fmt: skip
    flow = simulate(model, task, Flow(np.log(1e-2), tolerance=1e-7), times=times, keep=["weights"])
    np.testing.assert_allclose(flow["u"], plain[:, 0], atol=2e-5)
    np.testing.assert_allclose(flow["beta"], plain[:, 0] * plain[:, 1], atol=2e-5)
    np.testing.assert_allclose(flow["time"], times * np.log(100))


@pytest.mark.parametrize("batch", [None, 8])
def test_balance_drifts_in_proportion_to_the_rate_and_not_in_the_flow(batch):
    model = LinearDiagonal(4)
    task = TeacherStudent(model, 40, seed=2)
    flow = simulate(model, task, Flow(-3.0), times=[0.0, 1.0, 3.0], keep=["weights"])
    assert float(balance_drift(flow).max()) < 1e-14
    rates = np.array([0.02, 0.01, 0.005])
    drift = []
    for rate in rates:
        steps = round(9.0 / rate)
        run = simulate(model, task, Descent(rate, steps, -3.0, batch, save_every=steps), keep=["weights"])
        drift.append(float(balance_drift(run)[-1]))
    assert abs(np.polyfit(np.log(rates), np.log(drift), 1)[0] - 1) < 0.15


def test_a_list_of_scales_becomes_an_axis_on_the_rescaled_clock():
    model = LinearDiagonal(3)
    task = TeacherStudent(model, 30, seed=1)
    scales = [-5.0, -50.0]
    both = simulate(model, task, Flow(scales), times=[0.0, 0.5, 1.0])
    assert both["beta"].dims == ("time", "log_alpha", "coordinate")
    np.testing.assert_array_equal(both["time"], [0.0, 0.5, 1.0])
    assert both["time"].attrs["unit"] == "rescaled time"
    for scale in scales:
        one = simulate(model, task, Flow(scale), times=[0.0, 0.5, 1.0])
        np.testing.assert_array_equal(both["beta"].sel(log_alpha=scale), one["beta"])
        np.testing.assert_allclose(both["own_time"].sel(log_alpha=scale), one["time"])
    free = simulate(model, task, Flow(scales, until=1.0))
    assert np.isfinite(free["beta"]).all()
    with pytest.raises(SaddlesError, match="α lies below 1"):
        Flow([-5.0, 1.0])


def test_conservation_in_the_flow_and_its_law_in_descent():
    model, rate = LinearDiagonal(3), 0.05
    task = Supervised(np.random.default_rng([0, 8]).normal(size=(10, 3)), np.arange(10.0))
    flow = simulate(model, task, Flow(np.log(0.3), until=30.0), keep=["weights"])
    invariant = (flow["u"] ** 2 - flow["v"] ** 2).values
    np.testing.assert_allclose(invariant, np.broadcast_to(invariant[0], invariant.shape), rtol=1e-9)
    run = simulate(model, task, Descent(rate, 40, np.log(0.3)), keep=["weights"])
    risk = risk_of(model, task)
    now = (run["u"] ** 2 - run["v"] ** 2).values
    for step in range(40):
        force = risk.force(run["beta"].values[step])
        np.testing.assert_allclose(now[step + 1], now[step] * (1 - rate**2 * force**2), rtol=1e-11)


def test_descent_approaches_the_flow_to_first_order_in_its_rate():
    model = LinearDiagonal(3)
    task = Supervised(np.eye(3), np.array([1.0, -0.6, 0.3]))
    flow = simulate(model, task, Flow(np.log(0.1), tolerance=1e-8), times=[3.0])
    gaps = []
    for rate in (0.08, 0.04, 0.02):
        steps = round(3.0 * np.log(10) / rate)
        scaled = 3.0 * np.log(10) / steps
        run = simulate(model, task, Descent(scaled, steps, np.log(0.1), save_every=steps))
        gaps.append(float(np.abs(run["beta"][-1] - flow["beta"][-1]).max()))
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(1, abs=0.2)
    assert np.log2(gaps[1] / gaps[2]) == pytest.approx(1, abs=0.2)


def test_batches_are_drawn_by_the_seed():
    model = LinearDiagonal(3)
    task = Supervised(np.random.default_rng([0, 9]).normal(size=(10, 3)), np.arange(10.0))
    weights = (np.ones(3), np.full(3, 0.4))
    runs = [
        simulate(LinearDiagonal(3, weights), task, Descent(0.01, 20, -1.0, batch=2), seed=seed)["beta"].values
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])
    assert model.coordinates == 3


def test_full_head_flow_and_descent_agree():
    model = FullHead(3)
    task = TeacherStudent(model, 30, 4, seed=0)
    flow = simulate(model, task, Flow(np.log(0.1), tolerance=1e-8), times=[0.0, 10.0])
    steps = 2000
    run = simulate(model, task, Descent(10 * np.log(10) / steps, steps, np.log(0.1), save_every=steps))
    np.testing.assert_allclose(run["singular_value"][-1], flow["singular_value"][-1], rtol=2e-3, atol=1e-5)
    assert flow["singular_value"].dims == ("time", "family", "mode")


def test_cost_of_a_thousand_decades_is_that_of_a_hundred():
    model = AttentionHead(4)
    task = TeacherStudent(model, 40, 4, seed=0)
    spent = [
        simulate(model, task, Flow(-d * np.log(10), until=200.0)).attrs for d in (300, 3000)
    ]  # fmt: skip
    counts = [one["gradient_evaluations"] + one["hessian_products"] for one in spent]
    assert counts[1] <= 1.3 * counts[0]


def test_seeds_lay_out_an_axis():
    found = simulate(
        LinearDiagonal(2), Supervised(np.eye(2), np.array([1.0, 0.5])), Flow(-20.0), times=[0.0, 1.0, 2.0], seed=[0, 1]
    )
    assert found["beta"].dims == ("time", "seed", "coordinate")


def test_users_own_function_and_family_names():
    model = Diagonal(lambda beta, batch: jnp.tanh(batch @ beta), 2)
    flow = simulate(model, Supervised(np.eye(2), np.array([0.5, -0.3])), Flow(-30.0))
    np.testing.assert_allclose(flow["beta"][-1], np.arctanh([0.5, -0.3]), rtol=1e-2)
    assert AttentionHead(2).families == ["key_query"] * 2 + ["value_output"] * 2


BAD = {
    "not smooth": lambda beta, batch: batch @ jnp.sqrt(beta),
    "not a number": lambda beta, batch: batch @ beta + jnp.nan,
    "wrong shape": lambda beta, batch: batch @ jnp.ones(7),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_functions_are_explained(kind):
    with pytest.raises(SaddlesError, match="but h"):
        simulate(Diagonal(BAD[kind], 2), Supervised(np.eye(2), np.ones(2)), Flow(-5.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flow(0.0),
        lambda: Flow(1.0),
        lambda: Flow(-5.0, until=-1.0),
        lambda: Flow(-5.0, tolerance=1e-12),
        lambda: Descent(0.1, 10, -4000.0),
        lambda: Descent(0.1, 10, batch=0),
        lambda: LinearDiagonal(0),
        lambda: Supervised(np.ones((3, 2)), np.ones(2)),
        lambda: Supervised(np.full((2, 2), np.nan), np.ones(2)),
        lambda: LinearDiagonal(2, exponents=-1.0).powers,
        lambda: TeacherStudent(Diagonal(lambda b, x: x @ b, 2), 5).inputs,
        lambda: simulate(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), Flow(-5.0), keep=["nothing"]),
        lambda: simulate(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), Flow(-5.0), times=[1.0, 0.5]),
        lambda: simulate(
            LinearDiagonal(2, weights=(np.ones(3), np.ones(3))), Supervised(np.eye(2), np.ones(2)), Flow(-5.0)
        ),
    ],
)
def test_bad_input_is_refused(make):
    with pytest.raises(SaddlesError, match="but"):
        make()


def test_squared_error_is_the_mean_over_entries():
    assert float(squared_error(jnp.ones((2, 3)), jnp.zeros((2, 3)))) == 1.0
