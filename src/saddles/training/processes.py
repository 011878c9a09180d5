"""Several processes, one per GPU, as a launcher such as torchrun starts them; alone, everything here does nothing."""

import atexit
import contextlib
import os
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher puts into the environment of its processes."""


def join() -> None:
    """Meet the other processes, where a launcher has started any."""
    if not dist.is_available() or dist.is_initialized():
        return
    if all(name in os.environ for name in _LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(device())
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(dist.destroy_process_group)


def device() -> torch.device:
    """The GPU of this process, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def rank() -> int:
    """The number of this process; the first one, 0, measures and writes."""
    return dist.get_rank() if _joined() else 0


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _joined() else 1


def share(part: int, parts: int) -> slice:
    """The rows of a batch that this process takes in one of `parts` parts of its share."""
    return slice(rank() * parts + part, None, count() * parts)


def shared(model: nn.Module) -> nn.Module:
    """The model itself, or one that averages gradients over the processes."""
    return nn.parallel.DistributedDataParallel(model) if _joined() else model


def without_exchange(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A block in which gradients of a shared model add up without being averaged: all parts of a batch but the last."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    return contextlib.nullcontext()


def averaged(value: Tensor) -> Tensor:
    """The mean of numbers over the processes."""
    if _joined():
        # `all_reduce` writes into its argument, which is the caller's running sum.
        value = value.clone()
        dist.all_reduce(value)
        value = value / count()
    return value


def agreed(value: T) -> T:
    """What the first process has."""
    box: list[T] = [value]
    if _joined():
        dist.broadcast_object_list(box)
    return box[0]


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()
