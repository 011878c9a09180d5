"""Grids: the settings and seeds of a sweep, and how they are written on a command line.

key=from:to:count        equally spaced, both ends included
key=log:from:to:count    equally spaced in the logarithm
key=a,b,c                a list; lists of lists are separated by semicolons: dims=16,24;24,36
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np

from saddles.core.experiment import Experiment, as_dict
from saddles.core.validation import LABELS, is_whole
from saddles.errors import SaddlesError

ZIPPED = "point"
"""The axis of grids whose values are taken side by side."""

SEED = "seed"

MOST_CELLS = 10**6
"""Cells of one sweep: each takes about 1 kB of memory and a line on disk, and a larger grid is usually a mistake."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid: its number in row-major order, its place on the axes, its settings and its seed."""

    number: int
    place: tuple[int, ...]
    changes: Mapping[str, object]
    seed: int


@dataclass(frozen=True)
class Grid:
    """Values of some settings, as a product or side by side, and seeds.

    Args:
        values: setting -> its values.
        zipped: the first values together, then the second ones, and so on: one axis `point`.
        seeds: a further axis `seed`; None is seed 0 without an axis.
    """

    values: Mapping[str, Sequence[object]]
    zipped: bool = False
    seeds: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _refuse_many(math.prod(self.axes.values()) if self.values or self.seeds is not None else 0)
        if not self.values and self.seeds is None:
            raise SaddlesError("The grid is empty. Give a setting to vary, for instance --grid dim=20,40, or --seeds.")
        for name, values in {**self.values, **({SEED: self.seeds} if self.seeds is not None else {})}.items():
            if not len(values):
                raise SaddlesError(f"The grid has no value for {name}. Give at least one: {name}=1,2.")
            if len({_shown(value) for value in values}) < len(values):
                raise SaddlesError(f"The grid has a value of {name} twice. Each value must be given once.")
        if self.zipped and len({len(values) for values in self.values.values()}) > 1:
            counts = ", ".join(f"{len(values)} of {name}" for name, values in self.values.items())
            raise SaddlesError(f"With --zip all settings must have the same number of values; got {counts}.")

    @property
    def axes(self) -> dict[str, int]:
        """Name and length of each axis, outermost first."""
        if self.zipped and self.values:
            sizes = {ZIPPED: len(next(iter(self.values.values())))}
        else:
            sizes = {name: len(values) for name, values in self.values.items()}
        return sizes | ({SEED: len(self.seeds)} if self.seeds is not None else {})

    @property
    def coordinates(self) -> dict[str, tuple[str, np.ndarray]]:
        """Name -> (axis, labels); settings that are lists are labelled by their text."""
        labels = {
            name: (ZIPPED if self.zipped else name, np.array([_label(value) for value in values]))
            for name, values in self.values.items()
        }
        return labels | ({SEED: (SEED, np.array(self.seeds))} if self.seeds is not None else {})

    def cells(self) -> list[Cell]:
        """Every cell, in row-major order."""
        cells = []
        for number, place in enumerate(itertools.product(*(range(size) for size in self.axes.values()))):
            at = dict(zip(self.axes, place, strict=True))
            changes = {name: values[at[ZIPPED if self.zipped else name]] for name, values in self.values.items()}
            cells.append(Cell(number, place, changes, 0 if self.seeds is None else self.seeds[at[SEED]]))
        return cells


def _refuse_many(cells: int) -> None:
    if cells > MOST_CELLS:
        raise SaddlesError(
            f"The grid must have at most {MOST_CELLS:,} cells; got {cells:,}. Take fewer values or seeds, or several "
            "sweeps."
        )


def _label(value: object) -> object:
    return _shown(value) if isinstance(value, list | tuple) else value


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def spaced(start: float, end: float, count: int, log: bool = False) -> list[float]:
    """Equally spaced numbers, both ends included, to twelve digits: 0.3 and not 0.30000000000000004."""
    if log and not (start > 0 and end > 0):
        raise SaddlesError(f"Both ends of a logarithmic grid must be positive; got {start:g} and {end:g}.")
    _refuse_many(count)
    numbers = np.geomspace(start, end, count) if log else np.linspace(start, end, count)
    return [float(f"{number:.12g}") for number in numbers]


def read_grid(
    experiment: Experiment, size: str, words: Sequence[str], zipped: bool = False, seeds: str | None = None
) -> Grid:
    """A grid from the words of a command line, checked against the settings of an experiment."""
    values: dict[str, list[object]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SaddlesError.must_be("--grid", "key=values, for instance dim=20:100:5", word)
        if key in values:
            raise SaddlesError(f"--grid {key} is given twice. Put all its values in one list.")
        values[key] = _values(key, text)
    return checked_grid(experiment, size, values, zipped, None if seeds is None else _seeds(seeds))


def checked_grid(
    experiment: Experiment,
    size: str,
    values: Mapping[str, object],
    zipped: bool,
    seeds: int | Sequence[int] | None,
) -> Grid:
    """A grid whose values have the types of the experiment's settings; unknown settings are refused."""
    several = None if seeds is None else _several(seeds)
    listed = {key: _listed(key, given) for key, given in values.items()}
    _refuse_many(1 if zipped else math.prod(len(given) for given in listed.values()))  # before they are looked at
    typed = {
        key: [as_dict(experiment.settings(size, {key: value}))[key] for value in given] for key, given in listed.items()
    }
    return Grid(typed, zipped, several)


def _several(seeds: object) -> list[int]:
    """Seeds from how many there are, or from a list."""
    if is_whole(seeds):
        if seeds < 1:
            raise SaddlesError.must_be("seeds", "at least 1", seeds, "Leave it out for seed 0")
        _refuse_many(int(seeds))
        return list(range(seeds))
    if getattr(seeds, "ndim", 0) == 1:  # arrays, columns of a table
        seeds = np.asarray(seeds).tolist()
    if not isinstance(seeds, Sequence) or isinstance(seeds, str):
        raise SaddlesError.must_be("seeds", "a whole number, or a list of them", seeds)
    _refuse_many(len(seeds))
    if not all(is_whole(seed) and 0 <= seed < LABELS for seed in seeds):
        raise SaddlesError.must_be("seeds", "whole numbers from 0 to 2⁶³ − 1", list(seeds))
    return [int(seed) for seed in seeds]


def _listed(key: str, given: object) -> list[object]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SaddlesError.must_be(f"grid[{key!r}]", "a list of values", given, f"Write [{given!r}]")
    values = list(itertools.islice(given, MOST_CELLS + 1))
    _refuse_many(len(given) if isinstance(given, Sized) else len(values))
    return values


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError as error:
        raise SaddlesError.must_be("--seeds", "a number such as 5 or a list such as 3,7,11", text) from error


def _values(key: str, text: str) -> list[object]:
    if ";" in text:
        return [part for part in text.split(";") if part]
    log = text.startswith("log:")
    parts = text.removeprefix("log:").split(":")
    if len(parts) == 1 and not log:
        return [part for part in text.split(",") if part]
    try:
        start, end, count = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3 or count < 0 or not (math.isfinite(start) and math.isfinite(end)):
            raise ValueError
    except (ValueError, IndexError) as error:
        raise SaddlesError(
            f"--grid {key} must be from:to:count, log:from:to:count or a,b,c; got {text!r}. For instance {key}=0:1:5."
        ) from error
    return list(spaced(start, end, count, log))
