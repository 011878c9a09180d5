import numpy as np
import pytest

from saddles import SaddlesError, simulate
from saddles.concepts import MLP, GradientFlow, Identity, SymmetricTwoLayer
from saddles.concepts.assumptions import check_assumptions, check_weights
from saddles.concepts.ensemble import flow_many
from saddles.concepts.failures import failure
from saddles.concepts.lemmas import least_constants, lemma_curves, lemma_margins
from saddles.concepts.schedule import events, loss_accounts, predicted_events
from saddles.core.status import FINISHED


def _times(table):
    columns = (table[name].values for name in ("kind", "row", "column", "at"))
    return {(str(kind), int(row), int(column)): float(at) for kind, row, column, at in zip(*columns, strict=True)}


@pytest.fixture(scope="module")
def run():
    task = Identity((0.7, 1.7, 3.0), 0.05)
    model = SymmetricTwoLayer.uniform(3, 3, 0.2, seed=1)
    return model, task, simulate(model, task, GradientFlow(), times=np.linspace(0, 20, 1001))


def test_many_flows_are_the_single_ones():
    draw = np.random.default_rng(0)
    factors = draw.normal(size=(4, 3, 2)) * 0.2
    tasks = [Identity(draw.uniform(0.5, 2, 3), 0.2) for _ in range(4)]
    times = np.linspace(0, 5, 11)
    found, status = flow_many(
        factors, np.stack([t.strengths for t in tasks]), np.stack([t.target for t in tasks]), times,
        observe=("output", "major", "jacobian"), rtol=1e-9,
    )  # fmt: skip
    assert status == FINISHED
    for k, task in enumerate(tasks):
        alone = simulate(SymmetricTwoLayer(factor=factors[k]), task, GradientFlow(), times=times)
        np.testing.assert_allclose(found["jacobian"][:, k], alone["jacobian"], atol=1e-7)
        np.testing.assert_allclose(found["output"][:, k], alone["output"], atol=1e-7)
        np.testing.assert_allclose(found["major"][:, k], np.diagonal(alone["jacobian"], axis1=1, axis2=2), atol=1e-7)
    with pytest.raises(SaddlesError, match="`observe` must be names out of output"):
        flow_many(factors, 1.0, 1.0, times, observe=("weights",))


def test_failure_within_a_horizon_is_seen_in_the_run(run):
    model, task, measured = run
    said = failure(model, task, horizon=5.0)
    half = np.diagonal(measured["jacobian"].sel(time=5.0).values) < 0.5
    assert said.lost == tuple(1 + np.flatnonzero(half)) == (1,)
    assert said.never == ()
    assert "after the horizon 5" in said.reason
    assert not failure(model, task).fails
    assert "in the end" in failure(model, task).reason
    late = failure(model, task, horizon=20.0)
    assert not late.fails
    assert measured["jacobian"][-1, 0, 0] > 0.5


def test_a_rank_deficient_start_fails_for_ever():
    task = Identity((0.7, 1.7, 3.0), 0.05)
    model = SymmetricTwoLayer.uniform(3, 2, 0.2, seed=1)
    said = failure(model, task)
    assert len(said.never) == 1
    assert "rank-deficient" in said.reason
    end = simulate(model, task, GradientFlow(), times=np.array([0.0, 60.0]))["jacobian"][-1].values
    assert tuple(1 + np.flatnonzero(np.diagonal(end) < 0.5)) == said.never


def test_an_infinite_horizon_is_none():
    model, task = SymmetricTwoLayer.uniform(2, 1, 0.2, seed=1), Identity((1.0, 2.0), 0.05)
    assert failure(model, task, horizon=np.inf) == failure(model, task)
    assert failure(model, task).never == (1,)


def test_the_pivot_law_of_a_start_whose_square_underflows():
    """U(0) 1e190 times as small has pivots 1e380 times as small and full rank: t_p is later by 380 log(10)/(4 a_p)."""
    task = Identity((1.0, 2.0), 0.05)
    small, tiny = (failure(SymmetricTwoLayer(scale=scale), task, seed=3) for scale in (1e-10, 1e-200))
    assert tiny.never == ()
    later = np.subtract(tiny.times, small.times)
    np.testing.assert_allclose(later, 380 * np.log(10) / (4 * task.strengths), rtol=1e-9)


def test_failure_refuses_what_it_does_not_know():
    with pytest.raises(SaddlesError, match="SymmetricTwoLayer"):
        failure(MLP(), Identity((1.0,), 0.1))
    with pytest.raises(SaddlesError, match="positive time"):
        failure(SymmetricTwoLayer.uniform(1, 1, 0.1), Identity((1.0,), 0.1), horizon=-1.0)


def test_predicted_events_come_in_the_measured_order_and_time(run):
    model, task, measured = run
    said, seen = predicted_events(model, task), events(measured)
    predicted, found = _times(said), _times(seen)
    assert set(predicted) == set(found)
    for event, when in found.items():
        assert predicted[event] == pytest.approx(when, rel=0.15, abs=0.05), event
    np.testing.assert_allclose(said["at_paper"], 2 * said["at"])


def test_ties_are_never_suppressed_by_each_other():
    table = predicted_events(SymmetricTwoLayer.uniform(2, 2, 0.2), Identity((1.0, 1.0), 0.1))
    assert np.isinf(table["at"].values[table["kind"].values == "suppression"]).all()


def test_the_test_loss_is_accounted_for(run):
    _, _, measured = run
    parts = loss_accounts(measured)
    total = parts["major_growth"] + parts["minor_growth"] + parts["suppressed"]
    np.testing.assert_allclose(total, measured["test_loss"] - measured["test_loss"][0], atol=1e-12)


def test_assumptions_hold_only_at_vanishing_scales():
    a = np.array([1.0, 18.0])
    shape = np.array([[1.5, 1.0], [1.0, 1.5]])
    assert check_weights(1e-66 * shape, a).broken == ()
    assert check_weights(1e-55 * shape, a).broken == ("D.5",)
    assert check_weights(1e-66 * shape, a, corrected=True).broken == ("D.5",)
    assert check_weights(1e-300 * shape, a, corrected=True).broken == ("D.5",)
    for check in check_weights(1e-66 * shape, a).checks:
        assert check.value >= -1e-12


def test_realistic_starts_break_named_assumptions(run):
    model, task, _ = run
    found = check_assumptions(model, task, rate=0.1)
    assert {"D.4", "D.5"} <= set(found.broken)
    assert "D.5 is broken" in found.reason
    flat = check_assumptions(model, Identity((1.0, 1.5, 2.2), 0.05))
    assert "not positive" in flat.reason
    wide = check_assumptions(SymmetricTwoLayer.uniform(3, 3, 0.2), Identity((1.0, 2.0), 0.1, dim=3))
    assert "d = s" in wide.reason


def test_lemmas_hold_where_they_should_and_d_3_has_its_counterexample():
    task = Identity((0.0, 0.0), variance=(18.0, 1.0))
    times = np.linspace(0, 45, 1501)
    good = SymmetricTwoLayer(weights=1e-66 * np.array([[1.5, 1.0], [1.0, 1.5]]))
    bad = SymmetricTwoLayer(weights=1e-66 * np.ones((2, 2)))
    for model, broken in ((good, []), (bad, ["D.3"])):
        found = check_assumptions(model, task)
        assert found.broken == ()
        measured = simulate(model, task, GradientFlow(), times=times)
        margins = lemma_margins(measured, lemma_curves(measured, found.constants))
        assert [str(n) for n in margins["lemma"].values[margins.values < -1e-9]] == broken


def test_least_constants_are_tight(run):
    _, _, measured = run
    found = least_constants(measured)
    assert found["D.5 top"] <= 1 + 1e-8
    assert found["D.7 ratio"] == pytest.approx(1.0)
    assert np.isinf(found["D.3 κ"])
    size = np.abs(measured["jacobian"].values)
    off = ~np.eye(3, dtype=bool)
    assert found["D.8 P"] * size[0].max() == pytest.approx(size[:, off].max())
