"""Simulation: models by dense loops, gradients by hand, the flow against ordinary integration, descent's laws."""

import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp
from scipy.special import softmax

from saddles import predict, simulate
from saddles.core.status import FINISHED, Ending, status_of
from saddles.diagonal import (
    AttentionHead,
    Descent,
    Diagonal,
    DiagonalTransformer,
    Flow,
    FullHead,
    Incremental,
    LinearDiagonal,
    Network,
    Supervised,
    TeacherStudent,
    cross_entropy,
    perturbed_descents,
    perturbed_flows,
    squared_error,
)
from saddles.diagonal.risk import mean_of, risk_of
from saddles.errors import SaddlesError
from saddles.measures import balance_drift
from saddles.solvers.dynamics import Dynamics, Path
from saddles.solvers.methods import GradientDescent, GradientFlow


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


@pytest.mark.parametrize("head", [FullHead, AttentionHead])
def test_one_program_serves_every_initial_scale(head):
    def forward(decades):
        model = head(3, log_alpha=-decades * np.log(10))
        return mean_of(model, TeacherStudent(model, 4, 2, seed=decades)).output

    assert forward(2) == forward(9)  # equal static fields: what is compiled for one is used for the other


def test_losses_of_any_number_of_instants_come_from_one_program():
    traced = []

    def loss(output, target):
        traced.append(output)
        return squared_error(output, target)

    draw = np.random.default_rng([0, 7])
    task: Any = Supervised(draw.normal(size=(4, 2, 3)), draw.normal(size=(4, 2, 3)), loss)
    risk = risk_of(AttentionHead(3), task)
    betas = draw.normal(size=(65, 6))
    exact = [risk.both(beta)[0] for beta in betas]
    before = len(traced)
    for count in (1, 0, 64, 65):
        np.testing.assert_allclose(risk.losses(betas[:count]), exact[:count], rtol=1e-12)
    assert len(traced) == before + 1


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


def test_noise_of_a_teacher_has_its_size():
    model, noise = AttentionHead(3), 0.3
    clean, noisy = (TeacherStudent(model, 200, 4, seed=1, noise=level).targets for level in (0.0, noise))
    assert (noisy - clean).std() == pytest.approx(noise, rel=5 / np.sqrt(2 * clean.size))


def test_flow_equals_ordinary_gradient_flow_of_the_weights():
    model = AttentionHead(3, log_alpha=np.log(1e-2))
    task = TeacherStudent(model, 30, 4, seed=3)
    mean = risk_of(model, task).mean
    both = jax.jit(jax.grad(lambda w: mean(w[0] * w[1])))
    start = 1e-2 * np.stack(model.start(task))
    times = np.linspace(0.0, 30.0, 7)
    plain = solve_ivp(
        lambda t, w: -np.asarray(both(jnp.asarray(w.reshape(2, 6)))).ravel(), (0, times[-1] * np.log(100)),
        start.ravel(), t_eval=times * np.log(100), rtol=1e-9, atol=1e-12,
    ).y.T.reshape(-1, 2, 6)  # fmt: skip
    flow = simulate(model, task, Flow(tolerance=1e-7), times=times, keep=["weights"])
    np.testing.assert_allclose(flow["u"], plain[:, 0], atol=2e-5)
    np.testing.assert_allclose(flow["beta"], plain[:, 0] * plain[:, 1], atol=2e-5)
    np.testing.assert_array_equal(flow["time"], times)
    np.testing.assert_allclose(flow["gradient_time"], times * np.log(100))


@pytest.mark.parametrize("batch", [None, 8])
def test_balance_drifts_in_proportion_to_the_rate_and_not_in_the_flow(batch):
    model = LinearDiagonal(4, log_alpha=-3.0)
    task = TeacherStudent(model, 40, seed=2)
    flow = simulate(model, task, Flow(), times=[0.0, 1.0, 3.0], keep=["weights"])
    assert float(balance_drift(flow).max()) < 1e-14
    rates = np.array([0.02, 0.01, 0.005])
    drift = []
    for rate in rates:
        steps = round(9.0 / rate)
        run = simulate(model, task, Descent(rate, steps, batch, save_every=steps), keep=["weights"])
        drift.append(float(balance_drift(run)[-1]))
    assert abs(np.polyfit(np.log(rates), np.log(drift), 1)[0] - 1) < 0.15


@pytest.mark.parametrize("method", [Flow(), Descent(0.3, 200)], ids=["flow", "descent"])
def test_a_list_of_scales_becomes_an_axis_on_the_rescaled_clock(method):
    scales, times = [-5.0, -50.0], [0.0, 0.5, 1.0]
    task = TeacherStudent(LinearDiagonal(3), 30, seed=1)
    both = simulate(LinearDiagonal(3, log_alpha=scales), task, method, times=times)
    assert both["beta"].dims == ("time", "log_alpha", "coordinate")
    np.testing.assert_array_equal(both["time"], times)
    assert both["time"].attrs["unit"].startswith("rescaled time")
    for scale in scales:
        one = simulate(LinearDiagonal(3, log_alpha=scale), task, method, times=times)
        np.testing.assert_array_equal(both["beta"].sel(log_alpha=scale), one["beta"])
        np.testing.assert_array_equal(both["gradient_time"].sel(log_alpha=scale), one["gradient_time"])
        np.testing.assert_allclose(one["gradient_time"], -scale * np.array(times), atol=0.15)  # half a step of descent


def test_several_flows_share_one_clock_or_are_refused_before_they_run():
    model, task = LinearDiagonal(3, log_alpha=[-5.0, -50.0]), TeacherStudent(LinearDiagonal(3), 30, seed=1)
    free = simulate(model, task, Flow(until=1.0))
    np.testing.assert_allclose(free["time"], np.linspace(0.0, 1.0, 201))
    assert np.isfinite(free["beta"]).all()
    with pytest.raises(SaddlesError, match="give `until` or `times`"):
        simulate(model, task, Flow())
    full = FullHead(2, log_alpha=-3.0)
    with pytest.raises(SaddlesError, match="Give `until`, or `times`"):
        simulate(full, TeacherStudent(full, 5, 3), Flow())


def test_a_flow_without_an_end_says_whether_it_came_to_rest():
    model, task = LinearDiagonal(2, log_alpha=-20.0), Supervised(np.eye(2), np.array([1.0, 0.5]))
    assert status_of(simulate(model, task, Flow())).ending is Ending.CONVERGED
    never = Supervised(np.array([[1.0, 0.3], [-1.0, 0.2]]), np.array([0, 1]), cross_entropy)
    separable = Diagonal(lambda beta, x: (x @ beta)[:, None] * jnp.array([[1.0, -1.0]]), 2, log_alpha=-3.0)
    assert status_of(simulate(separable, never, Flow())).ok
    assert status_of(simulate(model, task, Flow(max_steps=5))).ending is Ending.STOPPED


def test_conservation_in_the_flow_and_its_law_in_descent():
    model, rate = LinearDiagonal(3, log_alpha=np.log(0.3)), 0.05
    task = Supervised(np.random.default_rng([0, 8]).normal(size=(10, 3)), np.arange(10.0))
    flow = simulate(model, task, Flow(until=30.0), keep=["weights"])
    invariant = (flow["u"] ** 2 - flow["v"] ** 2).values
    np.testing.assert_allclose(invariant, np.broadcast_to(invariant[0], invariant.shape), rtol=1e-9)
    run = simulate(model, task, Descent(rate, 40), keep=["weights"])
    risk = risk_of(model, task)  # pyright: ignore[reportArgumentType]
    now = (run["u"] ** 2 - run["v"] ** 2).values
    for step in range(40):
        force = risk.force(run["beta"].values[step])
        np.testing.assert_allclose(now[step + 1], now[step] * (1 - rate**2 * force**2), rtol=1e-11)


def test_descent_approaches_the_flow_to_first_order_in_its_rate():
    model = LinearDiagonal(3, log_alpha=np.log(0.1))
    task = Supervised(np.eye(3), np.array([1.0, -0.6, 0.3]))
    flow = simulate(model, task, Flow(tolerance=1e-8), times=[3.0])
    gaps = []
    for rate in (0.08, 0.04, 0.02):
        steps = round(3.0 * np.log(10) / rate)
        scaled = 3.0 * np.log(10) / steps
        run = simulate(model, task, Descent(scaled, steps, save_every=steps))
        gaps.append(float(np.abs(run["beta"][-1] - flow["beta"][-1]).max()))
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(1, abs=0.2)
    assert np.log2(gaps[1] / gaps[2]) == pytest.approx(1, abs=0.2)


def test_batches_are_drawn_by_the_seed():
    task = Supervised(np.random.default_rng([0, 9]).normal(size=(10, 3)), np.arange(10.0))
    model = LinearDiagonal(3, (np.ones(3), np.full(3, 0.4)), log_alpha=-1.0)
    runs = [simulate(model, task, Descent(0.01, 20, batch=2), seed=seed)["beta"].values for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])
    with pytest.raises(SaddlesError, match="`seed` has no effect"):
        simulate(model, task, Descent(0.01, 20), seed=1)
    with pytest.raises(SaddlesError, match="`seed` has no effect"):
        simulate(model, task, Flow(), seed=[0, 1])


def test_every_step_draws_a_batch_of_its_own():
    count = 8  # sample i sees coordinate i alone, so that what moved tells which samples were drawn
    model = LinearDiagonal(count, (np.ones(count), np.full(count, 0.4)), log_alpha=-1.0)
    task = Supervised(np.eye(count), np.ones(count))
    moves = np.diff(simulate(model, task, Descent(0.1, 60, batch=1))["beta"].values, axis=0)
    drawn = [np.flatnonzero(move) for move in moves]
    assert all(len(rows) == 1 for rows in drawn)
    assert {int(rows[0]) for rows in drawn} == set(range(count))  # one is missed with probability 8 (7/8)^60 = 0.003


def test_a_perturbation_moves_u_and_v_on_their_own():
    model = LinearDiagonal(4, log_alpha=-30.0)
    task = Supervised(np.eye(4), np.array([1.0, -1.0, 1.5, 2.0]))
    end = simulate(model, task, Flow(until=30.0))["log_scale"][-1].values
    draw, size = np.random.default_rng(0), 1e-3
    pairs = [perturbed_flows(model, task, end, clock=np.array([0.0, 1e-9]), noise=size, draw=draw) for _ in range(300)]
    moved = np.array([perturbed[0] - plain[0] for plain, perturbed in pairs])
    # |u| = |v| = √|β| at rest: independent noise on both moves uv by √(2|β|) size, noise on u alone by √|β| size
    spread = moved.std(axis=0) / np.sqrt(np.abs(pairs[0][0][0]))
    np.testing.assert_allclose(spread, np.sqrt(2) * size, rtol=5 / np.sqrt(2 * 300))


def test_descents_go_on_from_the_same_perturbed_places():
    model = LinearDiagonal(4, log_alpha=-30.0)
    task = Supervised(np.eye(4), np.array([1.0, -1.0, 1.5, 2.0]))
    places = simulate(model, task, Flow(), times=[0.0, 9.0, 20.0])["log_scale"].values[1:]
    clock, small = np.linspace(0.0, 4.0, 5), Descent(1e-3, 4000)
    draws = [[np.random.default_rng(k) for k in range(2)] for _ in range(3)]
    full = perturbed_descents(model, task, places, clock=clock, noise=0.05, draws=draws[0], method=small)
    for k, place in enumerate(places):
        flows = perturbed_flows(model, task, place, clock=clock, noise=0.05, draw=draws[1][k])
        for ours, theirs in zip(full, flows, strict=True):
            np.testing.assert_allclose(ours[:, k], theirs, atol=2e-3)
    assert np.abs(full[0] - full[1]).max() > 0.02  # the noise is there
    batches = perturbed_descents(
        model, task, places[[1, 1]], clock=clock, noise=0.0, draws=draws[2], method=Descent(0.05, 80, batch=1)
    )
    np.testing.assert_array_equal(*batches)  # all runs see the same batches
    np.testing.assert_array_equal(batches[0][:, 0], batches[0][:, 1])
    step = np.array([0.0, 0.05])  # sample i sees coordinate i alone: a batch of one moves one weight
    moved = perturbed_descents(
        model, task, places, clock=step, noise=0.05, draws=draws[2], method=Descent(0.05, 1, batch=1)
    )[1]
    assert (np.abs(np.diff(moved, axis=0)) > 1e-12).sum(axis=-1).max() == 1


def test_full_head_flow_and_descent_agree():
    model = FullHead(3, log_alpha=np.log(0.1))
    task = TeacherStudent(model, 30, 4, seed=0)
    flow = simulate(model, task, Flow(tolerance=1e-8), times=[0.0, 10.0])
    steps = 2000
    run = simulate(model, task, Descent(10 * np.log(10) / steps, steps, save_every=steps))
    np.testing.assert_allclose(run["singular_value"][-1], flow["singular_value"][-1], rtol=2e-3, atol=1e-5)
    assert flow["singular_value"].dims == ("time", "family", "mode")


def test_cost_of_a_thousand_decades_is_that_of_a_hundred():
    models = [AttentionHead(4, log_alpha=-d * np.log(10)) for d in (300, 3000)]
    task = TeacherStudent(models[0], 40, 4, seed=0)
    spent = [simulate(model, task, Flow(until=200.0)).attrs for model in models]
    counts = [one["gradient_evaluations"] + one["hessian_products"] for one in spent]
    assert counts[1] <= 1.3 * counts[0]


def test_seeds_lay_out_an_axis():
    model, task = LinearDiagonal(2, log_alpha=-20.0), Supervised(np.eye(2), np.array([1.0, 0.5]))
    result = simulate(model, task, Flow(), times=[0.0, 1.0, 2.0], seed=[0, 1])
    assert result["beta"].dims == ("time", "seed", "coordinate")


def test_users_own_function_and_family_names():
    model = Diagonal(lambda beta, batch: jnp.tanh(batch @ beta), 2, log_alpha=-30.0)
    flow = simulate(model, Supervised(np.eye(2), np.array([0.5, -0.3])), Flow())
    np.testing.assert_allclose(flow["beta"][-1], np.arctanh([0.5, -0.3]), rtol=1e-2)
    assert AttentionHead(2).families == ["key_query"] * 2 + ["value_output"] * 2


BAD = {
    "not smooth": lambda beta, batch: batch @ jnp.sqrt(beta),
    "not a number": lambda beta, batch: batch @ beta + jnp.nan,
    "wrong shape": lambda beta, batch: batch @ jnp.ones(7),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_functions_are_explained(kind):
    with pytest.raises(SaddlesError, match="h must"):
        simulate(Diagonal(BAD[kind], 2, log_alpha=-5.0), Supervised(np.eye(2), np.ones(2)), Flow())


TWO = LinearDiagonal(2, log_alpha=-5.0)
EYE = Supervised(np.eye(2), np.ones(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearDiagonal(2, log_alpha=0.0), "`log_alpha` must be a negative number"),
        (lambda: FullHead(2, log_alpha=[-5.0, 1.0]), "`log_alpha` must be a negative number"),
        (lambda: Flow(until=-1.0), "`until` must be a positive rescaled time"),
        (lambda: Flow(-5.0), "`log_alpha`"),
        (lambda: Flow(tolerance=1e-12), "`tolerance` must be"),
        (lambda: Descent(0.1, 10, batch=0), "`batch` must be"),
        (lambda: Descent(-0.1, 10), "`rate` must be"),
        (lambda: LinearDiagonal(0), "`dim` must be"),
        (lambda: Supervised(np.ones((3, 2)), np.ones(2)), "number of samples"),
        (lambda: Supervised(np.full((2, 2), np.nan), np.ones(2)), "must be finite"),
        (lambda: LinearDiagonal(2, exponents=-1.0).powers, "`exponents` must be positive"),
        (lambda: LinearDiagonal(2, exponents=[1.0, 1.0, 1.0]).powers, "`exponents` must be one number or 2"),
        (lambda: TeacherStudent(Diagonal(lambda b, x: x @ b, 2), 5).inputs, "Supervised"),
        (lambda: simulate(LinearDiagonal(2), EYE, Flow()), "needs an initial scale"),
        (lambda: simulate(LinearDiagonal(2, log_alpha=-4000.0), EYE, Descent(0.1, 10)), "Use Flow"),
        (lambda: simulate(FullHead(2, log_alpha=-4000.0), EYE, Flow(until=1.0)), "at least -300"),
        (lambda: simulate(TWO, EYE, Flow(), keep=["nothing"]), "`keep` must be"),
        (lambda: simulate(TWO, EYE, Descent(0.1, 10), keep=["crossings"]), "`keep` must be"),
        (lambda: simulate(FullHead(2, log_alpha=-5.0), EYE, Flow(), keep=["weights"]), "`keep` has no meaning"),
        (lambda: simulate(TWO, EYE, Flow(), times=[1.0, 0.5]), "`times` must be"),
        (lambda: simulate(TWO, EYE, Descent(0.1, 10), times=[0.0, 5.0]), "at most 0.2, which 10 steps"),
        (lambda: simulate(TWO, EYE, "flow"), "Flow or Descent"),
        (lambda: simulate(TWO, object(), Flow()), "has no `inputs`"),
        (lambda: simulate(LinearDiagonal(2, (np.ones(3), np.ones(3)), log_alpha=-5.0), EYE, Flow()), "two vectors"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(make, words):
    with pytest.raises(SaddlesError, match=re.escape(words)):
        make()


def test_the_old_place_of_the_scale_works_with_a_warning():
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Flow(until=2.0), {"until": 2.0}), (Descent(0.1, 50), {"rate": 0.1, "steps": 50}),
    ]  # fmt: skip
    for new, old in cases:
        with pytest.warns(DeprecationWarning, match="field of the model"):
            method = type(new)(**old, log_alpha=-5.0)
        xr.testing.assert_equal(simulate(LinearDiagonal(2), EYE, method), simulate(TWO, EYE, new))
        with pytest.raises(SaddlesError, match="given twice"):
            simulate(TWO, EYE, method)


class Tanh(Network):
    """A network of the user's own."""

    log_alpha = -30.0

    @property
    def coordinates(self) -> int:
        return 2

    def output(self, beta, inputs):
        return jnp.tanh(inputs @ beta)


class Euler:
    """A method of the user's own: plain Euler steps, written without the package."""

    def follow(self, dynamics, times=None):
        state, seen, slope_of = dynamics.start, [], jax.jit(lambda state: dynamics.slope(state, dynamics.args))
        times = np.linspace(0.0, 20.0, 5) if times is None else times
        for span in np.diff(times, prepend=0.0):
            for _ in range(400):
                state = jax.tree.map(lambda x, move, h=span / 400: x + h * move, state, slope_of(state))
            seen.append(dynamics.observe(state, dynamics.args))
        saved = {name: np.array([row[name] for row in seen]) for name in seen[0]}
        return Path(np.asarray(times), saved, state, FINISHED)


@pytest.mark.parametrize(
    "method", [Euler(), GradientFlow(), GradientDescent(0.01, 4000)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("model", [LinearDiagonal(2, log_alpha=-2.0), FullHead(2, log_alpha=-1.0)], ids=["net", "full"])
@pytest.mark.slow
def test_methods_of_other_rooms_train_both_kinds_of_model(model, method):
    task = TeacherStudent(model, 10, 3, seed=1)
    times = np.array([0.0, 1.0, 4.0])
    ours, theirs = (simulate(model, task, one, times=times) for one in (Flow(tolerance=1e-8), method))
    name = "beta" if "beta" in ours else "singular_value"
    np.testing.assert_allclose(theirs[name], ours[name], atol=2e-2 * float(np.abs(ours[name]).max()))
    np.testing.assert_array_equal(theirs["time"], times)


def test_a_network_of_the_users_own_is_trained_and_predicted():
    task = Supervised(np.eye(2), np.array([0.5, -0.3]))
    flow, predicted = simulate(Tanh(), task, Flow()), predict(Tanh(), task, Incremental())
    np.testing.assert_allclose(flow["beta"][-1], np.arctanh([0.5, -0.3]), rtol=1e-2)
    np.testing.assert_allclose(predicted["beta"][-1], np.arctanh([0.5, -0.3]), rtol=1e-6)


@pytest.mark.parametrize("method", [Flow(until=1.0), Descent(0.1, 5, batch=2)], ids=lambda m: type(m).__name__)
def test_methods_of_this_lab_say_where_they_do_not_fit(method):
    elsewhere = Dynamics(jnp.ones(2), None, lambda x, _: -x, lambda x, _: {"loss": x @ x})
    with pytest.raises(SaddlesError, match="trains the models of that lab"):
        method.follow(elsewhere)


CODE = """
import jax.numpy as jnp
from saddles import diagonal, simulate, predict
model = diagonal.LinearDiagonal(3, log_alpha=-20.0)
task = diagonal.TeacherStudent(model, 20, seed=1)
assert simulate(model, task, diagonal.Flow(until=1.0))["beta"].dtype == "float64"
assert task.targets.dtype == "float64"
assert abs(float(predict(model, task, diagonal.Incremental())["loss"][-1])) < 1e-15
diagonal.check_assumptions(model, task, predict(model, task, diagonal.Incremental()))
assert jnp.ones(1).dtype == "float32"
"""


def test_double_precision_is_on_only_while_saddles_computes():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_squared_error_is_the_mean_over_entries():
    assert float(squared_error(jnp.ones((2, 3)), jnp.zeros((2, 3)))) == 1.0
