"""What a training step asks of its device: draws by number, mixed precision, a sentence where memory runs out."""

import contextlib
from collections.abc import Iterator

import torch

from saddles.errors import SaddlesError


def generator_of(device: torch.device | str, *words: int) -> torch.Generator:
    """A generator for one purpose: the same words give the same draws, whatever was drawn before.

    The words are usually a seed, a number for the purpose and a step, so that a resumed run draws what the
    uninterrupted one would have drawn.
    """
    value = 1
    for word in words:
        # A linear congruence: distinct short lists of words give distinct seeds below 2**63, which is torch's limit.
        value = (value * 1_000_003 + int(word) + 12_345) % (2**63 - 1)
    return torch.Generator(device=device).manual_seed(value)


def mixed_precision(device: torch.device, *, cached: bool = True) -> contextlib.AbstractContextManager[object]:
    """Bfloat16 where it helps and only on a GPU; weights stay float32.

    Args:
        cached: keep casts of weights within the block. A CUDA graph needs False: a cached cast would be made once,
            during the capture, and replays would use old weights.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=cached)


@contextlib.contextmanager
def within_memory(hint: str) -> Iterator[None]:
    """Say what to lower where the device's memory runs out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        why = str(error).splitlines()[0]
        raise SaddlesError(
            f"The device's memory ran out ({why}). Model, optimiser and a batch must fit: {hint}."
        ) from error
