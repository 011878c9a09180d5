"""Algorithm 1 against independent roads: constrained least squares, by hand, the flow itself."""

import numpy as np
import pytest

from saddles import predict, simulate
from saddles.diagonal import (
    AttentionHead,
    Diagonal,
    DiagonalTransformer,
    Flow,
    Incremental,
    LinearDiagonal,
    Supervised,
    TeacherStudent,
    check_assumptions,
    cross_entropy,
)
from saddles.diagonal.quadratic import saddle_path
from saddles.diagonal.theory import waiting
from saddles.errors import SaddlesError
from saddles.measures import stages


def _correlated(seed, size=8, samples=16, factors=3):
    draw = np.random.default_rng([seed, 2])
    inputs = draw.normal(size=(samples, factors)) @ draw.normal(size=(factors, size))
    inputs += 0.3 * draw.normal(size=(samples, size))
    return Supervised(inputs, inputs @ draw.normal(size=size))


def test_waiting_times_are_formula_10():
    b, g = np.array([1.0, 1.0, 0.3, 1.7, 1.0]), np.array([2.0, -4.0, -0.5, 0.1, 0.0])
    printed = [(bi - 1 + np.sign(gi)) / gi if gi else np.inf for bi, gi in zip(b, g, strict=True)]
    np.testing.assert_allclose(waiting(b, np.full(5, 2.0), g), printed)


def test_decoupled_coordinates_by_hand():
    """Orthonormal inputs: g_i = 2 b_i / n on coordinate i until it is learned, so T_i = n / (2|b_i|)."""
    target = np.array([0.5, -1.5, 1.0])
    found = predict(LinearDiagonal(3), Supervised(np.eye(3), target), Incremental())
    assert found["stage_coordinate"].values.tolist() == [1, 2, 0]
    assert found["stage_sign"].values.tolist() == [-1, 1, 1]
    np.testing.assert_allclose(found["stage_time"], 3 / (2 * np.abs(target[[1, 2, 0]])), rtol=1e-9)
    np.testing.assert_allclose(found["stage_beta"][-1], target, rtol=1e-8)
    assert found["support_size"].values.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found["stage_loss"], [(0.25 + 1) / 3, 0.25 / 3, 0], atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_linear_network_equals_constrained_least_squares(seed):
    task = _correlated(seed)
    mine, other = predict(LinearDiagonal(8), task, Incremental()), saddle_path(task.inputs, task.targets)
    for name in ("stage_coordinate", "stage_sign", "support_size"):
        assert mine[name].values.tolist() == other[name].values.tolist()
    np.testing.assert_allclose(mine["stage_time"], other["stage_time"], rtol=1e-6)
    np.testing.assert_allclose(mine["stage_beta"], other["stage_beta"], atol=1e-6 * np.abs(other["stage_beta"]).max())


def test_exits_and_returns_are_covered():
    found = [predict(LinearDiagonal(8), _correlated(seed), Incremental()) for seed in range(4)]
    assert sum(int(one["stage_left"].sum()) for one in found) >= 2
    assert any(len(np.unique(one["stage_coordinate"])) < one.sizes["stage"] for one in found)


@pytest.mark.parametrize("decades", [32, 1000])
def test_head_learns_in_the_predicted_order_with_log_scales(decades):
    model = AttentionHead(5)
    task = TeacherStudent(model, 60, 5, seed=1)
    limit = predict(model, task, Incremental(4))
    scale = -decades * np.log(10)
    flow = simulate(model, task, Flow(scale, until=0.5 * float(limit["stage_time"][2] + limit["stage_time"][3])))
    seen = stages(flow)
    assert seen["stage_coordinate"].values[:3].tolist() == limit["stage_coordinate"].values[:3].tolist()
    assert seen["stage_sign"].values[:3].tolist() == limit["stage_sign"].values[:3].tolist()
    np.testing.assert_allclose(seen["unit_time"][:3], limit["stage_time"][:3], rtol=4 / -scale)
    plateau = flow.isel(time=int(np.argmin(np.abs(flow["rescaled_time"].values - float(limit["stage_time"][2])))))
    np.testing.assert_allclose(plateau["log_scale"], limit["stage_log_scale"][2], atol=20 / -scale)


def test_finite_form_gives_the_first_time():
    model = AttentionHead(5)
    task = TeacherStudent(model, 60, 5, seed=1)
    scale = -32 * np.log(10)
    finite, limit = predict(model, task, Incremental(1, log_alpha=scale)), predict(model, task, Incremental(1))
    seen = stages(simulate(model, task, Flow(scale, until=1.2 * float(limit["stage_time"][0]))))
    when = float(seen["unit_time"][0])
    assert abs(when / float(finite["stage_time"][0]) - 1) < 1e-4
    assert abs(when / float(limit["stage_time"][0]) - 1) > 1e-4


def test_heads_tie_and_exponents_break_the_tie():
    alike = DiagonalTransformer(3, 1, 2)
    task = TeacherStudent(alike, 40, 4, seed=2)
    tied = predict(alike, task, Incremental(1))
    assert tied["stage_tie"].values.tolist() == [2, 2]
    assert abs(int(tied["stage_coordinate"][0]) - int(tied["stage_coordinate"][1])) == 6
    checks = check_assumptions(alike, task, tied, trials=0)
    assert checks["verdict"].sel(assumption="4.3 gap").values.tolist() == ["fails", "fails"]
    assert checks["verdict"].sel(assumption="4.4").values.tolist() == ["fails", "fails"]
    broken = predict(DiagonalTransformer(3, 1, 2, exponents=[1.0, 1.3]), task, Incremental(2))
    assert broken["stage_tie"].values.tolist() == [1, 1]
    assert int(broken["stage_coordinate"][0]) < 6


def test_logit_offsets_break_the_tie_too():
    offsets = np.random.default_rng([0, 3]).normal(size=(2, 4, 4))
    model = DiagonalTransformer(3, 1, 2, offsets=offsets)
    found = predict(model, TeacherStudent(model, 40, 4, seed=2), Incremental(1))
    assert found["stage_tie"].values.tolist() == [1]


def test_assumptions_hold_on_a_plain_task():
    model = LinearDiagonal(3)
    task = Supervised(np.eye(3), np.array([0.5, -1.5, 1.0]))
    checks = check_assumptions(model, task, predict(model, task, Incremental()))
    assert (checks["verdict"] == "holds").all()
    # ∇²_u of mean (u² − b)²/3 at u² = |b| is 8|b|/3 on the diagonal
    np.testing.assert_allclose(checks["value"].sel(assumption="4.4"), [1.0, 1 / 1.5, 0.5 / 1.5], rtol=1e-6)


def test_equal_weights_run_but_the_theory_says_which_assumption_broke():
    ones = np.ones(2)
    model = LinearDiagonal(2, weights=(ones, np.array([1.0, 0.5])))
    task = Supervised(np.eye(2), np.array([1.0, 0.6]))
    found = predict(model, task, Incremental())
    assert "Assumption 4.3" in found.attrs["not_applicable"]
    assert "coordinate 0" in found.attrs["not_applicable"]
    flow = simulate(model, task, Flow(-50.0))
    np.testing.assert_allclose(flow["beta"][-1], [1.0, 0.6], rtol=1e-2)


def test_separable_cross_entropy_names_the_assumption():
    inputs = np.array([[1.0, 0.5], [-1.0, 0.2], [2.0, -0.3], [-1.5, 0.1]])
    model = Diagonal(lambda beta, batch: (batch * beta[None, :]).sum(axis=1)[:, None] * np.array([[1.0, -1.0]]), 2)
    found = predict(model, Supervised(inputs, np.array([0, 1, 0, 1]), cross_entropy), Incremental())
    assert found.attrs["status"].startswith("stopped")
    assert "Assumption 4.4" in found.attrs["status"]


def test_prediction_is_piecewise_constant_on_asked_times():
    task = Supervised(np.eye(2), np.array([1.0, 0.5]))
    found = predict(LinearDiagonal(2), task, Incremental(), times=[0.0, 0.9, 1.1, 1.9, 2.1])
    np.testing.assert_allclose(found["beta"], [[0, 0], [0, 0], [1, 0], [1, 0], [1, 0.5]], atol=1e-8)
    assert found["time"].attrs["unit"] == "rescaled time"


@pytest.mark.parametrize("settings", [{"max_stages": 0}, {"log_alpha": 0.5}, {"log_alpha": float("nan")}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(SaddlesError, match="but"):
        Incremental(**settings)
