"""Tensors of an adapter in files, one in memory at a time: set aside while others are made, and then written as one."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from saddles.runtime.files import explained

_METADATA = "__metadata__"


class SetAside(Mapping[str, Tensor]):
    """Tensors in files of a folder, each read when it is asked for.

    Args:
        folder: an empty one; whoever made it removes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Set some aside, each in a file of its own."""
        for name, tensor in tensors.items():
            self._files[name] = self._folder / f"{len(self._files)}.safetensors"
            with explained(self._folder), self._files[name].open("xb") as stream:
                write_tensors(stream, {name: tensor})

    def __getitem__(self, name: str) -> Tensor:
        """Read a tensor."""
        with safe_open(self._files[name], "pt") as stored:
            return stored.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of their arrival."""
        return iter(self._files)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._files)


def write_tensors(stream: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write what `safetensors.torch.save_file` would write, byte for byte, and hold one tensor at a time.

    Each is asked for twice: for its type and shape, which stand in front of all numbers, and for its numbers.
    """
    kinds = {name: (t.dtype, t.shape, t.numel() * t.element_size()) for name, t in tensors.items()}
    # The library says how types are called and in which order tensors lie; of empty ones, which take no memory.
    empty = save({name: torch.empty(0, dtype=kind) for name, (kind, _, _) in kinds.items()}, {"format": "pt"})
    header = json.loads(empty[8 : 8 + struct.unpack("<Q", empty[:8])[0]])
    names, end = [name for name in header if name != _METADATA], 0
    for name in names:
        _, shape, size = kinds[name]
        header[name] |= {"shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # safetensors begins its numbers at a multiple of 8 bytes, and fills the header up with blanks.
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        stream.write(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
