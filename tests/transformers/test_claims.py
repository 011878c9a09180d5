"""The claims at size laptop over seeds that nobody looked at, where the data are at hand: minutes, so marked slow."""

import pytest

from saddles.core.data import find_data
from saddles.core.experiment import Context
from saddles.transformers.experiments import EXPERIMENTS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20261115, 777001])
@pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row.name)
def test_claims_hold_on_fresh_seeds(row, seed):
    missing = [name for name in row.data(row.settings("laptop")) if find_data()[name] is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: set SADDLES_DATA to a folder of data sets that has it")
    trajectory = row.run(row.settings("laptop"), Context(seed=seed, size="laptop"))
    failed = [claim for claim in row.claims(trajectory, "laptop") if claim.verdict == "fails"]
    assert not failed
