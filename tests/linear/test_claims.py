"""The claims of the linear lab over seeds that nobody looked at: minutes, so marked slow."""

import pytest

from saddles.core.experiment import Context
from saddles.linear.experiments import EXPERIMENTS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20261115, 777001])
@pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row.name)
def test_claims_hold_on_fresh_seeds(row, seed):
    trajectory = row.run(row.settings("laptop"), Context(seed=seed, size="laptop"))
    failed = [claim for claim in row.claims(trajectory, "laptop") if claim.verdict == "fails"]
    assert not failed
