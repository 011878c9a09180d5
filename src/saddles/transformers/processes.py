"""Several processes, one a GPU, as a launcher such as torchrun starts them; alone, everything here does nothing."""

import atexit
import contextlib
import os
from typing import Any

import torch
import torch.distributed as dist

_WORDS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher puts into the environment of its processes."""


def join() -> None:
    """Meet the other processes, where a launcher has started any."""
    if not dist.is_available() or dist.is_initialized():
        return
    if all(word in os.environ for word in _WORDS) and int(os.environ["WORLD_SIZE"]) > 1:
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
    return dist.get_rank() if _met() else 0


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _met() else 1


def shared(model: Any) -> Any:
    """The model itself, or one that averages gradients over the processes."""
    return torch.nn.parallel.DistributedDataParallel(model) if _met() else model


def quiet(model: Any) -> Any:
    """No exchange of gradients for a part of a batch that is not the last."""
    return model.no_sync() if _met() else contextlib.nullcontext()


def averaged(value: torch.Tensor) -> float:
    """The mean of a number over the processes."""
    if _met():
        value = value.clone()
        dist.all_reduce(value)
        value = value / count()
    return float(value)


def agreed(value: Any) -> Any:
    """What the first process has."""
    box = [value]
    if _met():
        dist.broadcast_object_list(box)
    return box[0]


def _met() -> bool:
    return dist.is_available() and dist.is_initialized()
