"""Claims judged on made-up trajectories: each can fail."""

import numpy as np
import pytest
import xarray as xr

from saddles import simulate
from saddles.concepts import MLP, SGD, Identity
from saddles.concepts.experiments import depth, figure_5
from saddles.concepts.experiments.orders import order_claims
from saddles.concepts.experiments.searches import search_claims
from saddles.core.experiment import Context
from saddles.core.trajectory import make_trajectory


def _pair(rates, strengths):
    times = np.linspace(0, 30, 601)
    one, other = (1 - np.exp(-np.outer(times, row)) for row in (rates, rates[::-1]))
    output = np.stack([one, other], axis=1)[:, :, None, :] * np.array([1.0, 2.0])
    return make_trajectory(
        {
            "output": (("time", "setting", "seed", "coordinate"), output),
            "target": (("setting", "seed", "coordinate"), np.array([[[1.0, 2.0]]] * 2)),
            "strength": (("setting", "seed", "coordinate"), np.array([[strengths], [strengths[::-1]]])),
        },
        times,
        unit="gradient time",
        coords={"varied": ("setting", ["signal"] * 2), "setting": ["one", "other way"]},
    )


def test_the_order_claim_fails_on_the_wrong_order():
    right = order_claims(_pair([0.5, 2.0], [0.5, 2.0]), "laptop", "Figure 2a", one_layer=False)
    wrong = order_claims(_pair([2.0, 0.5], [0.5, 2.0]), "laptop", "Figure 2a", one_layer=False)
    assert right[0].verdict == "holds"
    assert right[0].null == pytest.approx(4.0, rel=0.05)
    assert wrong[0].verdict == "fails"


def test_a_concept_that_is_not_learned_counts_with_the_end_of_the_run():
    """The null is then a number too: at least the end over the time of the other."""
    told, tail = order_claims(_pair([0.01, 2.0], [0.01, 2.0]), "laptop", "Figure 12", one_layer=False)
    assert told.verdict == "holds"
    assert tail.verdict == "not_applicable"
    assert tail.reason == "the run ends at time 30, before 10/a = 1e+03"
    assert told.null == pytest.approx(30 / (np.log(10) / 2), rel=0.01)
    assert told.value == pytest.approx(np.log(10) / 2 / 30, rel=0.01)
    neither = order_claims(_pair([0.01, 0.02], [0.01, 0.02]), "laptop", "Figure 12", one_layer=False)[0]
    assert neither.verdict == "fails"


def test_a_search_without_a_find_fails():
    empty = make_trajectory(
        {
            "fraction": (("draw", "power", "prominence"), np.zeros((3, 2, 2))),
            "aligned": (("power", "prominence"), np.zeros((2, 2))),
        },
        [0.0],
        unit="end",
        coords={"power": [1, 2], "prominence": [0.01, 0.001]},
    )
    empty.attrs |= {"wanted": 3, "starts": 100}
    assert [claim.verdict for claim in search_claims(empty, "laptop", "Figure 8")] == ["fails"]


def test_stages_of_three_concepts_are_told_apart():
    """Weakest first: growth at 9, 5, 1; minor entries of the strongest shrink at 2 and 3, those of the next at 6."""
    nan = np.nan
    right = np.array([[9, nan, nan, nan], [6, 5, nan, nan], [2, 3, 1, nan], [nan] * 4])
    early, reversed_order = right.copy(), right.copy()
    early[2, 0] = 0.5  # shrinks before its major entry grows
    reversed_order[0, 0], reversed_order[2, 2] = 1, 9
    tables = np.stack([right, early, reversed_order, right])[None]
    assert figure_5._stages(np.array([3]), tables) == ([0.75], [0.5])


def _risen(shares):
    """Runs of which given shares, (layers, dim), have transient memorisation."""
    depth = np.arange(48) < 48 * np.asarray(shares)[:, :, None]
    axes = {"layers": [1, 2, 3, 4], "dim": [3, 12]}
    return xr.Dataset({"depth": (("layers", "dim", "seed"), 0.02 * depth)}, axes)


def test_depth_and_dimension_are_told_apart():
    verdicts = [claim.verdict for claim in depth.claims(_risen([[0, 0], [0.1, 0], [0.5, 0.1], [0.5, 0.1]]), "laptop")]
    assert verdicts == ["holds", "holds"]
    shallow = depth.claims(_risen([[0.5, 0], [0.5, 0], [0.5, 0.1], [0.5, 0.1]]), "laptop")
    assert [claim.verdict for claim in shallow] == ["fails", "holds"]
    wide = depth.claims(_risen([[0, 0.5], [0, 0.5], [0.5, 0.5], [0.5, 0.5]]), "laptop")
    assert [claim.verdict for claim in wide] == ["holds", "fails"]
    assert all(0.05 < (claim.null or 0.0) < 0.2 for claim in [*shallow[:1], *wide])


def test_depth_trains_what_it_says():
    settings = depth.Settings(layers=(1, 2), dims=(3,), samples=40, batch=40, epochs=3, seeds=2)
    run = depth.run(settings, Context(seed=1, size="tiny"))
    assert dict(run.sizes) == {"time": 2, "layers": 2, "dim": 1, "seed": 2}
    task = Identity((1.0, 2.0), 0.05, dim=3, samples=40, seed=int(run["seed"][1]))
    alone = simulate(MLP((3,)), task, SGD(0.03, 40, 3, "sum", 6), seed=int(run["seed"][1]))
    np.testing.assert_allclose(run["test_loss"].values[:, 1, 0, 1], alone["test_loss"], rtol=1e-9)
