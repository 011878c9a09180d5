"""The bound and the sampler against closed forms of a Gaussian whose denoiser is known."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from saddles.diffusion import VDM, UNetShape, make_vdm
from saddles.diffusion.unet import Norm, UNet, waves
from saddles.diffusion.vdm import TERMS, times
from saddles.errors import SaddlesError

torch.manual_seed(0)


class Exact(torch.nn.Module):
    """ε̂ − z for data N(mean, variance): E[ε | z] = σ (z − α mean)/(α² variance + σ²)."""

    def __init__(self, mean, variance, start, span):
        super().__init__()
        self.mean, self.variance, self.start, self.span = mean, variance, start, span

    def forward(self, z, level, described):
        gamma = (self.start + self.span * level).view(-1, *[1] * (z.ndim - 1))
        spread, signal = torch.sigmoid(gamma), torch.sigmoid(-gamma)
        return spread.sqrt() * (z - signal.sqrt() * self.mean) / (signal * self.variance + spread) - z


def toy(mean, variance, start, end, data_noise):
    return VDM(Exact(mean, variance, start, end - start), start, end, data_noise).double()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def level(*shape, seed=0):
    """The same with mean square 1 in every row: means of quadratic forms stay what they are, and scatter less."""
    rows = normal(*shape, seed=seed)
    return rows / rows.pow(2).mean(1, keepdim=True).sqrt()


@pytest.mark.parametrize(("mean", "variance", "noise"), [(0.0, 1.0, 1e-3), (0.6, 0.09, 1e-3), (-1.0, 4.0, 1e-3)])
def test_bound_is_the_likelihood_of_a_gaussian(mean, variance, noise):
    """With γ(0) = log s² and the exact denoiser the bound is tight: E −log₂ N(x; m, v), here known, to 1 %."""
    model = toy(mean, variance, math.log(noise**2), 12.0, noise)
    x = mean + math.sqrt(variance) * level(4000, 40)
    t = times(4000, torch.Generator().manual_seed(1)).double()
    terms = model.bound(x, None, t, level(4000, 40, seed=2))
    entropy = 0.5 * math.log2(2 * math.pi * math.e * variance)
    found = float(torch.stack([terms[name].mean() for name in TERMS]).sum().detach())
    assert found == pytest.approx(entropy, rel=0.01)
    first, last = math.log(noise**2), 12.0
    known = 0.5 * (last - first - math.log((variance + math.exp(last)) / (variance + noise**2))) / math.log(2)
    assert float(terms["diffusion"].mean().detach()) == pytest.approx(known, rel=1e-3)


def test_bound_is_a_bound_where_the_schedule_stops_early():
    """γ(0) above log s² leaves a gap, which the reconstruction shows: e^{γ(0)}/2s² − ½ − ½ log(e^{γ(0)}/s²) nats."""
    noise, start = 0.01, math.log(0.01**2) + 3.0
    model = toy(0.0, 1.0, start, 12.0, noise)
    terms = model.bound(
        level(4000, 40), None, times(4000, torch.Generator().manual_seed(1)).double(), level(4000, 40, seed=2)
    )
    gap = (0.5 * math.exp(3.0) - 0.5 - 0.5 * 3.0) / math.log(2)
    found = float(torch.stack([value.mean() for value in terms.values()]).sum().detach())
    assert found - 0.5 * math.log2(2 * math.pi * math.e) == pytest.approx(gap, rel=0.02)


def test_the_diffusion_term_is_that_of_the_signal_to_noise_ratio():
    """½ γ'(t) ‖ε − ε̂‖² = −½ SNR'(t) ‖x − x̂‖² with x̂ = (z − σ ε̂)/α, SNR' by automatic differentiation."""
    model = toy(0.3, 0.5, -5.0, 10.0, 1e-3)
    x, noise = normal(50, 6), normal(50, 6, seed=3)
    t = torch.linspace(0.02, 0.98, 50, dtype=torch.float64, requires_grad=True)
    gamma = model.gamma(t)
    ratio = torch.exp(-gamma)
    slope = torch.autograd.grad(ratio.sum(), t, retain_graph=True)[0]
    alpha, sigma = torch.sigmoid(-gamma).sqrt()[:, None], torch.sigmoid(gamma).sqrt()[:, None]
    torch.testing.assert_close((alpha / sigma).squeeze(1) ** 2, ratio)
    torch.testing.assert_close(alpha**2 + sigma**2, torch.ones_like(alpha))
    z = alpha * x + sigma * noise
    denoised = (z - sigma * model.noise(z, gamma, None)) / alpha
    expected = -0.5 * slope * (x - denoised).pow(2).mean(1) / math.log(2)
    torch.testing.assert_close(model.bound(x, None, t, noise)["diffusion"], expected)


def test_reconstruction_and_latent_are_their_expectations():
    """Against draws of z_0, and against the divergence of two normal distributions of torch."""
    model = toy(0.0, 1.0, -5.0, 2.0, 0.1)
    x, count = normal(3, 4), 200_000
    terms = model.bound(x, None, torch.full((3,), 0.5, dtype=torch.float64), normal(3, 4, seed=5))
    gamma = torch.tensor(-5.0, dtype=torch.float64)
    alpha, sigma = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
    z = alpha * x[0] + sigma * normal(count, 4, seed=6)
    drawn = -torch.distributions.Normal(z / alpha, 0.1).log_prob(x[0]).mean() / math.log(2)
    assert float(terms["reconstruction"][0].detach()) == pytest.approx(float(drawn), rel=0.01)
    gamma = torch.tensor(2.0, dtype=torch.float64)
    last = torch.distributions.Normal(torch.sigmoid(-gamma).sqrt() * x, torch.sigmoid(gamma).sqrt())
    known = torch.distributions.kl_divergence(last, torch.distributions.Normal(torch.zeros_like(x), 1.0)).mean(1)
    torch.testing.assert_close(terms["latent"].detach(), known / math.log(2))


def test_gradients_of_the_schedule_are_those_of_the_bound():
    """Finite differences of the mean bound in offset and slope, through all three terms."""
    model = toy(0.2, 0.5, -5.0, 8.0, 0.05)
    x, noise, t = normal(20, 3), normal(20, 3, seed=7), torch.linspace(0.01, 0.99, 20, dtype=torch.float64)

    def total():
        return torch.stack([value.mean() for value in model.bound(x, None, t, noise).values()]).sum()

    grads = torch.autograd.grad(total(), [model.offset, model.slope])
    for parameter, grad in zip((model.offset, model.slope), grads, strict=True):
        with torch.no_grad():
            values = []
            for step in (1e-5, -1e-5):
                parameter += step
                values.append(float(total()))
                parameter -= step
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(grad), rel=1e-5)


def exact_moments(mean, variance, start, end, steps):
    """Mean and variance of ancestral samples: every step is linear in z, so both follow from a recursion."""
    gammas = torch.linspace(end, start, steps + 1, dtype=torch.float64)
    m, v, a2 = 0.0, 1.0, 1.0
    for before, after in pairwise(gammas):
        a, s = (math.sqrt(1 / (1 + math.exp(sign * before))) for sign in (1, -1))
        a2, s2 = (math.sqrt(1 / (1 + math.exp(sign * after))) for sign in (1, -1))
        share = -math.expm1(after - before)
        pull = share * s * s / (a * a * variance + s * s)
        m, v = a2 / a * ((1 - pull) * m + pull * a * mean), (a2 / a * (1 - pull)) ** 2 * v + s2**2 * share
    return m / a2, v / a2**2


def test_sampler_reproduces_the_gaussian():
    """Draws against the exact recursion to a few standard errors; the recursion against the data: error ∝ 1/steps."""
    mean, variance = 0.5, 0.3
    model, count = toy(mean, variance, -8.0, 10.0, 1e-3), 60_000
    drawn = model.sample(None, (count, 1), 100, torch.Generator().manual_seed(4))
    m, v = exact_moments(mean, variance, -8.0, 10.0, 100)
    assert float(drawn.mean()) == pytest.approx(m, abs=5 * math.sqrt(v / count))
    assert float(drawn.var()) == pytest.approx(v, rel=5 * math.sqrt(2 / count))
    errors = [abs(exact_moments(mean, variance, -8.0, 10.0, n)[1] - variance - math.exp(-8)) for n in (100, 200, 400)]
    assert errors[0] < 0.1 * variance
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


def test_times_fill_every_part():
    drawn = times(8, torch.Generator().manual_seed(3))
    assert ((drawn * 8).floor() == torch.arange(8)).all()
    assert not torch.equal(drawn, times(8, torch.Generator().manual_seed(4)))


def test_the_network_starts_as_the_identity_and_listens():
    """ε̂ = z at the start; after a step it depends on level and description."""
    model = make_vdm(UNetShape(8, (4, 8), 2, 2), seed=3)
    z, gamma = torch.randn(5, 3, 8, 8), torch.linspace(-5, 10, 5)
    described = torch.rand(5, 4)
    torch.testing.assert_close(model.noise(z, gamma, described), z)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    base = model.noise(z, gamma, described)
    assert (model.noise(z, gamma + 1, described) - base).abs().max() > 1e-4
    assert (model.noise(z, gamma, described + 0.2) - base).abs().max() > 1e-4
    one = model.noise(z[2:3], gamma[2:3], described[2:3])
    torch.testing.assert_close(one, base[2:3], rtol=1e-4, atol=1e-5)


def test_the_network_of_the_paper_has_its_parts():
    network: Any = UNet(UNetShape())
    assert [block.second[2].out_channels for row in network.down for block in row] == [64, 64, 128, 128, 256, 256]
    assert len(network.shrink) == len(network.described) == 2
    assert [part[2].out_features for part in network.described] == [64, 128]
    assert network.attend.heads == 4
    assert not any(isinstance(module, torch.nn.Dropout) for module in network.modules())
    assert sum(isinstance(module, Norm) for module in network.modules()) == 2 * 14 + 2


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_layer_norm_is_over_all_features(order):
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1)).to(memory_format=order)
    norm = Norm(4)
    with torch.no_grad():
        norm.scale.add_(torch.arange(4.0))
        norm.shift.sub_(torch.arange(4.0))
    known = torch.nn.functional.group_norm(x, 1, norm.scale, norm.shift)
    torch.testing.assert_close(norm(x), known, rtol=1e-4, atol=1e-5)
    assert norm(x).is_contiguous(memory_format=torch.channels_last)


def test_waves_tell_levels_apart():
    rows = waves(torch.tensor([0.0, 0.1, 0.11, 1.0]), 16)
    assert rows.shape == (4, 16)
    assert torch.cdist(rows, rows).fill_diagonal_(9).min() > 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VDM(torch.nn.Identity(), 5.0, -5.0), "`gamma_max` must be above gamma_min"),
        (lambda: VDM(torch.nn.Identity(), data_noise=0.0), "`data_noise` must be positive"),
        (lambda: UNetShape(side=30, channels=(8, 8, 8)), "`side` must be a multiple of 4"),
        (lambda: UNetShape(channels=()), "`channels` must be"),
        (lambda: UNetShape(channels=(8, 9), heads=2), "`heads` must be a divisor of 9"),
        (lambda: UNetShape(blocks=0), "`blocks` must be"),
        (lambda: toy(0, 1, -5, 10, 1e-3).sample(None, (1, 1), 0, torch.Generator()), "at least 1"),
    ],
)
def test_bad_settings_are_explained(make, words):
    with pytest.raises(SaddlesError, match=words):
        make()
