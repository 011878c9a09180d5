"""Every experiment runs at its smallest, is judged, drawn and stored; a few are judged on made-up trajectories."""

import numpy as np
import pytest

from saddles.concepts.experiments import EXPERIMENTS
from saddles.concepts.experiments.orders import order_claims
from saddles.concepts.experiments.searches import search_claims
from saddles.core.experiment import Context, find
from saddles.core.trajectory import load, make_trajectory, save

SMALLER = {"seeds": 2, "seeds_low": 4, "starts": 20, "instances": 8, "realistic": 2, "instants": 120}


@pytest.mark.parametrize("row", EXPERIMENTS, ids=lambda row: row.name)
def test_experiments_run_are_judged_and_drawn(row, tmp_path):
    assert find(row.name) is row
    assert {"tiny", "laptop", "paper"} <= set(row.sizes)
    changes = {key: value for key, value in SMALLER.items() if key in row.sizes["tiny"].settings}
    settings, module = row.settings("tiny", changes), row.load()
    trajectory = module.run(settings, Context(seed=3, size="tiny"))
    trajectory.attrs["experiment"] = row.name
    assert next(iter(trajectory.sizes)) == "time" or "time" in trajectory.sizes
    found = module.claims(trajectory, "laptop")
    assert found
    assert not any(np.isnan(claim.value) for claim in found)
    assert len(module.figure(trajectory).axes) >= 1
    back = load(save(trajectory, tmp_path / "trajectory.zarr"))
    assert [claim.verdict for claim in module.claims(back, "laptop")] == [claim.verdict for claim in found]


def _pair(rates, strengths):
    times = np.linspace(0, 30, 601)
    output = (1 - np.exp(-np.outer(times, rates)))[:, None, None, :] * np.array([1.0, 2.0])
    return make_trajectory(
        {
            "output": (("time", "setting", "seed", "coordinate"), output),
            "target": (("setting", "seed", "coordinate"), np.array([[[1.0, 2.0]]])),
            "strength": (("setting", "seed", "coordinate"), np.array([[strengths]])),
        },
        times,
        unit="gradient time",
        coords={"varied": ("setting", ["signal"]), "setting": ["one"]},
    )


def test_the_order_claim_fails_on_the_wrong_order():
    right = order_claims(_pair([0.5, 2.0], [0.5, 2.0]), "laptop", "Figure 2a", one_layer=False)
    wrong = order_claims(_pair([2.0, 0.5], [0.5, 2.0]), "laptop", "Figure 2a", one_layer=False)
    assert [claim.verdict for claim in right] == ["holds", "holds"]
    assert wrong[0].verdict == "fails"


def test_a_search_without_a_find_fails():
    empty = make_trajectory(
        {"fraction": (("draw", "power", "prominence"), np.zeros((3, 2, 2)))},
        [0.0],
        unit="end",
        coords={"power": [1, 2], "prominence": [0.01, 0.001]},
    )
    empty.attrs |= {"wanted": 3, "starts": 100}
    assert [claim.verdict for claim in search_claims(empty, "laptop", "Figure 8")] == ["fails"]
