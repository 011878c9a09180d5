"""Checkpoints of torch.distributed.checkpoint, written by one process."""

import warnings
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save


def write(tensors: Mapping[str, Any], place: Path) -> None:
    """Write a checkpoint without looking for other processes; torch before 2.7 sees by itself that there are none."""
    alone: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(save).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.6 warns that it is alone, and of its own storages
        save(dict(tensors), storage_writer=FileSystemWriter(place), **alone)
