"""Every experiment at its smallest size: it runs, judges, draws, and its result survives storage."""

import numpy as np
import pytest

from saddles.core.experiment import Context
from saddles.core.store import load, save
from saddles.diagonal.experiments import EXPERIMENTS
from saddles.diagonal.experiments.full_head import largest_rise, overlaps

FAST = ("figure-2", "linear", "figure-11", "full-head")


def _run(row, tmp_path):
    trajectory = row.run(row.settings("tiny"), Context(seed=0, size="tiny"))
    assert trajectory.attrs["status"] == "finished"
    claims = row.claims(trajectory, "laptop")
    stored = load(save(trajectory, tmp_path / "run.zarr"))
    again = row.claims(stored, "laptop")
    assert [c.value for c in again] == pytest.approx([c.value for c in claims], nan_ok=True)
    row.figure(stored).savefig(tmp_path / "figure.png")
    return trajectory, claims


@pytest.mark.parametrize(
    "row", [row for row in EXPERIMENTS if row.name.partition("/")[2] in FAST], ids=lambda r: r.name
)
def test_tiny_runs_hold_their_claims(row, tmp_path):
    _, claims = _run(row, tmp_path)
    assert [c.claim for c in claims if c.verdict == "fails"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [row for row in EXPERIMENTS if row.name.partition("/")[2] not in FAST], ids=lambda r: r.name
)
def test_other_tiny_runs_finish(row, tmp_path):
    _, claims = _run(row, tmp_path)
    assert claims


def test_one_scale_is_drawn_and_its_slopes_do_not_apply():
    for row in EXPERIMENTS:
        if row.name in ("diagonal/figure-2", "diagonal/figure-8-9"):
            alone = {"sgd": (4,), "deep": (32,), "order_stages": 2, "seeds": 1} if row.name.endswith("2") else {}
            settings = row.settings("tiny", {"decades": (8,), "stages": 2, "points": 21, **alone})
            claims = row.claims(row.run(settings, Context(seed=0, size="tiny")), "laptop")
            slopes = [claim for claim in claims if "slope" in claim.claim]
            assert {claim.reason[:21] for claim in slopes} == {"it compares 2 or more"}
            assert len(slopes) < len(claims)


def test_sgd_from_large_starts_has_fewer_steps_than_the_curves_have_instants():
    row = next(one for one in EXPERIMENTS if one.name == "diagonal/figure-2")
    short = {"sgd": (1,), "decades": (8,), "stages": 1, "deep": (32,), "order_stages": 1, "seeds": 1}
    losses = row.run(row.settings("tiny", short), Context(seed=0, size="tiny"))["sgd_loss"]
    assert np.isfinite(losses).all()
    assert len(np.unique(losses)) < losses.sizes["time"]


def test_sizes_are_complete():
    assert {row.name for row in EXPERIMENTS} == {
        f"diagonal/{name}"
        for name in ("figure-2", "figure-8-9", "figure-10", "figure-11", "full-head", "transformer", "linear")
    }
    for row in EXPERIMENTS:
        assert {"tiny", "laptop", "paper"} <= set(row.sizes)
        assert np.all([size.seconds > 0 for size in row.sizes.values()])


def _rising(*waits: float) -> np.ndarray:
    """Singular values, largest first, that rise to 1, ½, ⅓, … at these times; (time, mode)."""
    clock = np.linspace(0, 100, 401)[:, None]
    return 1 / (1 + np.exp(np.array(waits) - clock)) / np.arange(1, len(waits) + 1)


def test_overlap_of_singular_values():
    apart = overlaps(_rising(10, 30, 30, 200))
    np.testing.assert_allclose(apart, [np.exp(-20), 0.5, np.nan], rtol=0.2)  # the last has not risen


def test_a_pair_that_is_new_at_a_smaller_scale_is_no_rise_of_the_overlap():
    before, after = overlaps(_rising(10, 20, 200)), overlaps(_rising(10, 40, 45))
    assert np.nanmax(after) > np.nanmax(before)
    assert largest_rise(np.stack([before, after]), 3) < 0
    assert largest_rise(np.stack([after, before]), 3) > 0
    vanished = np.array([[1e-16], [3e-16], [1e-13]])  # rounding, and more than that, of 3 × 3 matrices
    assert largest_rise(vanished[:2], 3) == 0 < largest_rise(vanished[1:], 3)
    assert np.isnan(largest_rise(np.array([[np.nan], [0.1]]), 3))
