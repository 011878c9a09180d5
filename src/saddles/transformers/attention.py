"""Attention of a class token and 2ⁿ patches in one pass over memory, for bfloat16 on an NVIDIA GPU.

General kernels take tokens in blocks of 64 or 128: 65 tokens cost them two blocks, and their gradient comes in four
kernels and three tensors that are then packed into one. Here one program holds a whole head of one image: the patches
are one block, the class token is a vector beside it, rows of the softmax are complete, so that the gradient needs
neither the output nor the normalisation of the forward pass, and queries, keys and values are read and their gradients
written where the linear maps around them have them. Triton compiles it; it comes with torch's builds for CUDA.
"""

import math
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

BLOCKS = (16, 32, 64)
"""Patches of an image that one program can hold: Triton's products start at 16."""
WIDTHS = (16, 32, 64, 128)
"""Widths of a head."""


def serves(parts: Tensor) -> bool:
    """Whether `attend` takes queries, keys and values of (sample, token, 3, head, width)."""
    return (
        parts.is_cuda
        and parts.dtype == torch.bfloat16
        and parts.shape[1] - 1 in BLOCKS
        and parts.shape[-1] in WIDTHS
        and runs_here()
    )


@torch.compiler.assume_constant_result
def runs_here() -> bool:
    """Whether Triton is installed and the GPU multiplies bfloat16, which NVIDIA's do from Ampere on."""
    return has_triton() and torch.cuda.get_device_capability() >= (8, 0)


@cache
def has_triton() -> bool:
    """Whether it is installed."""
    return find_spec("triton") is not None


@torch.library.custom_op("saddles::attend", mutates_args=())
def attend(parts: Tensor) -> Tensor:
    """smax(Q Kᵀ / √d_h) V of every head, from (sample, token, 3, head, width) to (sample, token, head, width)."""
    parts = parts.contiguous()
    samples, tokens, _, heads, width = parts.shape
    out = parts.new_empty(samples, tokens, heads, width)
    _kernels()[0][samples * heads,](parts, out, 1 / math.sqrt(width), heads, width, tokens - 1, num_warps=4)
    return out


@torch.library.custom_op("saddles::attend_backwards", mutates_args=())
def attend_backwards(parts: Tensor, slope: Tensor) -> Tensor:
    """The gradient by `parts`, from the gradient by the result of `attend`."""
    parts, slope = parts.contiguous(), slope.contiguous()
    samples, tokens, _, heads, width = parts.shape
    out = torch.empty_like(parts)
    _kernels()[1][samples * heads,](parts, slope, out, 1 / math.sqrt(width), heads, width, tokens - 1, num_warps=4)
    return out


@attend.register_fake
def _(parts: Tensor) -> Tensor:
    samples, tokens, _, heads, width = parts.shape
    return parts.new_empty(samples, tokens, heads, width)


@attend_backwards.register_fake
def _(parts: Tensor, slope: Tensor) -> Tensor:
    return parts.new_empty(parts.shape)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backwards(ctx: Any, slope: Tensor) -> Tensor:
    return attend_backwards(*ctx.saved_tensors, slope)


attend.register_autograd(_backwards, setup_context=_keep)


@cache
def _kernels() -> tuple[Any, Any]:
    """The two programs; made when first used, because only some machines have Triton."""
    from saddles.transformers import attention_kernels

    return attention_kernels.forwards, attention_kernels.backwards
