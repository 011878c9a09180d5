"""Sums and parts of fine-tunes, and the law of second order that they are held against."""

import numpy as np
import pytest
import torch
from torch import nn

from saddles import networks
from saddles.networks.experiments.fine_tune import off
from saddles.networks.tunes import CHANGED, Tunes


class Square(nn.Module):
    """Of second order in its parameter, exactly: f = x w + x² w²."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))

    def forward(self, x):
        return x * self.w + (x * self.w) ** 2


def test_half_a_change_of_second_order_misses_half_of_its_effect_by_half_of_e():
    model, batch = Square(), torch.linspace(0.1, 1, 7, dtype=torch.float64)[:, None]
    tunes = Tunes(model, {"w": torch.tensor([0.3], dtype=torch.float64)}, {})
    end = {"w": torch.tensor([1.1], dtype=torch.float64)}
    half = tunes.sum_of([end], 0.5)
    assert half["w"].item() == pytest.approx(0.7)
    e = networks.linearity(model, tunes.start, end, batch)
    assert tunes.missed(end, half, batch) == pytest.approx(e / 2, rel=1e-12)
    joint = tunes.sum_of([end, {"w": torch.tensor([0.2], dtype=torch.float64)}])
    assert joint["w"].item() == pytest.approx(1.0)
    assert tunes.size(joint) == pytest.approx(0.7)


def test_only_changes_of_small_e_are_judged():
    seen, e = np.array([0.1, 0.2, 9.0]), np.array([0.2, 0.2, 0.8])
    assert off(seen, e) == pytest.approx(np.log(2) / 2)
    assert np.isnan(off(seen, e + 1))


def test_domains_keep_every_image():
    pictures = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 2)).astype(np.uint8)
    for change in CHANGED.values():
        changed = change(pictures)
        assert changed.dtype == np.uint8
        assert not np.array_equal(changed, pictures)
        np.testing.assert_array_equal(change(changed), pictures)
