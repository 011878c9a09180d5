"""The claims at size laptop over seeds that nobody looked at, where the data are at hand: minutes, so marked slow."""

import itertools
from functools import partial

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

from saddles.core.claim import check
from saddles.core.data import find_data
from saddles.core.experiment import Context
from saddles.transformers.experiments import EXPERIMENTS
from saddles.transformers.experiments.verdicts import (
    halfway,
    incremental_claims,
    rising,
    scales_in_random_order,
    spectra,
)


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
    assert bool((found["gap"] > 0).all()) is above
    assert found["null"] > 0.1


def test_halfway_is_when_a_value_stays_above_half_of_its_last():
    steps = np.array([1.0, 2.0, 4.0, 8.0])
    values = np.array([[1.0, 0.0, 6.0, 4.0], [2.0, 1.0, 1.0, 4.0], [3.0, 4.0, 2.0, 4.0], [4.0, 8.0, 4.0, 4.0]])
    np.testing.assert_allclose(halfway(values, steps), [2.0, 4.0, 4.0, 0.5])


def rises(when, seeds=None):
    """Singular values that jump from 0 to their last at given steps, (scale, index); the same of several seeds."""
    steps = np.arange(1, 101) * 100.0
    size = np.exp(-np.arange(np.shape(when)[1]))
    values = np.where(steps[:, None, None] >= np.asarray(when), size, 0.0)[:, :, None, None, None]
    values = np.broadcast_to(values, (*values.shape[:2], 2, 3, 2, values.shape[-1]))
    axes = ("instant", "scale", "layer", "head", "product", "index")
    scales = [1.0, 0.3, 0.1, 0.03, 0.01][: len(when)]
    coords = {"instant": steps, "product": ["KQ", "VO"], "scale": scales, "seed": np.arange(seeds or 1)}
    if seeds is None:
        return xr.Dataset({"singular_value": (axes, values)}, coords)
    whole = np.broadcast_to(values[:, :, None], (*values.shape[:2], seeds, *values.shape[2:]))
    return xr.Dataset(
        {"leading_singular_value": (("instant", "scale", "seed", "layer", "head", "product", "leading"), whole)}, coords
    )


IN_TURN = [[100, 200, 300, 400, 500], [100, 300, 500, 700, 900], [100, 400, 600, 800, 5000]]


def test_values_that_rise_one_after_another_are_told_from_those_that_do_not():
    in_turn = rises(IN_TURN)
    order, late = rising(in_turn, "VO")
    np.testing.assert_array_equal(order, 1.0)
    assert (np.diff(late) > 0).all()
    judge = partial(check, paper="p", where="w", size="gpu")
    assert [claim.verdict for claim in incremental_claims(in_turn, judge)] == ["holds"] * 2 + ["not_evidence"] * 2
    one_turned = rises([[100, 200, 300, 400, 500], [500, 400, 300, 200, 100]])
    np.testing.assert_array_equal(rising(one_turned, "KQ")[0], [[1.0, 0.0]])
    assert [claim.verdict for claim in incremental_claims(one_turned, judge)] == ["fails"] * 4


@pytest.mark.parametrize(("seeds", "verdict"), [(4, "not_evidence"), (5, "holds")])
def test_two_scales_in_the_right_order_are_evidence_from_five_seeds_on(seeds, verdict):
    """By chance four seeds are all right once in 16, five once in 32; 5 % is the limit."""
    judge = partial(check, paper="p", where="w", size="gpu")
    found = incremental_claims(rises(IN_TURN, seeds), judge)
    assert [claim.verdict for claim in found] == ["holds"] * 2 + [verdict] * 2
    assert {claim.seeds for claim in found} == {seeds}


def test_one_seed_whose_values_do_not_rise_in_order_is_seen():
    mixed = xr.concat([rises(IN_TURN, 1), rises([row[::-1] for row in IN_TURN], 1)], "seed")
    judge = partial(check, paper="p", where="w", size="gpu")
    found = incremental_claims(mixed, judge)
    assert [(claim.verdict, claim.value) for claim in found[:2]] == [("fails", 0.0)] * 2


@pytest.mark.parametrize(("seeds", "passes"), [(1, True), (2, True), (3, False)])
def test_five_scales_in_random_order_are_all_their_orders(seeds, passes):
    """The most that one in twenty of all combinations of the 120 orders reaches, and whether ρ = 1/2 is as easy."""
    rho = np.array([spearmanr(range(5), order)[0] for order in itertools.permutations(range(5))]).round(9)
    most = max(level for level in rho if (rho >= level).mean() ** seeds >= 0.05)
    axes = ("scale", "seed", "layer", "head")
    given = 1 + np.broadcast_to(np.arange(5.0).reshape(5, 1, 1, 1), (5, seeds, 2, 2))
    found, ratio = scales_in_random_order(xr.DataArray(given, dims=axes, coords={"scale": [0.01, 0.03, 0.1, 0.3, 1.0]}))
    assert found == pytest.approx(most)
    assert bool(found >= 0.5) is passes
    assert ratio < 1, "the ends alone are right half of the time"


def test_a_seed_that_diverged_counts_and_one_that_an_older_store_has_not_does_not():
    whole = rises(IN_TURN, 3)
    whole["leading_singular_value"] = whole["leading_singular_value"].where(whole["seed"] != 1)
    judge = partial(check, paper="p", where="w", size="gpu")
    older = rising(whole, "KQ")[0]
    assert older["seed"].values.tolist() == [0, 2]
    assert {claim.seeds for claim in incremental_claims(whole, judge)} == {2}
    loss = xr.DataArray(np.ones((2, 3, 3)), dims=("time", "scale", "seed"), coords={"seed": whole["seed"]})
    diverged = whole.assign(train_loss=loss.where((loss["seed"] != 1) | (xr.DataArray([0, 1], dims="time") == 0)))
    assert np.isnan(rising(diverged, "KQ")[0].sel(seed=1)).all()
    assert {(claim.verdict, claim.seeds) for claim in incremental_claims(diverged, judge)[:2]} == {("fails", 3)}
