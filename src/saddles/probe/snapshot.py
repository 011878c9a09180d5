"""Copies of watched weights that the training loop does not wait for.

On a GPU the weights are cloned where they are, at the speed of its memory, and a second stream
brings the clone into pinned memory while training goes on. On a CPU it is one copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saddles.probe.gathering import full_shape, gathered


@dataclass
class Buffers:
    """Memory for one copy of the watched weights, used over and over.

    Args:
        tensors: parameter name -> tensor on the CPU.
        arrived: the events after which they hold what was sent, one for each GPU.
    """

    tensors: dict[str, Any]
    arrived: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """Return when the copies have arrived."""
        while self.arrived:
            self.arrived.pop().synchronize()


def buffers_for(watched: Mapping[str, Any]) -> Buffers:
    """Memory for copies of these parameters, pinned where they are on a GPU."""
    import torch

    return Buffers(
        {
            name: torch.empty(full_shape(tensor), dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            for name, tensor in watched.items()
        }
    )


def send(watched: Mapping[str, Any], buffers: Buffers | None, streams: Mapping[Any, Any]) -> None:
    """Copy parameters into buffers, gathered where they are sharded; without buffers only take part in gathering."""
    import torch

    with torch.no_grad():
        for name, parameter in watched.items():
            with gathered(name, parameter) as whole:
                stream = streams.get(whole.device)
                if buffers is None:
                    continue
                if stream is None:
                    buffers.tensors[name].copy_(whole.detach())
                    continue
                held = whole.detach().clone()
                stream.wait_stream(torch.cuda.current_stream(held.device))
                with torch.cuda.stream(stream):
                    buffers.tensors[name].copy_(held, non_blocking=True)
                held.record_stream(stream)
        if buffers is not None:
            buffers.arrived = [stream.record_event() for stream in streams.values()]


def side_streams(watched: Mapping[str, Any]) -> dict[Any, Any]:
    """For each GPU that holds parameters, a stream for copies off it."""
    import torch

    devices = {tensor.device for tensor in watched.values() if tensor.device.type == "cuda"}
    return {device: torch.cuda.Stream(device) for device in devices}
