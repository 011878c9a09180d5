"""Whole tensors from sharded ones: gathered where possible, refused with a reason where not.

FSDP2 and tensor parallelism keep a DTensor, which gives its full tensor to every process that
asks at the same time. ZeRO-3 keeps an empty tensor and gathers inside a context of DeepSpeed.
FSDP1 flattens parameters, so that heads cannot be told apart.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from saddles.errors import SaddlesError


def full_shape(tensor: Any) -> tuple[int, ...]:
    """The shape of the whole parameter, also where only a part of it is here."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def check_present(tensors: Mapping[str, Any]) -> None:
    """Refuse parameters that cannot be read, before any of them is."""
    for name, tensor in tensors.items():
        if "_flat_param" in name:
            _refuse(name, "is flattened by FSDP1", "use FSDP2 (fully_shard), whose parameters can be gathered")
        if hasattr(tensor, "ds_id"):
            _deepspeed(name)
        elif tensor.device.type == "meta":
            _refuse(name, "is on the meta device and has no values", "load the weights first")
        elif tensor.numel() == 0:
            _refuse(name, "is empty here", "gather sharded parameters first, or watch before they are sharded")


@contextmanager
def gathered(name: str, tensor: Any) -> Iterator[Any]:
    """The whole tensor; every process must ask for it, in the same order."""
    check_present({name: tensor})
    if hasattr(tensor, "ds_id"):
        with _deepspeed(name).zero.GatheredParameters([tensor]):
            yield tensor.detach().clone()
    elif hasattr(tensor, "full_tensor"):
        yield tensor.detach().full_tensor()
    else:
        yield tensor


def is_sharded(tensor: Any) -> bool:
    """Whether processes must gather it together."""
    return hasattr(tensor, "ds_id") or hasattr(tensor, "full_tensor")


def _deepspeed(name: str) -> Any:
    try:
        import deepspeed  # pyright: ignore[reportMissingImports]
    except ImportError:
        _refuse(name, "is sharded by ZeRO-3 and DeepSpeed cannot be imported", "install deepspeed in this process")
    return deepspeed


def _refuse(name: str, state: str, hint: str) -> NoReturn:
    raise SaddlesError.about(f"the parameter {name} {state}", "whole parameters are measured", hint)
