"""A vision transformer whose heads may be wider than width / heads, as the paper's are (width 512, 8 heads of 128).

Neither transformers nor timm lets the width of a head be chosen separately, so this is a module of our own: the
pre-norm ViT of Dosovitskiy et al. with a class token and learned positions. Names and shapes of the attention are those
of timm, so the probe finds its heads as it finds timm's.
"""

import math
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

    def forward(self, x: Tensor, class_only: bool = False) -> Tensor:
        """(sample, token, width) to the same, or to (sample, 1, width) of the class token."""
        samples, tokens, _ = x.shape
        if class_only:
            query, key, value = self._asked_by_class(x)
            if x.is_cuda:
                return self.proj(_attended_once(query, key, value).reshape(samples, 1, -1))
        else:
            parts = self.qkv(x).view(samples, tokens, 3, self.num_heads, self.head_width)
            if attention.serves(parts):
                return self.proj(attention.attend(parts).reshape(samples, tokens, -1))
            query, key, value = parts.unbind(2)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return self.proj(mixed.reshape(samples, mixed.shape[1], -1))

    def _asked_by_class(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The class token's query, all keys and values; each (sample, token, head, width)."""
        samples, tokens, _ = x.shape
        if _only_multiplies(self.qkv):
            inner = self.num_heads * self.head_width
            weight, bias = self.qkv.weight, self.qkv.bias
            query = functional.linear(x[:, :1], weight[:inner], None if bias is None else bias[:inner])
            rest = functional.linear(x, weight[inner:], None if bias is None else bias[inner:])
            query = query.view(samples, 1, self.num_heads, self.head_width)
            key, value = rest.view(samples, tokens, 2, self.num_heads, self.head_width).unbind(2)
            return query, key, value
        query, key, value = self.qkv(x).view(samples, tokens, 3, self.num_heads, self.head_width).unbind(2)
        return query[:, :1], key, value


def _attended_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the class token sees, (sample, head, width): written out, for libraries' kernels are made for many queries.

    Compiled, it reads keys and values once, and writes their gradients once, where they are needed. Products are not
    rounded before they are summed, as in those kernels.
    """
    kind = torch.promote_types(value.dtype, torch.float32)
    scores = (query.to(kind) * key).sum(-1) / math.sqrt(query.shape[-1])
    return (scores.softmax(1).unsqueeze(-1) * value).sum(1).to(value.dtype)


def _only_multiplies(layer: nn.Module) -> bool:
    """Whether a call does nothing else: no adapter is around it, and nobody looks at what goes in and out."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


class Block(nn.Module):
    """Attention and a feed-forward part, each after a normalisation and with a residual."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.mlp = nn.Sequential(nn.Linear(shape.width, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.width))

    def forward(self, x: Tensor, class_only: bool = False) -> Tensor:
        """(sample, token, width) to the same, or to (sample, 1, width) of the class token."""
        mixed = self.attn(self.norm1(x), class_only)
        x = (x[:, :1] if class_only else x) + mixed
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
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x)
        # Only the class token is read, so that the last block has nothing else to compute but keys and values.
        return self.head(self.norm(last(x, class_only=True))[:, 0])


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

    width, heads = settings.get("n_embd", 768), settings.get("n_head", 12)
    if width % heads:
        raise SaddlesError.must_be("heads", f"a divisor of width={width}", heads)
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
