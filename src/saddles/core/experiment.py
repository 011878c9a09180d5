"""Experiments: a paper's figure or theorem as something that runs, is judged, and is drawn.

An experiment is a row of metadata and the name of a module with three functions:

    run(settings, context) -> Trajectory      # computes; context gives seeds and stores parts
    claims(trajectory, size) -> list[Claim]   # judges, from the trajectory alone
    figure(trajectory) -> matplotlib Figure   # draws, from the trajectory alone

A lab lists its experiments in `EXPERIMENTS` of its `experiments` package. Users' own come in
through `register` or through the entry point group `saddles.experiments`, each entry naming
a list of `Experiment`.
"""

import difflib
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from saddles.core.claim import Claim
from saddles.core.data import SETS
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError

LABS = ("linear", "diagonal", "concepts", "margin", "transformers", "diffusion")
"""Labs that ship with saddles, in the order of `saddles list`."""

SIZES = ("tiny", "laptop", "gpu", "paper")


@dataclass(frozen=True)
class Size:
    """Settings of an experiment at one size, and about how long they take on two cores (or one GPU)."""

    seconds: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """A row of the registry; see the module for what `module` must hold.

    `needs` lists data sets, or settings that hold one: a size with source="cifar10" needs it, one with source="made"
    or with a folder of the user's does not.

    `together` lists settings (and "seed") in which cells of a sweep may differ and still be computed by one program:
    the module then has run_many(settings, contexts) -> [Trajectory, ...], each with the bytes that `run` gives.
    """

    name: str
    title: str
    paper: str
    module: str
    sizes: Mapping[str, Size]
    default: str = "laptop"
    needs: tuple[str, ...] = ()
    together: tuple[str, ...] = ()

    @property
    def lab(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    def load(self) -> "ExperimentModule":
        """Import the module that computes, judges and draws."""
        return importlib.import_module(self.module)  # type: ignore[return-value]

    def data(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The data sets that must be at hand to run with these settings."""
        named = [name for name in self.needs if name not in settings]
        return (*named, *(settings[name] for name in self.needs if settings.get(name) in SETS))

    def settings(self, size: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of a size with some changed; unknown names and wrong types are refused."""
        if size not in self.sizes:
            raise SaddlesError.about(
                f"the size {size!r} came", f"{self.name} has {', '.join(self.sizes)}", "choose one of them"
            )
        settings = dict(self.sizes[size].settings)
        for key, value in (changes or {}).items():
            if key not in settings:
                raise SaddlesError.about(
                    f"the setting {key!r} came",
                    f"{self.name} has {', '.join(settings)}",
                    _closest(key, list(settings)),
                )
            settings[key] = _like(settings[key], value, key)
        return settings


class ExperimentModule(Protocol):
    """What an experiment's module holds."""

    run: Callable[[dict[str, Any], "Context"], Trajectory]
    claims: Callable[[Trajectory, str], list[Claim]]
    figure: Callable[[Trajectory], Any]


Store = Callable[[str, Callable[[], Trajectory]], Trajectory]
Folder = Callable[[str], Path | None]


def _compute(name: str, make: Callable[[], Trajectory]) -> Trajectory:
    return make()


def _nowhere(name: str) -> None:
    return None


@dataclass(frozen=True)
class Context:
    """What a running experiment is given besides its settings."""

    seed: int = 0
    size: str = "tiny"
    part: Store = field(default=_compute, repr=False)
    """part(name, make): a piece of the work, stored when done and not repeated on resume."""
    folder: Folder = field(default=_nowhere, repr=False)
    """folder(name): where a piece keeps checkpoints while it runs, removed at the end; None where nothing is kept."""

    def seeds(self, count: int) -> list[int]:
        """Independent seeds derived from the one given."""
        return [int(s) for s in np.random.SeedSequence(self.seed).generate_state(count)]


_own: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Add an experiment of your own to the registry of this process."""
    if experiment.name in registry():
        raise SaddlesError.about(f"{experiment.name} came", "that name is taken", "choose another")
    _own[experiment.name] = experiment
    return experiment


def registry() -> dict[str, Experiment]:
    """All experiments by name: those of the labs, of installed packages, and registered ones."""
    found: dict[str, Experiment] = {}
    for lab in LABS:
        rows: list[Experiment] = importlib.import_module(f"saddles.{lab}.experiments").EXPERIMENTS
        found |= {row.name: row for row in rows}
    for entry in importlib.metadata.entry_points(group="saddles.experiments"):
        found |= {row.name: row for row in entry.load()}
    return found | _own


def find(name: str) -> Experiment:
    """One experiment by name."""
    known = registry()
    if name not in known:
        raise SaddlesError.about(
            f"the experiment {name!r} came", "it is not in the registry", _closest(name, list(known), "`saddles list`")
        )
    return known[name]


def _closest(name: str, known: list[str], otherwise: str = "one of them") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}" if near else f"try {otherwise}"


def _like(example: Any, value: Any, key: str) -> Any:
    """Read a value (often text from the command line) as the type of the default."""
    try:
        if isinstance(example, bool):
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(example, int):
            number = float(value)
            if number != int(number):
                raise ValueError
            return int(number)
        if isinstance(example, float):
            return float(value)
        if isinstance(example, list | tuple):
            parts = value.split(",") if isinstance(value, str) else list(value)
            return [_like(example[0], part, key) for part in parts]
        return str(value)
    except (ValueError, KeyError, TypeError) as error:
        raise SaddlesError.about(
            f"{key}={value!r} came", f"a value like {example!r} is needed", f"write --set {key}={_shown(example)}"
        ) from error


def _shown(example: Any) -> str:
    return ",".join(map(str, example)) if isinstance(example, list | tuple) else str(example)
