"""A vision transformer whose heads may be wider than width / heads, as the paper's are (width 512, 8 heads of 128).

Neither transformers nor timm lets the width of a head be chosen separately, so this is a module of our own: the
pre-norm ViT of Dosovitskiy et al. with a class token and learned positions. Names and shapes of the attention are those
of timm, so the probe finds its heads as it finds timm's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.errors import SaddlesError
from saddles.transformers import attention
from saddles.transformers.text import END

TOKEN_MAPPER = ("patch_embed", "pos_embed", "cls_token")
"""Parts of a ViT that the initial scale leaves as they are."""


@dataclass(frozen=True)
class ViTShape:
    """Sizes of a ViT; the defaults are the paper's for CIFAR.

    Args:
        side, patch, channels: the image and its patches, in pixels.
        width: of the embedding.
        layers, heads, head_width, hidden: blocks, heads per block, width of a head, width of the feed-forward part.
        classes: outputs.
    """

    side: int = 32
    patch: int = 4
    channels: int = 3
    width: int = 512
    layers: int = 6
    heads: int = 8
    head_width: int = 128
    hidden: int = 512
    classes: int = 10

    def __post_init__(self) -> None:
        if self.side % self.patch:
            raise SaddlesError.must_be("patch", f"a divisor of side={self.side}", self.patch)


class Attention(nn.Module):
    """Several heads: smax(x W_Q W_Kᵀ xᵀ / √d_h) x W_V W_Oᵀ."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        inner = shape.heads * shape.head_width
        self.num_heads, self.head_width = shape.heads, shape.head_width
        self.qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.proj = nn.Linear(inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(sample, token, width) to the same."""
        samples, tokens, _ = x.shape
        parts = self.qkv(x).view(samples, tokens, 3, self.num_heads, self.head_width)
        if attention.serves(parts):
            mixed = attention.attend(parts)
        else:
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return self.proj(mixed.reshape(samples, tokens, -1))


class Block(nn.Module):
    """Attention and a feed-forward part, each after a normalisation and with a residual."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.mlp = nn.Sequential(nn.Linear(shape.width, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.width))

    def forward(self, x: Tensor) -> Tensor:
        """(sample, token, width) to the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Images (sample, channel, row, column) to logits (sample, class)."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.shape = shape
        tokens = (shape.side // shape.patch) ** 2
        self.patch_embed = nn.Linear(shape.patch**2 * shape.channels, shape.width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        # 0.02 is the usual spread of learned positions (Dosovitskiy et al., BERT).
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, tokens + 1, shape.width))
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        size = self.shape.patch
        samples, channels, rows, columns = images.shape
        patches = images.view(samples, channels, rows // size, size, columns // size, size)
        patches = patches.permute(0, 2, 4, 3, 5, 1).reshape(samples, -1, size * size * channels)
        x = self.patch_embed(patches)
        x = torch.cat([self.cls_token.expand(samples, -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def make_vit(shape: ViTShape, scale: float = 1.0, seed: int = 0) -> ViT:
    """A ViT with PyTorch's default initial weights, all but the token mapper times `scale`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ViT(shape)
    scale_weights(model, scale, keep=TOKEN_MAPPER)
    return model


def make_gpt2(settings: Mapping[str, int], scale: float = 1.0, seed: int = 0) -> nn.Module:
    """GPT-2 of transformers from scratch, without dropout.

    Args:
        settings: of its GPT2Config, such as n_layer.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    options: dict[str, Any] = {**settings, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "use_cache": False}
    if options.get("vocab_size", END + 1) <= END:  # a smaller vocabulary has no end-of-text token
        options |= {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    scale_weights(model, scale, keep=("wte", "wpe", "lm_head"))
    return model


def scale_weights(model: nn.Module, scale: float, keep: tuple[str, ...]) -> None:
    """Multiply all weights and biases but those of normalisations and of modules named in `keep`."""
    if scale <= 0:
        raise SaddlesError.must_be("scale", "positive", scale)
    chosen = scaled(model, keep)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in chosen:
                weight.mul_(scale)


def scaled(model: nn.Module, keep: tuple[str, ...] = TOKEN_MAPPER) -> list[str]:
    """Names of the parameters that `scale_weights` multiplies; of a ViT, unless told otherwise."""
    normal = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    return [
        name
        for name, _ in model.named_parameters()
        if name.rpartition(".")[0] not in normal and not any(word in name.split(".") for word in keep)
    ]
