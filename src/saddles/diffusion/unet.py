"""The U-Net of the paper: residual blocks at three resolutions, attention at the lowest, LayerNorm, GELU.

No common library has these parts together (the U-Nets of diffusers have group norm and SiLU, and are conditioned by
attention or through the time embedding), so it is a module of our own.

    level i:   two residual blocks with channels[i]; the result is kept for the way up
               a 2 × 2 convolution of stride 2, and the description's 2-layer MLP is added (but after the last level)
    bottom:    residual block, self-attention, residual block
    way up:    the same levels backwards, each but the last with what was kept beside it

LayerNorm is over all features of an image, with a scale and a shift per channel. Every residual block ends in a
convolution that starts at 0, and so does the network.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class UNetShape:
    """Sizes of a U-Net; the defaults are the paper's.

    Args:
        side: of the images, a multiple of 2^(levels − 1).
        channels: of each level.
        blocks: residual blocks per level.
        heads: of the attention; they divide the last level's channels.
        described: numbers that describe an image, 0 for a network without a description.
        outputs: channels that come out.
    """

    side: int = 32
    channels: Sequence[int] = (64, 128, 256)
    blocks: int = 2
    heads: int = 4
    described: int = 4
    outputs: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        if not self.channels or min(self.channels) < 1:
            raise SaddlesError.must_be("channels", "at least 1 in each of one or more levels", self.channels)
        halved = 2 ** (len(self.channels) - 1)
        for name, right, what in (
            ("blocks", self.blocks >= 1, "at least 1"),
            ("heads", self.heads >= 1 and self.channels[-1] % self.heads == 0, f"a divisor of {self.channels[-1]}"),
            ("side", self.side % halved == 0, f"a multiple of {halved}, because each further level halves it"),
        ):
            if not right:
                raise SaddlesError.must_be(name, what, getattr(self, name))


class UNet(nn.Module):
    """Images (image, 3, row, column), a noise level and a description each, to channels for every pixel."""

    def __init__(self, shape: UNetShape) -> None:
        super().__init__()
        self.shape = shape
        channels, wide = shape.channels, 4 * shape.channels[0] if shape.described else 0
        self.enter = nn.Conv2d(3, channels[0], 3, padding=1)
        self.features = 2 * max(8, channels[0] // 2)  # sines and cosines of the level, 8 of each at least
        if wide:
            self.level = nn.Sequential(nn.Linear(self.features, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU())
            self.described = nn.ModuleList(
                nn.Sequential(nn.Linear(shape.described, c), nn.GELU(), nn.Linear(c, c)) for c in channels[:-1]
            )
        self.down = nn.ModuleList()
        last = channels[0]
        for c in channels:
            self.down.append(_row(last, c, shape.blocks, wide))
            last = c
        self.shrink = nn.ModuleList(nn.Conv2d(c, c, 2, stride=2) for c in channels[:-1])
        self.bottom = nn.ModuleList([Residual(last, last, wide), Residual(last, last, wide)])
        self.attend = Attention(last, shape.heads)
        self.up = nn.ModuleList([_row(last, last, shape.blocks, wide)])
        self.grow = nn.ModuleList()
        for c, below in pairwise(channels[::-1]):
            self.grow.append(nn.ConvTranspose2d(c, below, 2, stride=2))
            self.up.append(_row(2 * below, below, shape.blocks, wide))
        self.leave = nn.Sequential(Norm(channels[0]), nn.GELU(), nn.Conv2d(channels[0], shape.outputs, 3, 1, 1))

    def forward(self, images: Tensor, level: Tensor | None = None, described: Tensor | None = None) -> Tensor:
        """Args: images; level (image,), about 0 to 1; described (image, numbers)."""
        embedded = None if level is None else self.level(waves(level, self.features))
        h, kept = self.enter(images), []
        for i, row in enumerate(self.down):
            if i:
                h = self.shrink[i - 1](h)
                if described is not None:
                    h = h + self.described[i - 1](described)[:, :, None, None]
            h = _through(row, h, embedded)
            kept.append(h)
        h = self.bottom[1](self.attend(self.bottom[0](h, embedded)), embedded)
        for i, row in enumerate(self.up):
            if i:
                h = torch.cat([self.grow[i - 1](h), kept[-1 - i]], dim=1)
            h = _through(row, h, embedded)
        return self.leave(h)


class Norm(nn.Module):
    """LayerNorm over all features of an image, then a scale and a shift per channel.

    The same numbers as a group norm with one group, but it keeps pixels' channels side by side in memory, as
    convolutions want them on a GPU, and the precision of its input (sums are float32 inside).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(image, channel, row, column) to the same."""
        images, channels, rows, columns = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(images, -1)
        # Outside autocast, or the result would be float32 and the memory of all that follows twice as large.
        with torch.autocast(x.device.type, enabled=False):
            flat = functional.layer_norm(flat, flat.shape[1:])
        plain = flat.view(images, rows, columns, channels).permute(0, 3, 1, 2)
        scale, shift = (value.to(x.dtype).view(1, -1, 1, 1) for value in (self.scale, self.shift))
        return torch.addcmul(shift, plain, scale)


class Residual(nn.Module):
    """x + conv(act(norm(conv(act(norm x)) + level)))."""

    def __init__(self, entering: int, leaving: int, embedded: int) -> None:
        super().__init__()
        self.first = nn.Sequential(Norm(entering), nn.GELU(), nn.Conv2d(entering, leaving, 3, padding=1))
        self.level = nn.Linear(embedded, leaving) if embedded else None
        self.second = nn.Sequential(Norm(leaving), nn.GELU(), nn.Conv2d(leaving, leaving, 3, padding=1))
        self.past = nn.Conv2d(entering, leaving, 1) if entering != leaving else nn.Identity()

    def forward(self, x: Tensor, level: Tensor | None) -> Tensor:
        """(image, channel, row, column) to the same with other channels."""
        h = self.first(x)
        if self.level is not None and level is not None:
            h = h + self.level(level)[:, :, None, None]
        return self.past(x) + self.second(h)


class Attention(nn.Module):
    """Self-attention between pixels, after a normalisation and with a residual."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = Norm(channels)
        self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(image, channel, row, column) to the same."""
        images, channels, rows, columns = x.shape
        parts = self.qkv(self.norm(x)).view(images, 3, self.heads, channels // self.heads, rows * columns)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.proj(mixed.transpose(-1, -2).reshape(images, channels, rows, columns))


def waves(level: Tensor, features: int) -> Tensor:
    """Sines and cosines of the level at frequencies from 1 to 1000, (image, features).

    The level is about 0 to 1: the slowest wave tells its ends apart, the fastest resolves steps of a thousandth.
    """
    rates = torch.exp(torch.linspace(0, math.log(1000.0), features // 2, device=level.device, dtype=level.dtype))
    angles = level[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def make_unet(shape: UNetShape, seed: int = 0) -> UNet:
    """A U-Net with PyTorch's default initial weights, but for the convolutions that start at 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = UNet(shape)
    blocks = [module for module in network.modules() if isinstance(module, Residual)]
    for last in [*(block.second[2] for block in blocks), network.leave[2]]:
        assert isinstance(last, nn.Conv2d)
        nn.init.zeros_(last.weight)
        if last.bias is not None:
            nn.init.zeros_(last.bias)
    return network


def _row(entering: int, leaving: int, blocks: int, embedded: int) -> nn.ModuleList:
    return nn.ModuleList(Residual(entering if k == 0 else leaving, leaving, embedded) for k in range(blocks))


def _through(row: nn.Module, h: Tensor, level: Tensor | None) -> Tensor:
    assert isinstance(row, nn.ModuleList)
    for block in row:
        h = block(h, level)
    return h
