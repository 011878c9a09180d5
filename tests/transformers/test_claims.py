"""The claims at size laptop over seeds that nobody looked at, where the data are at hand: minutes, so marked slow."""

import numpy as np
import pytest
import xarray as xr

from saddles.core.data import find_data
from saddles.core.experiment import Context
from saddles.transformers.experiments import EXPERIMENTS
from saddles.transformers.experiments.verdicts import spectra


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


@pytest.mark.parametrize(("steeper", "above"), [(2.0, False), (0.5, True)])
def test_a_flatter_spectrum_of_the_change_is_seen(steeper, above):
    first = np.exp(-np.arange(8) / 4)
    first[6:] = 1e-9  # beyond the head's dimension
    axes = ("scale", "layer", "head", "product", "index")
    begun = xr.DataArray(np.broadcast_to(first, (1, 2, 3, 2, 8)), dims=axes, coords={"product": ["KQ", "VO"]})
    ends = xr.DataArray(np.broadcast_to(np.exp(-steeper * np.arange(8) / 4), (2, 1, 2, 3, 2, 8)),
                        dims=("instant", *axes), coords={"product": ["KQ", "VO"]})  # fmt: skip
    found = spectra(xr.Dataset({"initial_singular_value": begun, "singular_value": ends}), "VO")
    assert (found["gap"] > 0) is above
    assert found["null"] > 0.1
