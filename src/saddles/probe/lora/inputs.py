"""What enters each module of a model on a text: the second moment C = E[x xᵀ], in bounded memory.

The expected square of a module's error on inputs x is E‖(ΔW − BA)x‖² = ‖(ΔW − BA)C^½‖²_F. C is summed in float64 from
blocks of inputs. Modules that are given the same tensor (queries, keys and values) share one. No more than `MEMORY`
bytes of second moments are held: the text passes through the model again for the modules that did not fit.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.sensitivity import Sensitivities

MEMORY = 2**31
"""Bytes of second moments that are held at once: 2 GiB are two inputs of width 11008, or sixteen of 4096."""

ROWS = 4096
"""Inputs that are in memory in float64 at once."""

Data = str | os.PathLike[str] | Tensor | Callable[[torch.nn.Module], object]
"""A text file, token ids (block, token), or a function that runs a model on data."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """A model and what it is run on.

    Attributes:
        model: the tuned model.
        run: passes all data through it.
        glance: passes some data through it, enough to see which modules share their input.
        words: what the data are.
        device: where sums are taken.
    """

    model: torch.nn.Module
    run: Callable[[torch.nn.Module], object]
    glance: Callable[[torch.nn.Module], object]
    words: str
    device: str = "cpu"

    def moments(self, modules: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Each module with its C, some modules at a time; C is 0 where the data do not reach it."""
        sharers = self._sharers(modules)
        for group in _groups({first: self._width(first) for first in sharers}):
            sums = {first: _Sum(self._width(first), self.device) for first in group}
            self._watch(self.run, {first: one.add for first, one in sums.items()})
            for first in group:
                # Taken out of the dictionary, so that its memory is free again before the next one is divided.
                mean = sums.pop(first).mean
                for module in sharers[first]:
                    yield module, mean

    def sensitivities(self, modules: Sequence[str]) -> dict[str, Tensor]:
        """D of each module (see `saddles.probe.lora.sensitivity`); none where the data do not allow gradients."""
        return Sensitivities(self.model, modules).over(self.run) or {}

    def _width(self, module: str) -> int:
        layer = self.model.get_submodule(module)
        weight = layer.weight
        assert isinstance(weight, Tensor)
        return int(weight.shape[0] if type(layer).__name__ == "Conv1D" else weight.shape[1])

    def _sharers(self, modules: Sequence[str]) -> dict[str, list[str]]:
        """First module -> all modules that are given the same tensors in every call."""
        seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        calls: dict[str, list[int]] = {module: [] for module in modules}

        def look(module: str) -> Callable[[Tensor], None]:
            def note(x: Tensor) -> None:
                known = seen.get(id(x))
                if known is None or known[0]() is not x:  # an id is given again once its tensor is gone
                    known = seen[id(x)] = (weakref.ref(x), len(calls[module]) + sum(map(len, calls.values())))
                calls[module].append(known[1])

            return note

        self._watch(self.glance, {module: look(module) for module in modules})
        by_calls: dict[tuple[object, ...], list[str]] = {}
        for module, numbers in calls.items():
            key = (tuple(numbers), self._width(module)) if numbers else (module,)
            by_calls.setdefault(key, []).append(module)
        return {group[0]: group for group in by_calls.values()}

    def _watch(self, run: Callable[[torch.nn.Module], object], notes: dict[str, Callable[[Tensor], None]]) -> None:
        """Run the model while a function is given the input of each of some modules."""

        def hook(note: Callable[[Tensor], None]) -> Callable[..., None]:
            def before(_module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
                x = args[0] if args else next(iter(kwargs.values()))
                assert isinstance(x, Tensor)
                note(x)

            return before

        handles = [
            self.model.get_submodule(module).register_forward_pre_hook(hook(note), with_kwargs=True)
            for module, note in notes.items()
        ]
        try:
            with torch.no_grad():
                run(self.model)
        finally:
            for handle in handles:
                handle.remove()


@dataclass(eq=False)
class _Sum:
    """Σ x xᵀ and how many inputs it has."""

    width: int
    device: str
    total: Tensor = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.total = torch.zeros(self.width, self.width, dtype=torch.float64, device=self.device)

    def add(self, x: Tensor) -> None:
        """Count the inputs of one call."""
        rows = x.detach().reshape(-1, self.width)
        for first in range(0, len(rows), ROWS):
            part = rows[first : first + ROWS].to(self.device, torch.float64)
            self.total.addmm_(part.T, part)
        self.count += len(rows)

    @property
    def mean(self) -> Tensor:
        """E[x xᵀ]."""
        if not bool(torch.isfinite(self.total).all()):
            raise SaddlesError("The tuned model computes numbers that are not finite on `data`.")
        return self.total / max(self.count, 1)


def _groups(widths: dict[str, int]) -> Iterator[list[str]]:
    """Modules whose second moments fit into memory together; one alone may be larger."""
    group: list[str] = []
    room = MEMORY
    for module, width in widths.items():
        size = 8 * width**2
        if group and size > room:
            yield group
            group, room = [], MEMORY
        group.append(module)
        room -= size
    if group:
        yield group
