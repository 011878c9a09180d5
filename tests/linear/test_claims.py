"""The claims of the linear lab: how they are measured, and, in minutes, over seeds that nobody looked at."""

import numpy as np
import pytest
import xarray as xr

from saddles.core.experiment import Context
from saddles.linear.experiments import EXPERIMENTS, stages, stuck
from saddles.linear.experiments.scaling import network

FOUND = (
    "as printed",
    "outside the theory's region",
    "within a constant of the theorem's bound",
)
"""Sentences of the paper that fail; docs/deviations.md says so."""


def test_milestones_are_where_the_levels_are_crossed():
    dims, clock = (40, 80), np.linspace(0, 1, 201)
    levels = np.exp(np.array([10.0, 9.0, 8.0, 1.0]) * clock[:, None])[:, None, None, :] * np.ones((1, 2, 1, 1)) / 10
    run = xr.Dataset(
        {"level": (("time", "dim", "seed", "mode"), levels)}, coords={"time": clock, "dim": list(dims)},
        attrs={"spectrum": [1.0, 0.8, 0.6]},
    )  # fmt: skip
    found = stages.milestones(run)
    for i, dim in enumerate(dims):
        model = network(dim, stages.GAMMA_W, stages.GAMMA_VARIANCE)
        ends = (
            np.log(10),
            np.log(10 * (float(np.asarray(model.width)) / dim) ** 0.25),
            np.log(10 * 0.3 * dim / model.threshold),
        )
        rates = 10.0, 10.0, 8.0
        expected = [end / rate for end, rate in zip(ends, rates, strict=True)]
        assert [float(found[name][i, 0]) for name in ("T1", "T2", "T3")] == pytest.approx(expected, abs=2e-3)


def test_modes_below_zero_get_stuck_and_no_other():
    run = stuck.run(stuck.Settings(rank=4, starts=2, instants=5), Context(seed=5, size="tiny"))
    end, up = run["share"].isel(time=-1).values, run["start"].values > 0
    assert 0 < up.sum() < up.size
    np.testing.assert_allclose(end, up, atol=0.01)
    np.testing.assert_allclose(run["mixed_share"].isel(time=-1), 1, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20261115, 777001])
@pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row.name)
def test_claims_hold_on_fresh_seeds(row, seed):
    trajectory = row.run(row.settings("laptop"), Context(seed=seed, size="laptop"))
    failed = [claim.claim for claim in row.claims(trajectory, "laptop") if claim.verdict == "fails"]
    assert [claim for claim in failed if not any(words in claim for words in FOUND)] == []
