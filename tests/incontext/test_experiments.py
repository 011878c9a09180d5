"""Claims on made trajectories: each can fail."""

import numpy as np
import pytest
import xarray as xr

from saddles import incontext
from saddles.core.run import run_experiment
from saddles.errors import SaddlesError
from saddles.incontext.experiments import order, phase_diagram, rank


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("merged-vs-separate", {"ratio": 0.1}, "`ratio` must be between 0.6 and 1.0; got 0.1"),
        ("order", {"dim": 1}, "`dim` must be between 2 and"),
        ("conjecture", {"dim": 1}, "`dim` must be between 2 and"),
        ("modular-addition", {"modulus": 2}, "`modulus` must be between 3 and"),
        ("modular-addition", {"modulus": 8}, "`modulus` must be an odd number; got 8"),
        ("rank", {"starts": []}, "`starts` must be 1 or more different numbers"),
        ("softmax", {"starts": (0.1, 0.1)}, "`starts` must be 1 or more different numbers"),
        ("softmax", {"eigenvalues": (1.0,)}, "`eigenvalues` must be 2 or more different numbers"),
        ("lazy-active", {"thresholds": ()}, "`thresholds` must be 1 or more different numbers"),
        ("lazy-active", {"widths": ()}, "`widths` must be 1 or more different numbers"),
        ("phase-diagram", {"widths": ()}, "`widths` must be 1 or more different numbers"),
        ("phase-diagram", {"variances": (1e-3,)}, "`variances` must be 2 or more different numbers"),
        ("finite-prompts", {"batches": ()}, "`batches` must be 1 or more different numbers"),
    ],
)
def test_settings_that_leave_nothing_to_compare_are_refused(tmp_path, name, changes, words):
    with pytest.raises(SaddlesError, match=words):
        run_experiment(f"incontext/{name}", size="tiny", changes=changes, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "changes", "compared"),
    [
        ("rank", {"starts": [1e-2]}, 2),
        ("softmax", {"starts": (0.2,)}, 1),
        ("lazy-active", {"widths": (1e3,), "dim": 2, "prompts": 100}, 1),
        ("phase-diagram", {"widths": (1e3,)}, 2),
        ("finite-prompts", {"batches": (16,), "steps": 50}, 1),
    ],
)
def test_one_of_a_kind_is_drawn_and_only_claims_that_compare_several_do_not_apply(tmp_path, name, changes, compared):
    run = run_experiment(f"incontext/{name}", size="tiny", changes=changes, out=tmp_path / "run")
    assert sum("it compares 2 or more" in claim.reason for claim in run.claims) == compared < len(run.claims)


def test_a_direction_is_learned_when_half_of_it_is_there():
    task = incontext.Regression([1.0, 0.5], 31)
    best = np.diag(task.target)
    clock = np.linspace(0.0, 10.0, 101)
    strength = np.stack([best[0] * clock / 10, 0 * clock], axis=1)
    when = order.learned(strength, clock, task)
    assert when[0] == pytest.approx(5.0)
    assert np.isnan(when[1])
    assert order.ordered(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, np.nan]]))[:, 0].tolist() == [True, False, True]


def test_the_border_of_a_power_law_is_interpolated_exactly():
    """Errors c/(σ²w)² cross the level at σ²w = √(c/level), whatever the width, so that the slope is −1."""
    widths, variances = np.logspace(2, 6, 5), np.logspace(-9, 1, 11)
    borders = np.array([phase_diagram.border(0.3 / (variances * width) ** 2, variances) for width in widths])
    np.testing.assert_allclose(borders * widths, np.sqrt(0.3 / phase_diagram.LEVEL), rtol=1e-12)
    assert phase_diagram.slope(borders, widths) == pytest.approx(-1, abs=1e-12)
    assert np.isnan(phase_diagram.border(np.full(11, 0.05), variances)), "all are lazy"
    assert np.isnan(phase_diagram.border(np.full(11, 0.9), variances)), "none is"
    assert np.isnan(phase_diagram.slope(borders[:1], widths[:1]))


def _orders(when, told):
    rows = len(when)
    return xr.Dataset(
        {
            "seen_time": (("time", "start", "direction"), np.stack([when, when], axis=1)),
            "predicted_time": (("time", "direction"), told),
            "random_place": (("time", "direction"), np.tile([1, 0], (rows, 1))),
            "closest": (("time",), np.full(rows, 0.7)),
        }
    )


def test_the_order_claims_fail_on_the_wrong_order_and_on_wrong_times():
    when = np.array([[1.0, 4.0], [2.0, 9.0], [3.0, 20.0]])
    assert [c.verdict for c in order.claims(_orders(when, 1.01 * when), "laptop")] == ["holds"] * 3
    late = [c.verdict for c in order.claims(_orders(when, 1.05 * when), "laptop")]
    wrong = [c.verdict for c in order.claims(_orders(when[:, ::-1], when[:, ::-1]), "laptop")]
    assert late == ["holds", "holds", "fails"]
    assert wrong[:2] == ["fails", "fails"]


def _waits(inner, outer, stop):
    starts = np.array([1e-3, 1e-4, 1e-5])
    first = np.zeros(3)
    when = np.stack([first, inner(starts), inner(starts) + outer(starts)], axis=-1)[:, None]
    return xr.Dataset(
        {
            "seen_time": (("start", "seed", "direction"), when),
            "slope": (("seed",), [0.5]),
            "plain_slope": (("seed",), [1.0]),
            "stop": (("seed",), [stop]),
            "plateau": (("seed", "level"), [[1.0, 0.6, 0.3, 0.1]]),
        },
        coords={"start": starts},
    )


def test_the_laws_of_waiting_fail_where_they_are_broken():
    def verdicts(*parts):
        return [claim.verdict for claim in rank.claims(_waits(*parts), "laptop")]

    def logs(s):
        return 2 + 0.5 * np.log(1 / s)

    def powers(s):
        return 3 / s

    assert verdicts(logs, powers, 0.3) == ["holds"] * 3
    assert verdicts(lambda s: 2 + 0.55 * np.log(1 / s), powers, 0.3)[0] == "fails"
    assert verdicts(logs, lambda s: 3 / s**0.9, 0.3)[1] == "fails"
    assert verdicts(logs, powers, 0.35)[2] == "fails"
