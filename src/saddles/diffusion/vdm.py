"""A variational diffusion model (kingma2021variational).

    z_t = α_t x + σ_t ε,   σ_t² = sigmoid γ(t),   α_t² = sigmoid −γ(t),   SNR(t) = e^{−γ(t)},   γ(t) = b + |w| t

    −log p(x) ≤  KL(q(z_1|x) ‖ N(0, 1))                      latent
               + E[−log N(x; z_0/α_0, s²)]                    reconstruction, s the data noise
               + ½ E γ'(t) ‖ε − ε̂(z_t, γ(t))‖²                diffusion, t uniform on [0, 1]

The reconstruction's mean over z_0 is ½ e^{γ(0)}/s² + log s + ½ log 2π per dimension, and is used in that form. With
s = 1e-3 the model is one of a density: its bits per dimension may be negative, and are not those of 8-bit images.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.diffusion.unet import UNetShape, make_unet
from saddles.errors import SaddlesError

Denoiser = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(z, level, described) → ε̂ − z."""

TERMS = ("diffusion", "latent", "reconstruction")


class VDM(nn.Module):
    """A denoiser and a learned linear schedule.

    Args:
        denoiser: (z, level, described) → ε̂ − z, the level being (γ − γ_min)/(γ_max − γ_min) of the start.
        gamma_min, gamma_max: γ(0) and γ(1) at the start.
        data_noise: s.
    """

    def __init__(
        self, denoiser: nn.Module, gamma_min: float = -5.0, gamma_max: float = 10.0, data_noise: float = 1e-3
    ) -> None:
        super().__init__()
        if not gamma_min < gamma_max:
            raise SaddlesError.must_be("gamma_max", f"above gamma_min={gamma_min}", gamma_max)
        if data_noise <= 0:
            raise SaddlesError.must_be("data_noise", "positive", data_noise)
        self.denoiser = denoiser
        self.offset = nn.Parameter(torch.tensor(float(gamma_min)))
        self.slope = nn.Parameter(torch.tensor(float(gamma_max - gamma_min)))
        self.start, self.range, self.data_noise = float(gamma_min), float(gamma_max - gamma_min), float(data_noise)

    def gamma(self, time: Tensor) -> Tensor:
        """γ(t) = −log SNR(t)."""
        return self.offset + self.slope.abs() * time

    def noise(self, z: Tensor, gamma: Tensor, described: Tensor | None, denoiser: Denoiser | None = None) -> Tensor:
        """ε̂, for gamma of shape (image,); by another denoiser than the model's own where one is given."""
        change = (denoiser or self.denoiser)(z, (gamma - self.start) / self.range, described)
        return z + change.to(z.dtype)

    def bound(self, x: Tensor, described: Tensor | None, time: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """The three terms in bits per dimension, one number per image each; their sum bounds −log₂ p(x)/dimensions.

        Args:
            x: (image, …).
            described: (image, numbers) or None.
            time: (image,) in [0, 1].
            noise: standard normal, like x.
        """
        wide = (-1, *([1] * (x.ndim - 1)))
        gamma = self.gamma(time)
        z = _alpha(gamma).view(wide) * x + _sigma(gamma).view(wide) * noise
        missed = (noise - self.noise(z, gamma, described)).pow(2).flatten(1).mean(1)
        # KL of N(α₁ x, σ₁²) from N(0, 1) per dimension, with σ₁² = sigmoid γ(1) and log σ₁² without cancellation.
        first, last = self.gamma(time.new_zeros(())), self.gamma(time.new_ones(()))
        spread = torch.sigmoid(last)
        latent = 0.5 * ((1 - spread) * x.pow(2).flatten(1).mean(1) + spread - functional.logsigmoid(last) - 1)
        s = self.data_noise
        reconstruction = 0.5 * first.exp() / s**2 + math.log(s) + 0.5 * math.log(2 * math.pi)
        terms = (0.5 * self.slope.abs() * missed, latent, reconstruction.expand(len(x)))
        return {name: value / math.log(2) for name, value in zip(TERMS, terms, strict=True)}

    @torch.no_grad()
    def sample(
        self,
        described: Tensor | None,
        shape: tuple[int, ...],
        steps: int,
        generator: torch.Generator,
        denoiser: Denoiser | None = None,
    ) -> Tensor:
        """Ancestral sampling from t = 1 to 0 in equal steps; returns z_0/α_0, the mean of p(x | z_0).

        Args:
            described: (image, numbers) or None.
            shape: of the result, images first.
            generator: on the device of the model; the same one gives the same images.
            denoiser: instead of the model's own, for instance a faster form of it.
        """
        if steps < 1:
            raise SaddlesError.must_be("steps", "at least 1", steps)
        device, dtype = self.offset.device, self.offset.dtype
        z = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        gammas = self.gamma(torch.linspace(1.0, 0.0, steps + 1, device=device, dtype=dtype))
        for before, after in itertools.pairwise(gammas):
            # 1 − SNR(before)/SNR(after): the share of the noise at `before` that this step removes.
            share = -torch.expm1(after - before)
            mean = z - share * _sigma(before) * self.noise(z, before.expand(shape[0]), described, denoiser)
            fresh = torch.randn(shape, generator=generator, device=device, dtype=dtype)
            z = _alpha(after) / _alpha(before) * mean + _sigma(after) * share.sqrt() * fresh
        return z / _alpha(gammas[-1])


def _alpha(gamma: Tensor) -> Tensor:
    return torch.sigmoid(-gamma).sqrt()


def _sigma(gamma: Tensor) -> Tensor:
    return torch.sigmoid(gamma).sqrt()


def times(count: int, generator: torch.Generator) -> Tensor:
    """One time in each of `count` equal parts of [0, 1]: the low-discrepancy draw of the VDM paper, appendix I.1."""
    first = torch.rand((), generator=generator, device=generator.device)
    return (first + torch.arange(count, device=generator.device)) / count


def make_vdm(shape: UNetShape, seed: int = 0, **schedule: float) -> VDM:
    """A model with a fresh U-Net; further arguments are those of VDM."""
    return VDM(make_unet(shape, seed), **schedule)
