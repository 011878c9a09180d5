"""Checkpoints of torch.distributed.checkpoint (DCP): a folder with .metadata and parts called *.distcp.

torch's own reader finds and joins the parts of a tensor. It would open .metadata as a pickle that may run code. Here
that file may name only the classes that DCP writes, and gets none of them: records stand in their places, from which
the metadata is built anew, with every value checked. The parts themselves are opened with `weights_only` by torch.
"""

import collections
import math
import pickle
import warnings
from collections.abc import Mapping
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load

from saddles.errors import SaddlesError, first_line, shown

METADATA = ".metadata"
_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(load).parameters else {}
"""This process reads by itself; torch 2.6 does so wherever processes are not joined to a group."""
Shape = tuple[int, ...]


class _Record:
    """Stands for an object that .metadata describes: what it was made from, and its state."""

    def __init__(self, *made_from: object) -> None:
        self.made_from = made_from
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        """A pickle that wants to change a class or a function calls this without an object, which fails."""
        self.made_from = ()
        self.state = state


def _records(*names: str) -> dict[str, object]:
    return {name: type(name, (_Record,), {}) for name in names}


_KNOWN: Mapping[str, Mapping[str, object]] = {
    "torch.distributed.checkpoint.metadata": _records(
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": _records("_StorageInfo"),
    "torch.serialization": _records("_get_layout"),
    "torch": {"Size": tuple}
    | {name: kind for name in dir(torch) if isinstance(kind := getattr(torch, name), torch.dtype)},
    "collections": {"OrderedDict": collections.OrderedDict, "defaultdict": collections.defaultdict},
    "pathlib": _records("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),
    "pathlib._local": _records("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),  # Python 3.13
    "builtins": {"set": set, "dict": dict, "list": list, "tuple": tuple},
}  # fmt: skip
"""What .metadata may name, and what it gets: nothing that can be changed, and nothing that acts."""


class _Unpickler(pickle.Unpickler):
    """Opens .metadata without running anything."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get(module, {})
        if name not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[name]


class _Reader(FileSystemReader):
    """torch's reader with metadata that was read before."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """What `.metadata` says."""
        return self._metadata


def tensors_in(folder: Path, nests: tuple[str, ...]) -> dict[str, tuple[str, Shape, torch.dtype]]:
    """Tensors of the model in a folder: name -> (name in the folder, shape, type). The optimiser's are left out.

    Args:
        nests: keys under which training scripts keep the weights.
    """
    metadata = _metadata(folder)
    found: dict[str, tuple[str, Shape, torch.dtype]] = {}
    for stored, facts in metadata.state_dict_metadata.items():
        path = [str(part) for part in metadata.planner_data.get(stored, ())] or [stored]
        while len(path) > 1 and path[0] in nests:
            path = path[1:]
        if isinstance(facts, TensorStorageMetadata) and "optim" not in path[0]:
            found[".".join(path)] = (stored, tuple(facts.size), facts.properties.dtype)
    return found


def read_tensor(folder: Path, stored: str, shape: Shape, kind: torch.dtype) -> Tensor:
    """One tensor, joined from its parts; nothing else is read."""
    parts = {folder / place.relative_path for place in _metadata(folder).storage_data.values()}
    there = sum(part.stat().st_size for part in parts if part.is_file())
    if math.prod(shape) * kind.itemsize > there:
        raise SaddlesError(
            f"{stored} of {folder} would be larger than all parts together. Copy the checkpoint again, with all parts."
        )
    # Numbers that no part holds are NaN, which every measurement refuses.
    whole = {stored: torch.full(shape, math.nan if kind.is_floating_point or kind.is_complex else 0, dtype=kind)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a single process reads, which is meant
            load(whole, storage_reader=_Reader(folder, _metadata(folder)), **_ALONE)
    except CheckpointException as error:  # no Exception in torch; it says which process failed, and why
        raise _unreadable(folder, stored, next(iter(error.failures.values()))[0]) from error
    except Exception as error:  # whatever torch raises of parts that are missing or damaged
        raise _unreadable(folder, stored, error) from error
    return whole[stored]


def _unreadable(folder: Path, stored: str, error: BaseException) -> SaddlesError:
    return SaddlesError(f"{stored} of {folder} cannot be read ({first_line(error)}). Copy the checkpoint again.")


def _metadata(folder: Path) -> Metadata:
    return _read_metadata(folder, (folder / METADATA).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_metadata(folder: Path, changed: int) -> Metadata:
    try:
        with (folder / METADATA).open("rb") as stream:
            facts = _state(_Unpickler(stream).load(), "Metadata")
        tensors = {_text(name): _tensor(row) for name, row in _items(facts.get("state_dict_metadata"))}
        paths = {_text(name): _path(path) for name, path in _items(facts.get("planner_data") or {})}
        places = {_index(key): _place(row) for key, row in _items(facts.get("storage_data"))}
    except SaddlesError:
        raise
    except Exception as error:  # a pickle of anything else raises anything
        raise SaddlesError(
            f"{folder / METADATA} is not what torch.distributed.checkpoint writes ({first_line(error)}), "
            "and was not opened."
        ) from error
    for place in places.values():
        if Path(place.relative_path).name != place.relative_path or "\\" in place.relative_path:
            raise SaddlesError(f"{folder / METADATA} points outside its folder. Do not trust it.")
    kept = {name: row for name, row in tensors.items() if row is not None}
    return Metadata(state_dict_metadata=dict(kept), planner_data=paths, storage_data=places)


def _tensor(row: object) -> TensorStorageMetadata | None:
    """A tensor, all of whose numbers are in its parts; None for anything else, such as a count of steps."""
    if type(row).__name__ == "BytesStorageMetadata":
        return None
    facts = _state(row, "TensorStorageMetadata")
    size = _shape(facts["size"])
    properties = facts["properties"].state
    kind = properties[0] if isinstance(properties, tuple) else properties["dtype"]
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{shown(kind)} is not a type of numbers")
    chunks = [_chunk(part, size) for part in facts["chunks"]]
    if sum(math.prod(part.sizes) for part in chunks) < math.prod(size):
        raise ValueError("the parts of a tensor are smaller than it")
    return TensorStorageMetadata(TensorProperties(dtype=kind), size, chunks)


def _chunk(part: object, size: torch.Size) -> ChunkStorageMetadata:
    facts = _state(part, "ChunkStorageMetadata")
    offsets, sizes = _shape(facts["offsets"]), _shape(facts["sizes"])
    if not len(offsets) == len(sizes) == len(size) or any(
        first + length > whole for first, length, whole in zip(offsets, sizes, size, strict=True)
    ):
        raise ValueError("a part lies outside its tensor")
    return ChunkStorageMetadata(offsets=offsets, sizes=sizes)


def _index(key: object) -> MetadataIndex:
    facts = _state(key, "MetadataIndex")
    offset, number = facts.get("offset"), facts.get("index")  # absent where None
    return MetadataIndex(
        _text(facts["fqn"]), None if offset is None else _shape(offset), None if number is None else _whole(number)
    )


def _place(row: object) -> _StorageInfo:
    facts = _state(row, "_StorageInfo")
    steps = facts.get("transform_descriptors")
    known = () if steps is None else ([_text(step) for step in steps],)  # unknown to torch 2.6
    return _StorageInfo(_text(facts["relative_path"]), _whole(facts["offset"]), _whole(facts["length"]), *known)


def _state(record: object, name: str) -> dict[Any, Any]:
    if type(record).__name__ != name or not isinstance(record, _Record) or not isinstance(record.state, dict):
        raise ValueError(f"{name} is missing where it must be")
    return record.state


def _items(value: object) -> list[tuple[object, object]]:
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a dictionary")
    return list(value.items())


def _path(value: object) -> tuple[str | int, ...]:
    parts = value if isinstance(value, tuple | list) else ()
    if not parts or not all(isinstance(part, str | int) for part in parts):
        raise ValueError(f"{shown(value)} is not the path of a tensor")
    return tuple(parts)


def _shape(value: object) -> torch.Size:
    if not isinstance(value, tuple | list):
        raise ValueError(f"{shown(value)} is not a shape")
    return torch.Size([_whole(one) for one in value])


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError(f"{shown(value)} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{shown(value)} is not a name")
    return value
