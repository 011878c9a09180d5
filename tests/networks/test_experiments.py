"""What the experiments record, where a wrong order of arguments would not be seen by their claims at size tiny."""

import numpy as np

from saddles.core.experiment import Context, find
from saddles.networks.experiments.closure import _mixed


def test_heads_are_measured_as_they_are_now():
    """Balance is of the present weights: under Adam it moves. (With start and end exchanged it would stay.)"""
    row = find("networks/closure")
    run = row.run(row.settings("tiny", {"adam_rate": 0.02}), Context(seed=3, size="tiny"))
    balance = run["balance"].sel(optimiser="adam", product="KQ").values
    assert (np.abs(balance[-1] - balance[0]) > 1e-4).all()
    change = run["factor_change"].sel(optimiser="adam").values
    assert (change[-1] > change[0]).all()


def test_entries_in_random_order_are_the_same_entries():
    start = {"a": np.arange(12.0).reshape(3, 4)}
    mixed = _mixed(start, {"a": start["a"] + np.arange(12.0).reshape(3, 4)}, 0)["a"] - start["a"]
    assert sorted(mixed.ravel()) == list(np.arange(12.0))
    assert not np.array_equal(mixed.ravel(), np.arange(12.0))
