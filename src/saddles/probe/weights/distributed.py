"""Checkpoints of torch.distributed.checkpoint (DCP): a folder with .metadata and parts called *.distcp.

torch's own reader finds and joins the parts of a tensor. It would open .metadata as a pickle that may run code; here
that file may name only the classes that DCP writes. The parts themselves are opened with `weights_only` by torch.
"""

import pickle
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from saddles.errors import SaddlesError

METADATA = ".metadata"
_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "builtins": {"set", "dict", "list", "tuple"},
}  # fmt: skip
"""What .metadata may name: data alone."""


class _Metadata(pickle.Unpickler):
    """Opens .metadata without running anything."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """torch's reader with metadata that was read before."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """What `.metadata` says."""
        return self._metadata


def tensors_in(folder: Path, nests: tuple[str, ...]) -> dict[str, tuple[str, tuple[int, ...], torch.dtype]]:
    """Tensors of the model in a folder: name -> (name in the folder, shape, type). The optimiser's are left out.

    Args:
        nests: keys under which training scripts keep the weights.
    """
    metadata = _metadata(folder)
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    found: dict[str, tuple[str, tuple[int, ...], torch.dtype]] = {}
    for stored, facts in metadata.state_dict_metadata.items():
        path = [str(part) for part in paths.get(stored, (stored,))]
        while len(path) > 1 and path[0] in nests:
            path = path[1:]
        if isinstance(facts, TensorStorageMetadata) and "optim" not in path[0]:
            found[".".join(path)] = (stored, tuple(facts.size), facts.properties.dtype)
    return found


def read_tensor(folder: Path, stored: str, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
    """One tensor, joined from its parts; nothing else is read."""
    whole = {stored: torch.empty(shape, dtype=kind)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a single process reads, which is meant
            load(whole, storage_reader=_Reader(folder, _metadata(folder)), no_dist=True)
    except Exception as error:  # whatever torch raises of parts that are missing or damaged
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SaddlesError(f"{stored} of {folder} cannot be read ({words}). Copy the checkpoint again.") from error
    return whole[stored]


def _metadata(folder: Path) -> Metadata:
    return _read_metadata(folder, (folder / METADATA).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_metadata(folder: Path, changed: int) -> Metadata:
    try:
        with (folder / METADATA).open("rb") as stream:
            metadata = _Metadata(stream).load()
        places = {Path(part.relative_path).name == str(part.relative_path) for part in metadata.storage_data.values()}
    except Exception as error:  # a pickle of anything else raises anything
        raise SaddlesError(
            f"{folder / METADATA} is not what torch.distributed.checkpoint writes ({error}), and was not opened."
        ) from error
    if not isinstance(metadata, Metadata) or False in places:
        raise SaddlesError(f"{folder / METADATA} points outside its folder. Do not trust it.")
    return metadata
