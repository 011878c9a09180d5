"""Checkpoints of a training run: written whole or not at all, and refused where they do not fit."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.runtime.files import explained, new_file

Row = Mapping[str, float | Tensor]
"""What an observer saw at one measurement; tensors are on the CPU."""


@runtime_checkable
class Stateful(Protocol):
    """A model or an optimiser: something whose state can be taken and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Put back what `state_dict` gave."""
        ...


@dataclass
class History:
    """What a run has done and seen so far.

    Together with the state of model and optimiser this is all that an exact resume needs: what a step sees must be a
    function of its number.
    """

    step: int = 0
    """Steps taken."""
    losses: dict[int, list[float]] = field(default_factory=dict)
    """Step of a measurement -> means of the losses since the one before; not finite at the last one of a run that
    diverged."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Step of a measurement -> what the observer saw."""
    sums: Tensor | None = None
    """Losses since the last measurement, summed on the device."""
    since: int = 0
    """Steps since the last measurement."""

    def add(self, losses: Tensor) -> None:
        """Count a step with its losses, without waiting for the device."""
        # Cloned, because a CUDA graph overwrites its result in the next step.
        self.sums = losses.clone() if self.sums is None else self.sums.add_(losses)
        self.step, self.since = self.step + 1, self.since + 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where and how a run is stored.

    Args:
        file: None stores nothing.
        state: named models and optimisers that are stored with the history.
        run: describes the run; a checkpoint with another description is refused.
    """

    file: Path | None
    state: Mapping[str, Stateful]
    run: str = ""

    def store(self, history: History) -> None:
        """Write everything, all or nothing."""
        if self.file is not None:
            state = {name: part.state_dict() for name, part in self.state.items()}
            with explained(self.file):
                write_checkpoint({"run": self.run, "state": state} | _fields(history), self.file)

    def restore(self, device: torch.device) -> History:
        """Put back the stored state and return the history, an empty one where nothing is stored."""
        if self.file is None or not self.file.exists():
            return History()
        with _explain_misfit(self.file):
            # To the CPU first: the checkpoint may come from another device, and `load_state_dict` copies to where the
            # model is.
            stored = torch.load(self.file, map_location="cpu", weights_only=True)
            # Before anything is loaded, so that a refused checkpoint leaves model and optimiser as they are.
            if stored.pop("run") != self.run:
                raise ValueError("it belongs to another run")
            for name, state in stored.pop("state").items():
                self.state[name].load_state_dict(state)
            history = History(**stored)
            history.sums = None if history.sums is None else history.sums.to(device)
            return history


def write_checkpoint(state: Mapping[str, object], file: Path) -> None:
    """Write tensors and plain values, all or nothing."""
    with new_file(file) as stream:
        torch.save(dict(state), stream)


def _fields(history: History) -> dict[str, object]:
    """The history as plain values; asdict would copy every tensor."""
    return {part.name: getattr(history, part.name) for part in fields(history)}


@contextlib.contextmanager
def _explain_misfit(file: Path) -> Iterator[None]:
    """Say that a checkpoint does not fit, whatever breaks while it is read."""
    try:
        yield
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaddlesError(
            f"{file} does not fit this model ({why}). A run resumes with the settings and data it began "
            "with; to start anew, use --fresh."
        ) from error
