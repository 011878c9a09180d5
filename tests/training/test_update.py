import pytest
import torch

from saddles.training.update import Update

CPU = torch.device("cpu")
RATE = 0.5


def change(clip, scale=1.0):
    """What one step of SGD does to two weights with a loss whose gradient is `scale` times (3, 4), as one vector."""
    weights: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimiser = torch.optim.SGD(weights, lr=RATE)
    slopes = torch.tensor([3.0, 4.0]) * scale
    Update(lambda slope: slope @ torch.cat(weights), optimiser, CPU, clip=clip)(slopes)
    return torch.cat([weight.detach() for weight in weights])


def test_a_long_gradient_is_shortened_over_all_weights_together():
    moved = change(clip=2.0)
    assert moved.norm().item() == pytest.approx(RATE * 2.0, rel=1e-5)
    assert moved[1] / moved[0] == pytest.approx(4 / 3)


def test_a_short_gradient_and_no_limit_change_nothing():
    plain = change(clip=float("inf"))
    assert plain.norm().item() == pytest.approx(RATE * 5.0)
    assert torch.equal(change(clip=6.0), plain)
