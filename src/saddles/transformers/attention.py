"""Attention of a class token and 2ⁿ patches in one pass over memory, for bfloat16 on an NVIDIA GPU.

General kernels take tokens in blocks of 64 or 128: 65 tokens cost them two blocks, and their gradient comes in four
kernels and three tensors that are then packed into one. Here one program holds a whole head of one image: the patches
are one block, the class token is a row beside it, rows of the softmax are complete, so that the gradient needs nothing
of the forward pass but the logarithm of each row's sum, and queries, keys and values are read and their gradients
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
    """Whether Triton is installed and the GPU is of the kind on which the kernels were tried, Hopper."""
    return has_triton() and torch.cuda.get_device_capability() == (9, 0)


@cache
def has_triton() -> bool:
    """Whether it is installed, and new enough to be given tiles by descriptors."""
    return find_spec("triton") is not None and find_spec("triton.tools.tensor_descriptor") is not None


def attend(parts: Tensor) -> Tensor:
    """smax(Q Kᵀ / √d_h) V of every head, from (sample, token, 3, head, width) to (sample, token, head, width)."""
    return attend_forwards(parts)[0]


@torch.library.custom_op("saddles::attend_forwards", mutates_args=())
def attend_forwards(parts: Tensor) -> tuple[Tensor, Tensor]:
    """The result of `attend`, and log Σ exp(q·k / √d_h) of every query: (sample, head, token)."""
    # Tiles are cut out of a dense view of (row, column).
    parts = parts.contiguous()
    samples, tokens, _, heads, width = parts.shape
    out, sums = parts.new_empty(samples, tokens, heads, width), _sums(parts)
    _launch("forwards", parts, _tiles(parts), parts, _tiles(out), out, sums)
    return out, sums


@torch.library.custom_op("saddles::attend_backwards", mutates_args=())
def attend_backwards(parts: Tensor, sums: Tensor, slope: Tensor) -> Tensor:
    """The gradient by `parts`, from the gradient by the result of `attend`."""
    parts, slope = parts.contiguous(), slope.contiguous()
    out = torch.empty_like(parts)
    _launch("backwards", parts, _tiles(parts), parts, _tiles(slope), slope, sums, _tiles(out), out)
    return out


@attend_forwards.register_fake
def _(parts: Tensor) -> tuple[Tensor, Tensor]:
    samples, tokens, _, heads, width = parts.shape
    return parts.new_empty(samples, tokens, heads, width), _sums(parts)


@attend_backwards.register_fake
def _(parts: Tensor, sums: Tensor, slope: Tensor) -> Tensor:
    return parts.new_empty(parts.shape)


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backwards(ctx: Any, slope: Tensor, _: Tensor) -> Tensor:
    return attend_backwards(*ctx.saved_tensors, slope)


attend_forwards.register_autograd(_backwards, setup_context=_keep)


def _sums(parts: Tensor) -> Tensor:
    samples, tokens, _, heads, _ = parts.shape
    return parts.new_empty(samples, heads, tokens, dtype=torch.float32)


def _tiles(tensor: Tensor) -> Any:
    """How the GPU's copy engine finds one head's patches of one image in (sample, token, …, head, width)."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # pyright: ignore[reportMissingImports]

    tokens, width = tensor.shape[1], tensor.shape[-1]
    return TensorDescriptor.from_tensor(tensor.view(tensor.shape[0] * tokens, -1), [tokens - 1, width])


def _launch(name: str, parts: Tensor, *arguments: Any) -> None:
    """One program for each head of each image."""
    samples, tokens, _, heads, width = parts.shape
    kernel = _kernels()[name]
    kernel[samples * heads,](*arguments, 1 / math.sqrt(width), heads, width, tokens - 1, num_warps=4)


@cache
def _kernels() -> dict[str, Any]:
    """The two programs; made when first used, because only some machines have Triton."""
    from saddles.transformers import attention_kernels

    return {"forwards": attention_kernels.forwards, "backwards": attention_kernels.backwards}
