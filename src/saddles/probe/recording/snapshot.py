"""Copies of recorded weights that the training loop does not wait for.

All weights of a copy lie in one block of memory. On a GPU they are first collected in a block of the same shape there,
at the speed of its memory, and a second stream transfers that block while training continues: a handful of calls,
however many weights there are. A block may be shared, so that another process reads it and nothing is sent.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saddles.probe.weights.live_model import check_types, full_shape, gathered, is_sharded

ALIGNMENT = 64
"""Bytes to whose multiples tensors are aligned: a cache line, and enough for every type of numbers."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a block: its first byte and its number of bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    size: int

    def view(self, block: Tensor, begin: int = 0) -> Tensor:
        """The tensor in a block of bytes whose first byte has the number `begin`."""
        part = block[self.start - begin : self.start - begin + self.size]
        return part.view(self.dtype).view(self.shape)


def places_for(tensors: Mapping[str, Tensor]) -> list[Place]:
    """Room for tensors, those of one device side by side."""
    places, at = [], 0
    # Side by side, so that one transfer per GPU takes them all.
    for name, tensor in sorted(tensors.items(), key=lambda item: str(item[1].device)):
        shape = full_shape(tensor)
        size = tensor.element_size() * math.prod(shape)
        places.append(Place(name, shape, tensor.dtype, at, size))
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return places


@dataclass
class Buffers:
    """Memory for one copy of the recorded weights, used over and over.

    Args:
        tensors: parameter name -> tensor on the CPU, all within `block`.
        block: the bytes.
        file: the descriptor of a shared block, to be inherited by another process.
        arrived: the events after which the copy is complete, one per GPU.
        whole: whether its spectra are wanted, and not the ranks alone.
    """

    tensors: dict[str, Tensor]
    block: Tensor
    file: int | None = None
    arrived: list[torch.cuda.Event] = field(default_factory=list)
    whole: bool = True
    _pinned: bool = False

    def wait(self) -> None:
        """Return when the copies have arrived."""
        while self.arrived:
            self.arrived.pop().synchronize()

    def close(self) -> None:
        """Release what the system lent."""
        if self._pinned:
            _cuda().cudaHostUnregister(self.block.data_ptr())
            self._pinned = False
        if self.file is not None:
            os.close(self.file)
            self.file = None


def buffers_for(places: Sequence[Place], *, shared: bool = False, pinned: bool = False) -> Buffers:
    """Memory for copies, if wanted shared with another process and pinned for a GPU."""
    size = size_of(places)
    if not shared:
        block = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return Buffers(views(places, block), block)
    file = os.memfd_create("saddles")
    # A new memfd has no bytes, and only existing ones can be mapped.
    os.ftruncate(file, size)
    block = mapped(file, size)
    # Memory of our own is pinned by registering it; where that is refused, copies are slower and still right.
    held = pinned and int(_cuda().cudaHostRegister(block.data_ptr(), size, 0)) == 0
    return Buffers(views(places, block), block, file, _pinned=held)


def size_of(places: Sequence[Place]) -> int:
    """Bytes of a block; at least one, since nothing cannot be mapped."""
    return max([1, *(place.start + place.size for place in places)])


def views(places: Sequence[Place], block: Tensor) -> dict[str, Tensor]:
    """All tensors in a block."""
    return {place.name: place.view(block) for place in places}


def mapped(file: int, size: int) -> Tensor:
    """The bytes of a shared block."""
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


def _cuda() -> Any:  # a module without type information
    return torch.cuda.cudart()


class Copier:
    """Copies recorded weights into buffers.

    Args:
        weights: the weights at the start, by name.
        find: gives the weights as they are now, by name: a parameter, or its module, may be replaced while a model
            trains. None takes those at the start.

    Attributes:
        places: where each weight lies in a buffer.
        devices: where each was at the start.
        lost: weights that the last copy could not hold, with the reason; their place holds NaN.
    """

    def __init__(self, weights: Mapping[str, Tensor], find: Callable[[], Mapping[str, Tensor]] | None = None) -> None:
        check_types(weights)
        self._find = find or (lambda: weights)
        self.places = places_for(weights)
        self.devices = {name: tensor.device for name, tensor in weights.items()}
        self.sharded = any(is_sharded(tensor) for tensor in weights.values())
        self.lost: dict[str, str] = {}
        self._transfers = {
            device: _Transfer(device, [p for p in self.places if self.devices[p.name] == device])
            for device in dict.fromkeys(self.devices.values())
            if device.type == "cuda"
        }

    @property
    def on_gpu(self) -> bool:
        """Whether any weight lies on a GPU."""
        return bool(self._transfers)

    def take_part(self) -> None:
        """Gather with the other processes what is sharded, and keep nothing."""
        for _ in self.gather() if self.sharded else ():
            pass

    def copy_to(self, buffers: Buffers) -> None:
        """Copy the weights as they are now; those on a GPU are on their way when this returns."""
        for transfer in self._transfers.values():
            transfer.wait_for_last()
        for place, tensor in self.gather():
            # By where it was at the start, since a transfer takes the whole block of its device.
            transfer = self._transfers.get(self.devices[place.name])
            (buffers.tensors[place.name] if transfer is None else transfer.tensors[place.name]).copy_(tensor)
        buffers.arrived = [transfer.start(buffers.block) for transfer in self._transfers.values()]

    def gather(self) -> Iterator[tuple[Place, Tensor]]:
        """The weights one by one, those that are sharded whole; every process must ask for them."""
        self.lost, now = {}, self._find()
        for place in self.places:
            tensor = now.get(place.name)
            if tensor is not None and full_shape(tensor) == place.shape:
                with gathered(place.name, tensor) as whole:
                    yield place, whole.detach()
                continue
            self.lost[place.name] = (
                f"{place.name} is no longer in the model"
                if tensor is None
                else f"{place.name} has shape {full_shape(tensor)} instead of {place.shape}"
            )
            yield place, torch.full((), torch.nan, device=self.devices[place.name]).expand(place.shape)


class _Transfer:
    """The way off one GPU: a block there, and a stream that copies it to the CPU."""

    def __init__(self, device: torch.device, places: Sequence[Place]) -> None:
        self._begin, self._end = places[0].start, places[-1].start + places[-1].size
        self._block = torch.empty(self._end - self._begin, dtype=torch.uint8, device=device)
        self._device, self._stream = device, torch.cuda.Stream(device)
        self.tensors = {place.name: place.view(self._block, self._begin) for place in places}

    def wait_for_last(self) -> None:
        """Make the GPU write to the block only after the last transfer has read it; nothing waits here."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def start(self, block: Tensor) -> torch.cuda.Event:
        """Begin to copy the block to the CPU, after what the GPU does now; the event follows its arrival."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            block[self._begin : self._end].copy_(self._block, non_blocking=True)
        # Blocking events let the waiting thread sleep; others spin, and take a core from the training loop.
        arrived = torch.cuda.Event(blocking=True)
        arrived.record(self._stream)
        return arrived
