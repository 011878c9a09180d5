"""Copies of watched weights that the training loop does not wait for.

All weights of a copy lie in one block of memory. On a GPU they are gathered in a block of the same shape there, at the
speed of its memory, and a second stream brings that over while training goes on: a handful of calls, however many
weights there are. A block may be shared, so that another process reads it and nothing is sent.
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saddles.probe.weights.sharding import full_shape, gathered

LINE = 64
"""Bytes to whose multiples tensors are aligned."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a block."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    size: int

    def of(self, block: Any, begin: int = 0) -> Any:
        """The tensor in a block of bytes that begins there."""
        import torch

        part = block[self.start - begin : self.start - begin + self.size]
        return part.view(getattr(torch, self.kind)).view(self.shape)


def places_for(tensors: Mapping[str, Any]) -> list[Place]:
    """Room for tensors, those of one device side by side."""
    found, at = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: str(item[1].device)):
        shape, kind = full_shape(tensor), str(tensor.dtype).removeprefix("torch.")
        size = tensor.element_size()
        for side in shape:
            size *= side
        found.append(Place(name, shape, kind, at, size))
        at += -(-size // LINE) * LINE
    return found


@dataclass
class Buffers:
    """Memory for one copy of the watched weights, used over and over.

    Args:
        tensors: parameter name -> tensor on the CPU, all within `block`.
        block: the bytes.
        file: the descriptor of a shared block, to be inherited by another process.
        arrived: the events after which they hold what was sent, one for each GPU.
    """

    tensors: dict[str, Any]
    block: Any
    file: int | None = None
    arrived: list[Any] = field(default_factory=list)
    _pinned: bool = False

    def wait(self) -> None:
        """Return when the copies have arrived."""
        while self.arrived:
            self.arrived.pop().synchronize()

    def close(self) -> None:
        """Let go of what the system was asked for."""
        if self._pinned:
            _cuda().cudaHostUnregister(self.block.data_ptr())
            self._pinned = False
        if self.file is not None:
            os.close(self.file)
            self.file = None


def buffers_for(places: Sequence[Place], *, shared: bool = False, pinned: bool = False) -> Buffers:
    """Memory for copies, shared with a process and pinned for a GPU where that is asked for."""
    import torch

    size = max(1, places[-1].start + places[-1].size)
    if not shared:
        block = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return Buffers({place.name: place.of(block) for place in places}, block)
    file = os.memfd_create("saddles")
    os.ftruncate(file, size)
    block = mapped(file, size)
    held = pinned and int(_cuda().cudaHostRegister(block.data_ptr(), size, 0)) == 0
    return Buffers({place.name: place.of(block) for place in places}, block, file, _pinned=held)


def mapped(file: int, size: int) -> Any:
    """The bytes of a shared block."""
    import torch

    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


def _cuda() -> Any:
    import torch

    return torch.cuda.cudart()


class Courier:
    """Brings watched weights into buffers."""

    def __init__(self, watched: Mapping[str, Any]) -> None:
        self.watched = watched
        self.places = places_for(watched)
        devices = dict.fromkeys(tensor.device for tensor in watched.values() if tensor.device.type == "cuda")
        self._lanes = {
            device: _Lane(device, [p for p in self.places if watched[p.name].device == device]) for device in devices
        }

    @property
    def on_gpu(self) -> bool:
        """Whether any weight lies on a GPU."""
        return bool(self._lanes)

    def take_part(self) -> None:
        """Gather with the other processes, and keep nothing."""
        for _ in self._whole():
            pass

    def send(self, buffers: Buffers) -> None:
        """Copy the weights as they are now; those on a GPU are on their way when this returns."""
        for lane in self._lanes.values():
            lane.open()
        for place, tensor in self._whole():
            lane = self._lanes.get(tensor.device)
            (buffers.tensors[place.name] if lane is None else lane.tensors[place.name]).copy_(tensor)
        buffers.arrived = [lane.leave(buffers.block) for lane in self._lanes.values()]

    def _whole(self) -> Iterator[tuple[Place, Any]]:
        for place in self.places:
            with gathered(place.name, self.watched[place.name]) as whole:
                yield place, whole.detach()


class _Lane:
    """The way off one GPU: a block there, and a stream that brings it over."""

    def __init__(self, device: Any, places: Sequence[Place]) -> None:
        import torch

        self._begin, self._end = places[0].start, places[-1].start + places[-1].size
        self._block = torch.empty(self._end - self._begin, dtype=torch.uint8, device=device)
        self._device, self._stream = device, torch.cuda.Stream(device)
        self.tensors = {place.name: place.of(self._block, self._begin) for place in places}

    def open(self) -> None:
        """What is written from here on comes after the copy before has left, in the GPU's own order."""
        import torch

        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def leave(self, block: Any) -> Any:
        """Send the block on its way; the event tells of its arrival."""
        import torch

        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            block[self._begin : self._end].copy_(self._block, non_blocking=True)
        arrived = torch.cuda.Event(blocking=True)
        arrived.record(self._stream)
        return arrived
