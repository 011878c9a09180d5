"""Torch modules with buffers, numbers of 16 bits, recurrence and odd outputs, against dense Jacobians in float64."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from saddles import networks
from saddles.errors import SaddlesError


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.out = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.cells(x)[0][:, -1])


class Spectrum(nn.Module):
    """Squares, turned into complex numbers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)

    def forward(self, x):
        return torch.fft.fft(self.first(x) ** 2)


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)

    def forward(self, x):
        return self.first(x).argmax(1)


def _normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def _trained(model, batch, rate=0.1):
    """The model before and after a few steps in training mode."""
    before, model = copy.deepcopy(model), model.train()
    optimiser = torch.optim.SGD(model.parameters(), rate)
    for _ in range(5):
        optimiser.zero_grad()
        ((model(batch) - 1) ** 2).mean().backward()
        optimiser.step()
    return before


def _dense(before, after, batch):
    """e and drift from Jacobians of all parameters, with the buffers of the start."""
    start = copy.deepcopy(before).double().eval()
    names = [name for name, _ in start.named_parameters()]
    early = {name: dict(start.named_parameters())[name].detach() for name in names}
    late = {name: dict(after.named_parameters())[name].detach().double() for name in names}

    def f(at):
        return torch.func.functional_call(start, at, (batch.double(),)).reshape(-1)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            return _by_jacobians(f, early, late)


def _by_jacobians(f, early, late):
    names = [*early]
    one, other = (torch.func.jacrev(f)(at) for at in (early, late))
    moved = f(late) - f(early)
    first, last = (torch.cat([part[name].reshape(len(moved), -1) for name in names], 1) for part in (one, other))
    change = torch.cat([(late[name] - early[name]).reshape(-1) for name in names])
    kernels = first @ first.T, last @ last.T
    drift = 1 - (kernels[0] * kernels[1]).sum() / kernels[0].norm() / kernels[1].norm()
    return float((moved - first @ change).norm() / moved.norm()), float(drift)


BATCH = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))


def test_buffers_are_those_of_the_start_however_it_is_given():
    after = _normed()
    before = _trained(after, BATCH)
    expected = _dense(before, after, BATCH)
    wrapped = {f"_orig_mod.{name}": value for name, value in before.state_dict().items()}
    for start in (before, before.state_dict(), wrapped):
        found = networks.regime(after, start, after, BATCH, probes=14)
        assert float(found["linearity"]) == pytest.approx(expected[0], rel=1e-4)
        assert float(found["kernel_drift"]) == pytest.approx(expected[1], rel=1e-3)


def test_buffers_of_16_bits_are_widened_as_parameters_are():
    after = _normed().bfloat16()
    before = copy.deepcopy(after)
    with torch.no_grad():
        for number, one in enumerate(after.parameters()):
            one += 0.2 * torch.randn(one.shape, generator=torch.Generator().manual_seed(number)).bfloat16()
    batch = BATCH.bfloat16()
    assert networks.linearity(after, before, after, batch) == pytest.approx(_dense(before, after, batch)[0], rel=1e-4)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Spectrum(), "real floating-point numbers; got torch.complex64. Return real and imaginary parts side by side"),
        (Choice(), r"real floating-point numbers; got torch.int64\.$"),
    ],
)
def test_outputs_that_are_no_real_numbers_are_refused(model, words):
    end = {name: value * 1.1 for name, value in model.state_dict().items()}
    with pytest.raises(SaddlesError, match=words):
        networks.linearity(model, model.state_dict(), end, BATCH)


def test_a_state_dict_that_training_has_changed_is_named():
    model = _normed()
    start = model.state_dict()
    _trained(model, BATCH)
    with pytest.raises(SaddlesError, match=r"copy it before, copy\.deepcopy\(model\.state_dict\(\)\)"):
        networks.linearity(model, start, model.state_dict(), BATCH)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_are_measured(kind):
    torch.manual_seed(2)
    after = Recurrent(kind)
    batch = torch.randn(5, 6, 3)
    before = _trained(after, batch, 0.3)
    found = networks.regime(after, before, after, batch, probes=10)
    expected = _dense(before, after, batch)
    np.testing.assert_allclose([float(found["linearity"]), float(found["kernel_drift"])], expected, rtol=1e-3)
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled
