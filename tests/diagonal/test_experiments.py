"""Every experiment at its smallest size: it runs, judges, draws, and its result survives storage."""

import numpy as np
import pytest

from saddles.core.experiment import Context
from saddles.core.store import load, save
from saddles.diagonal.experiments import EXPERIMENTS

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


def test_sizes_are_complete():
    assert {row.name for row in EXPERIMENTS} == {
        f"diagonal/{name}"
        for name in ("figure-2", "figure-8-9", "figure-10", "figure-11", "full-head", "transformer", "linear")
    }
    for row in EXPERIMENTS:
        assert {"tiny", "laptop", "paper"} <= set(row.sizes)
        assert np.all([size.seconds > 0 for size in row.sizes.values()])
