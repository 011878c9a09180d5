"""What the experiments record, where a wrong order of arguments would not be seen by their claims at size tiny."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from saddles import networks
from saddles.core.experiment import Context, find
from saddles.errors import SaddlesError
from saddles.networks.experiments.closure import _mixed
from saddles.networks.experiments.narrow_head import LONG, _outside


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


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_a_narrow_product_learns_what_exceeds_its_smallest_singular_value(ratio):
    """The flow of dense factors by SciPy; and the second derivative where the direction is wholly outside."""
    row = find("networks/narrow-head")
    run = row.run(row.settings("tiny", {"ratios": (ratio, 3.0)}), Context(seed=4, size="tiny"))
    seed, dim, width = int(run["seed"][0]), run.attrs["dim"], run.attrs["width"]
    unit = np.eye(dim)
    first, second = networks.Perceptron(width, 1 / dim).start(networks.Regression(unit, unit, unit, unit), seed)
    smallest = np.linalg.svd(second @ first, compute_uv=False)[width - 1]
    assert float(run["threshold"][0]) == pytest.approx(smallest, rel=1e-12)
    draw = np.random.default_rng([seed, 37])
    left, right = (_outside(factor, draw) for factor in (second, first.T))
    target = second @ first + ratio * smallest * np.outer(left, right)

    def field(t, state):
        inner, outer = state[: first.size].reshape(first.shape), state[first.size :].reshape(second.shape)
        rest = target - outer @ inner
        return np.concatenate([(outer.T @ rest).ravel(), (rest @ inner.T).ravel()])

    start = np.concatenate([first.ravel(), second.ravel()])
    end = solve_ivp(field, (0, LONG / smallest), start, method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    change = end[first.size :].reshape(second.shape) @ end[: first.size].reshape(first.shape) - second @ first
    learned = left @ change @ right / (ratio * smallest)
    assert float(run["learned"][-1, 0, 0]) == pytest.approx(learned, abs=1e-5)
    assert (learned > 0.5) == (ratio > 1)
    push = -ratio * smallest * np.eye(width)
    lowest = np.linalg.eigvalsh(np.block([[first @ first.T, push], [push, second.T @ second]]))[0]
    assert (lowest < 0) == (ratio > 1)


def test_a_head_as_wide_as_its_dimension_is_not_narrow():
    row = find("networks/narrow-head")
    with pytest.raises(SaddlesError, match="`width` must be at least 1 and less than `dim`, 12; got 12"):
        row.run(row.settings("tiny", {"width": 12}), Context(seed=0, size="tiny"))
