"""Algorithm 1 against independent roads: constrained least squares, by hand, the flow itself."""

import numpy as np
import pytest
import xarray as xr

from saddles import compare, predict, simulate, trajectory
from saddles.core.status import Ending, status_of
from saddles.diagonal import (
    AttentionHead,
    Diagonal,
    DiagonalTransformer,
    Flow,
    FullHead,
    Incremental,
    LinearDiagonal,
    Supervised,
    TeacherStudent,
    check_assumptions,
    cross_entropy,
    saddle_path,
)
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
    np.testing.assert_allclose(waiting(b, 2.0 - b, g), printed)


def test_decoupled_coordinates_by_hand():
    """Orthonormal inputs: g_i = 2 b_i / n on coordinate i until it is learned, so T_i = n / (2|b_i|)."""
    target = np.array([0.5, -1.5, 1.0])
    result = predict(LinearDiagonal(3), Supervised(np.eye(3), target), Incremental())
    assert result["stage_coordinate"].values.tolist() == [1, 2, 0]
    assert result["stage_sign"].values.tolist() == [-1, 1, 1]
    np.testing.assert_allclose(result["stage_time"], 3 / (2 * np.abs(target[[1, 2, 0]])), rtol=1e-9)
    np.testing.assert_allclose(result["stage_beta"][-1], target, rtol=1e-8)
    assert result["support_size"].values.tolist() == [1, 2, 3]
    np.testing.assert_allclose(result["stage_loss"], [(0.25 + 1) / 3, 0.25 / 3, 0], atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_linear_network_equals_constrained_least_squares(seed):
    task = _correlated(seed)
    mine, other = (
        predict(LinearDiagonal(8), task, Incremental()),
        saddle_path(np.asarray(task.inputs), np.asarray(task.targets)),
    )
    for name in ("stage_coordinate", "stage_sign", "support_size"):
        assert mine[name].values.tolist() == other[name].values.tolist()
    np.testing.assert_allclose(mine["stage_time"], other["stage_time"], rtol=1e-6)
    np.testing.assert_allclose(mine["stage_beta"], other["stage_beta"], atol=1e-6 * np.abs(other["stage_beta"]).max())


def test_exits_and_returns_are_covered():
    result = [predict(LinearDiagonal(8), _correlated(seed), Incremental()) for seed in range(4)]
    assert sum(int(one["stage_left"].sum()) for one in result) >= 2
    assert any(len(np.unique(one["stage_coordinate"])) < one.sizes["stage"] for one in result)


@pytest.mark.parametrize("decades", [32, 1000])
def test_head_learns_in_the_predicted_order_with_log_scales(decades):
    scale = -decades * np.log(10)
    model = AttentionHead(5, log_alpha=scale)
    task = TeacherStudent(model, 60, 5, seed=1)
    limit = predict(model, task, Incremental(4))
    flow = simulate(model, task, Flow(until=0.5 * float(limit["stage_time"][2] + limit["stage_time"][3])))
    seen = stages(flow)
    assert seen["stage_coordinate"].values[:3].tolist() == limit["stage_coordinate"].values[:3].tolist()
    assert seen["stage_sign"].values[:3].tolist() == limit["stage_sign"].values[:3].tolist()
    np.testing.assert_allclose(seen["unit_time"][:3], limit["stage_time"][:3], rtol=4 / -scale)
    plateau = flow.isel(time=int(np.argmin(np.abs(flow["time"].values - float(limit["stage_time"][2])))))
    np.testing.assert_allclose(plateau["log_scale"], limit["stage_log_scale"][2], atol=20 / -scale)


def test_finite_form_gives_the_first_time():
    model = AttentionHead(5, log_alpha=-32 * np.log(10))
    task = TeacherStudent(model, 60, 5, seed=1)
    finite, limit = predict(model, task, Incremental(1, finite=True)), predict(model, task, Incremental(1))
    seen = stages(simulate(model, task, Flow(until=1.2 * float(limit["stage_time"][0]))))
    when = float(seen["unit_time"][0])
    assert abs(when / float(finite["stage_time"][0]) - 1) < 1e-4
    assert abs(when / float(limit["stage_time"][0]) - 1) > 1e-4
    np.testing.assert_allclose(finite["gradient_time"], 32 * np.log(10) * finite["time"])
    with pytest.warns(DeprecationWarning, match="field of the model"):
        old = Incremental(1, log_alpha=-32 * np.log(10))
    xr.testing.assert_equal(predict(AttentionHead(5), task, old), finite)


def test_finite_form_of_a_start_that_is_not_small():
    """At α = 0.999 weights are beyond their barrier already: those stages are due at once, not a division by 0."""
    task = _correlated(0)
    found = predict(LinearDiagonal(8, log_alpha=np.log(0.999)), task, Incremental(2, finite=True))
    assert float(found["stage_time"][0]) == 0.0
    assert float(found["stage_margin"][0]) == np.inf


@pytest.mark.parametrize(("target", "data"), [(1e-15, 1.0), (1e-100, 1.0), (1e12, 1.0), (1.0, 1e20)])
def test_units_do_not_matter(target, data):
    """With targets c y and inputs d x, β is multiplied by c/d and times by 1/(c d), on a linear network exactly."""
    task = _correlated(0)
    inputs, targets = np.asarray(task.inputs), np.asarray(task.targets)
    one = predict(LinearDiagonal(8), task, Incremental())
    other = predict(LinearDiagonal(8), Supervised(data * inputs, target * targets), Incremental())
    assert other["stage_coordinate"].values.tolist() == one["stage_coordinate"].values.tolist()
    np.testing.assert_allclose(other["stage_time"] * target * data, one["stage_time"], rtol=1e-6)
    np.testing.assert_allclose(other["stage_beta"] * data / target, one["stage_beta"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("v", [[-1.0, 0.5, 0.5], [0.5, -1.0, 0.5], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
def test_finite_form_where_one_side_never_grows(v):
    """u = −v leaves p = 0, u = v leaves q = 0: that side of β is 0 for ever, whatever becomes of the others.

    Orthonormal inputs: T_i = log_α|p| or log_α|q| over |g_i| = 2|y_i|/3, by hand.
    """
    target, u, log_alpha = np.array([1.0, -2.0, 0.5]), np.ones(3), -300.0
    model, task = LinearDiagonal(3, (u, v), log_alpha=log_alpha), Supervised(np.eye(3), target)
    found = predict(model, task, Incremental(finite=True))
    grows = np.abs(u + np.sign(target) * v)
    with np.errstate(divide="ignore"):
        exact = (1 + np.log(grows) / log_alpha) * 3 / (2 * np.abs(target))
    order = [i for i in np.argsort(exact) if np.isfinite(exact[i])]
    assert found["stage_coordinate"].values.tolist() == order
    np.testing.assert_allclose(found["stage_time"], exact[order], rtol=1e-9)
    assert found["stage_sign"].values.tolist() == np.sign(target[order]).tolist()
    end = simulate(model, task, Flow(until=8.0))["beta"].values[-1]
    np.testing.assert_allclose(end, found["beta"].values[-1], atol=1e-4)


def test_seeds_change_the_finite_form_and_are_refused_in_the_limit():
    model = AttentionHead(3, log_alpha=-50.0)
    task = TeacherStudent(model, 40, 4, seed=1)
    both = predict(model, task, Incremental(1, finite=True), times=[0.0, 1.0], seed=[0, 1])
    assert float(both["stage_time"].sel(seed=0)[0]) != float(both["stage_time"].sel(seed=1)[0])
    with pytest.raises(SaddlesError, match="`seed` has no effect"):
        predict(model, task, Incremental(1), seed=1)
    with pytest.raises(SaddlesError, match="`seed` has no effect"):
        predict(LinearDiagonal(2, (np.ones(2), np.zeros(2)), log_alpha=-5.0), task, Incremental(finite=True), seed=1)
    with pytest.raises(SaddlesError, match="give `until` or `times`"):
        predict(model, task, Incremental(1, finite=True), seed=[0, 1])


def test_flow_and_prediction_are_compared_on_one_clock():
    model = LinearDiagonal(3, log_alpha=-1000.0)
    task, times = Supervised(np.eye(3), np.array([0.5, -1.5, 1.0])), [0.5, 1.2, 2.0, 4.0]
    apart = compare(simulate(model, task, Flow(), times=times), predict(model, task, Incremental(), times=times))
    assert apart.attrs["alignment"] == "common instants"
    assert float(apart["error"].sel(variable="beta", kind="max_absolute")) < 1e-2


class First:
    """A theory of the user's own: until the first activation nothing moves."""

    def predict(self, model, task, *, times, seed=0, **options):
        u, _ = model.start(task, seed)
        return trajectory({"beta": (("time", "coordinate"), np.zeros((len(times), len(u))))}, times)


def test_a_theory_of_the_users_own_reads_the_labs_models():
    model, task = LinearDiagonal(2, log_alpha=-50.0), Supervised(np.eye(2), np.array([1.0, 0.5]))
    times = [0.0, 0.2, 0.5]
    apart = compare(simulate(model, task, Flow(), times=times), predict(model, task, First(), times=times, seed=1))
    assert float(apart["error"].sel(kind="max_absolute").max()) < 1e-8


def test_what_the_theory_cannot_speak_about_is_refused():
    full = FullHead(2, log_alpha=-5.0)
    task = TeacherStudent(full, 5, 3)
    with pytest.raises(SaddlesError, match="is for networks h"):
        predict(full, task, Incremental())
    with pytest.raises(SaddlesError, match="`keep` has no meaning"):
        predict(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), Incremental(), keep=["weights"])
    with pytest.raises(SaddlesError, match="needs an initial scale"):
        predict(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), Incremental(finite=True))
    with pytest.raises(SaddlesError, match="must be a prediction of Incremental"):
        check_assumptions(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), trajectory({"loss": [1.0]}, [0.0]))


def test_heads_tie_and_exponents_break_the_tie():
    alike = DiagonalTransformer(3, 1, 2)
    task = TeacherStudent(alike, 40, 4, seed=2)
    tied = predict(alike, task, Incremental(1))
    assert tied["stage_tie"].values.tolist() == [2, 2]
    assert abs(int(tied["stage_coordinate"][0]) - int(tied["stage_coordinate"][1])) == 6
    checks = check_assumptions(alike, task, tied, trials=0)
    assert [check.holds for check in checks.about("4.3 gap").checks] == [False, False]
    assert [check.holds for check in checks.about("4.4").checks] == [False, False]
    assert [check.holds for check in checks.about("4.5").checks] == [None, None]
    assert checks.broken == ("4.3 gap", "4.4")
    broken = predict(DiagonalTransformer(3, 1, 2, exponents=[1.0, 1.3]), task, Incremental(2))
    assert broken["stage_tie"].values.tolist() == [1, 1]
    assert int(broken["stage_coordinate"][0]) < 6


def test_logit_offsets_break_the_tie_too():
    offsets = np.random.default_rng([0, 3]).normal(size=(2, 4, 4))
    model = DiagonalTransformer(3, 1, 2, offsets=offsets)
    result = predict(model, TeacherStudent(model, 40, 4, seed=2), Incremental(1))
    assert result["stage_tie"].values.tolist() == [1]


def test_assumptions_hold_on_a_plain_task():
    model = LinearDiagonal(3)
    task = Supervised(np.eye(3), np.array([0.5, -1.5, 1.0]))
    checks = check_assumptions(model, task, predict(model, task, Incremental()))
    assert checks.hold
    assert len(checks.to_frame()) == 1 + 4 * 3
    assert all(check.holds for check in checks.checks)
    # ∇²_u of mean (u² − b)²/3 at u² = |b| is 8|b|/3 on the diagonal
    curvatures = [check.value for check in checks.about("4.4").checks]
    np.testing.assert_allclose(curvatures, [1.0, 1 / 1.5, 0.5 / 1.5], rtol=1e-6)


def _ridge(output, _):
    """A valley in β₁ = 1 that turns into a ridge as β₂ grows: only a flow that begins on it ends at (1, 1)."""
    aside = (output[0] - 1) ** 2
    return (output[1] - 1) ** 2 + aside * (0.1 - output[1]) + aside**2


def test_assumption_4_5_fails_where_a_perturbed_flow_ends_elsewhere():
    model = Diagonal(lambda beta, batch: beta[None, :] * batch, 2)
    task = Supervised(np.ones((1, 2)), np.zeros((1, 2)), _ridge)
    predicted = predict(model, task, Incremental(2))
    np.testing.assert_allclose(predicted["stage_beta"].values, [[1, 0], [1, 1]], atol=1e-6)
    verdicts = [check.holds for check in check_assumptions(model, task, predicted, trials=8).about("4.5").checks]
    assert verdicts == [True, False]
    tiny = check_assumptions(model, task, predicted, radius=1e-30, trials=1).about("4.5").checks
    assert [check.holds for check in tiny] == [True, True]  # it is the perturbation that is judged


def test_equal_weights_run_but_the_theory_says_which_assumption_broke():
    ones = np.ones(2)
    model = LinearDiagonal(2, weights=(ones, np.array([1.0, 0.5])), log_alpha=-50.0)
    task = Supervised(np.eye(2), np.array([1.0, 0.6]))
    result = predict(model, task, Incremental())
    assert "Assumption 4.3" in result.attrs["not_applicable"]
    assert "coordinate 0" in result.attrs["not_applicable"]
    flow = simulate(model, task, Flow())
    np.testing.assert_allclose(flow["beta"][-1], [1.0, 0.6], rtol=1e-2)


def test_separable_cross_entropy_names_the_assumption():
    inputs = np.array([[1.0, 0.5], [-1.0, 0.2], [2.0, -0.3], [-1.5, 0.1]])
    model = Diagonal(lambda beta, batch: (batch * beta[None, :]).sum(axis=1)[:, None] * np.array([[1.0, -1.0]]), 2)
    result = predict(model, Supervised(inputs, np.array([0, 1, 0, 1]), cross_entropy), Incremental())
    assert status_of(result).ending is Ending.STOPPED
    assert "Assumption 4.4" in status_of(result).reason


def test_prediction_is_piecewise_constant_on_asked_times():
    task = Supervised(np.eye(2), np.array([1.0, 0.5]))
    result = predict(LinearDiagonal(2), task, Incremental(), times=[0.0, 0.9, 1.1, 1.9, 2.1])
    np.testing.assert_allclose(result["beta"], [[0, 0], [0, 0], [1, 0], [1, 0], [1, 0.5]], atol=1e-8)
    assert result["time"].attrs["unit"].startswith("rescaled time")


@pytest.mark.parametrize("settings", [{"max_stages": 0}, {"until": -1.0}, {"log_alpha": float("nan")}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(SaddlesError, match=f"`{next(iter(settings))}` must be"):
        Incremental(**settings)
