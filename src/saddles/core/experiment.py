"""Experiments: a paper's figure or theorem as something that runs, is judged, and is drawn.

    @dataclass(frozen=True)
    class Settings:
        dim: Annotated[int, "rows and columns of the matrix"]
        seeds: Annotated[int, "independent runs behind each claim"] = 3

    def run(settings: Settings, context: Context) -> Trajectory: ...      # computes
    def claims(trajectory: Trajectory, size: str) -> list[Claim]: ...     # judges, from the trajectory alone
    def figure(trajectory: Trajectory) -> Figure: ...                     # draws, from the trajectory alone

    EXPERIMENT = Experiment(
        "linear/early-stopping",
        "The test error is smallest on the way, not at the end",
        "tu2024mixed",
        sizes={"tiny": Size(3, Settings(dim=24)), "laptop": Size(10, Settings(dim=100))},
        run=run, claims=claims, figure=figure,
    )

A lab lists its experiments in `EXPERIMENTS` of its `experiments` package. Your own come in through `register`, or
through the entry point group `saddles.experiments`, each entry naming a list of `Experiment`. An entry that cannot be
loaded is left out, and `saddles list` says why.

Listing experiments must stay fast: a module that defines one imports labs and figures as lazy packages
(`from saddles import figures, linear`, then `linear.TwoLayer(...)`), not their modules, so that neither JAX nor
torch nor matplotlib is loaded before something runs.
"""

import dataclasses
import importlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, get_type_hints, runtime_checkable

import numpy as np
import xarray as xr

from saddles.core.claim import Claim
from saddles.core.data import SETS, find_data
from saddles.core.embedded import EMBEDDED
from saddles.core.settings import LARGEST as LARGEST
from saddles.core.settings import Within as Within
from saddles.core.settings import as_dict as as_dict
from saddles.core.settings import check_bounds, read_like
from saddles.core.trajectory import Trajectory
from saddles.core.validation import check_seed
from saddles.errors import SaddlesError, first_line
from saddles.runtime.code import code_digest

LABS = ("linear", "diagonal", "concepts", "margin", "incontext", "transformers", "diffusion", "networks")
"""Labs that ship with saddles, in the order of `saddles list`."""

SIZES = ("tiny", "laptop", "gpu", "paper")
NAME = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w-]*", re.ASCII)
"""A folder of runs has this name."""

S = TypeVar("S")
"""An experiment's settings: a frozen dataclass whose fields are documented with `Annotated[type, "what it is"]`."""


@dataclass(frozen=True)
class Size(Generic[S]):
    """Settings of an experiment at one size, and about how long one waits for its command on two cores (or one GPU).

    `without_data` are the settings that change where the data set is not at hand, such as {"source": "digits"}: data
    that every machine has take its place.
    """

    seconds: float
    settings: S
    without_data: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Drawing(Protocol):
    """What `figure` returns: a matplotlib figure, or anything that can save itself."""

    def savefig(self, fname: Any, **options: Any) -> None:  # as matplotlib declares it
        """Write the picture."""
        ...


Part = Callable[[str, Callable[[], Trajectory]], Trajectory]
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
    part: Part = field(default=_compute, repr=False)
    """part(name, make): a piece of the work, stored when done and not repeated on resume."""
    folder: Folder = field(default=_nowhere, repr=False)
    """folder(name): where a piece keeps checkpoints while it runs, removed at the end; None where nothing is kept."""

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def seeds(self, count: int) -> list[int]:
        """Independent seeds derived from the one given."""
        return [int(s) for s in np.random.SeedSequence(self.seed).generate_state(count)]


@dataclass(frozen=True, eq=False)
class Experiment(Generic[S]):
    """An experiment; the module's docstring shows one.

    Args:
        name: lab/name, as it is written on the command line.
        title: one line for lists.
        paper: key of the paper in docs/references.bib.
        sizes: settings at each of some SIZES; all have the same fields: numbers, text, truth values, lists of them.
        run: run(settings, context) computes; called through `compute`.
        claims: claims(trajectory, size) judges; called through `judge`.
        figure: figure(trajectory) draws; called through `draw`.
        default: the size that is run where none is given.
        needs: data sets, or names of settings that hold one: a size with source="cifar10" needs it, one with
            source="made" or with a folder of the user's does not.
        together: settings (and "seed") in which cells of a sweep may differ and still be computed by one program.
        run_many: run_many(list of settings, list of contexts) does that; each result has the bytes that `run` gives.
    """

    name: str
    title: str
    paper: str
    sizes: Mapping[str, Size[S]]
    run: Callable[[S, Context], Trajectory]
    claims: Callable[[Trajectory, str], list[Claim]]
    figure: Callable[[Trajectory], Drawing]
    default: str = ""
    needs: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    run_many: Callable[[list[S], list[Context]], list[Trajectory]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SaddlesError.must_be("name", "LAB/NAME, of letters, digits, - and _", self.name)
        for what in ("run", "claims", "figure"):
            if not callable(getattr(self, what)):
                raise SaddlesError.must_be(what, f"a function, in {self.name}", getattr(self, what))
        rows = self.sizes.values() if isinstance(self.sizes, Mapping) else ()
        if not rows or not all(isinstance(given, Size) for given in rows):
            raise SaddlesError.must_be("sizes", f"a dictionary of names and Sizes, in {self.name}", self.sizes)
        for size, given in self.sizes.items():
            if size not in SIZES:
                raise SaddlesError.must_be("sizes", f"named {', '.join(SIZES)}, in {self.name}", size)
            settings = given.settings
            if isinstance(settings, type) or not (dataclasses.is_dataclass(settings) or isinstance(settings, dict)):
                raise SaddlesError.must_be("settings", f"a dataclass, in {self.name}", settings)
            for key, value in as_dict(settings).items():
                try:
                    json.dumps(value)
                except (TypeError, ValueError) as error:
                    what = f"a number, text, a truth value or a list of them, in {self.name}"
                    raise SaddlesError.must_be(key, what, value) from error
        if not self.default:
            object.__setattr__(self, "default", "laptop" if "laptop" in self.sizes else next(iter(self.sizes)))
        if self.default not in self.sizes:
            raise SaddlesError.must_be("default", f"a size of {self.name} ({', '.join(self.sizes)})", self.default)

    @property
    def lab(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def shipped(self) -> bool:
        """Whether it is one of saddles: a mistake in it is a bug of ours."""
        return self.module.startswith("saddles.")

    @property
    def module(self) -> str:
        """The module that defines `run`; `__main__` in a notebook."""
        function = self.run
        while isinstance(function, partial):
            function = function.func
        return str(getattr(function, "__module__", ""))

    @property
    def code(self) -> str:
        """Characters that stand for its code, where it is not one of saddles: an edited one has other results."""
        kind = type(self.sizes[self.default].settings)
        return "" if self.shipped else code_digest(self.run, self.claims, self.figure, self.run_many, kind)

    def compute(self, settings: S, context: Context) -> Trajectory:
        """Call `run`; what it returns must be a trajectory."""
        found = self.run(settings, context)
        if not isinstance(found, xr.Dataset | xr.DataTree):
            raise self._returns("run", "a trajectory (`saddles.trajectory` makes one)", found)
        return found

    def judge(self, trajectory: Trajectory, size: str) -> list[Claim]:
        """Call `claims`; what it returns must be a list of claims."""
        found = self.claims(trajectory, size)
        if not isinstance(found, list | tuple) or not all(isinstance(claim, Claim) for claim in found):
            raise self._returns("claims", "a list of claims (`saddles.core.claim.check` makes one)", found)
        return list(found)

    def draw(self, trajectory: Trajectory) -> Drawing:
        """Call `figure`; what it returns must be a figure."""
        found = self.figure(trajectory)
        if not isinstance(found, Drawing):
            raise self._returns("figure", "a figure (an object with `savefig`)", found)
        return found

    def _returns(self, name: str, what: str, got: object) -> SaddlesError:
        return SaddlesError(f"`{name}` of {self.name} must return {what}; got a {type(got).__name__}.")

    def settings(self, size: str, changes: Mapping[str, Any] | None = None) -> S:
        """The settings of a size with some changed; unknown names and wrong types are refused.

        Args:
            changes: name -> value; text (from the command line) is read as the type of the setting.
        """
        if size not in self.sizes:
            raise SaddlesError.must_be("size", f"one of {', '.join(self.sizes)} for {self.name}", size)
        if changes is not None and not isinstance(changes, Mapping):
            raise SaddlesError.must_be("changes", "a dictionary such as {'dim': 50}", changes)
        base = self.sizes[size].settings
        values, typed = as_dict(base), dict[str, Any]()
        for key, value in (changes or {}).items():
            if key not in values:
                raise SaddlesError.unknown("setting", key, values, of=self.name)
            hint, usual = self._hints().get(key), [as_dict(given.settings)[key] for given in self.sizes.values()]
            read = read_like(values[key], value, key, hint)
            within = next((mark for mark in self._marks(key) if isinstance(mark, Within)), None)
            check_bounds(key, read, usual, hint, within)
            # 2.0 for a setting that is 2 already is no change, and names the same run.
            typed[key] = values[key] if read == values[key] else read
        return {**base, **typed} if isinstance(base, dict) else dataclasses.replace(base, **typed)  # type: ignore[type-var, return-value]

    def fallback(self, size: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What changes, besides `changes`, because a data set is not at hand; {} where it is or was chosen."""
        changes = changes or {}
        places = find_data()
        missing = [name for name in self.data(self.settings(size, changes)) if places.get(name) is None]
        if not missing or any(name in changes for name in self.needs):
            return {}
        return {key: value for key, value in self.sizes[size].without_data.items() if key not in changes}

    def at_hand(self, size: str, changes: Mapping[str, Any] | None = None) -> S:
        """The settings of a size with some changed, and with embedded data where its own are not at hand."""
        return self.settings(size, {**self.fallback(size, changes), **(changes or {})})

    def embedded(self, settings: S) -> tuple[str, ...]:
        """The data sets of `saddles.core.embedded` that these settings use."""
        values = as_dict(settings)
        return tuple(values[name] for name in self.needs if values.get(name) in EMBEDDED)

    def instead(self, size: str, settings: S) -> str:
        """A sentence where these settings use embedded data in place of the size's own; "" where they do not."""
        usual, mine = self.data(self.sizes[size].settings), self.embedded(settings)
        if not usual or not mine or self.data(settings):
            return ""
        return f"{', '.join(f'{name} ({EMBEDDED[name]})' for name in mine)} instead of {', '.join(usual)}."

    def documentation(self) -> dict[str, str]:
        """Setting -> what it is."""
        names = as_dict(next(iter(self.sizes.values())).settings)
        return {name: str(next(iter(self._marks(name)), "")) for name in names}

    def _hints(self) -> dict[str, Any]:
        """Annotations of the settings, with what `Annotated` says of them."""
        kind = type(next(iter(self.sizes.values())).settings)
        try:
            return get_type_hints(kind, include_extras=True) if dataclasses.is_dataclass(kind) else {}
        except NameError as error:  # text that names what only a function knows
            raise SaddlesError(
                f"The annotations of {kind.__name__}, the settings of {self.name}, cannot be read: {error}. "
                "Define what they name outside of any function."
            ) from error

    def _marks(self, key: str) -> tuple[object, ...]:
        """What `Annotated` says of a setting."""
        return getattr(self._hints().get(key), "__metadata__", ())

    def data(self, settings: S) -> tuple[str, ...]:
        """The data sets that must be at hand to run with these settings."""
        values = as_dict(settings)
        named = [name for name in self.needs if name not in values]
        return (*named, *(values[name] for name in self.needs if values.get(name) in SETS))


_own: dict[str, Experiment[Any]] = {}


def register(experiment: Experiment[S]) -> Experiment[S]:
    """Add an experiment of your own to the registry of this process.

    Registered once more by its own module, or in the notebook, it takes the place of its older self. A name that
    another module or package has is refused.
    """
    if not isinstance(experiment, Experiment):
        raise SaddlesError.must_be("experiment", "an Experiment", experiment)
    taken = registry().get(experiment.name)
    if taken is not None and (experiment.name not in _own or taken.module != experiment.module):
        raise SaddlesError(
            f"An experiment named {experiment.name!r} exists already, in {taken.module}. Choose another name."
        )
    _own[experiment.name] = experiment
    return experiment


def registered_here(name: str) -> bool:
    """Whether an experiment is known to this process alone."""
    return name in _own


def registry() -> dict[str, Experiment[Any]]:
    """All experiments by name: those of the labs, of installed packages, and registered ones."""
    return _shipped() | _installed()[0] | _own


def left_out() -> tuple[str, ...]:
    """A sentence for each entry point of an installed package whose experiments cannot be used."""
    return _installed()[1]


def _shipped() -> dict[str, Experiment[Any]]:
    known: dict[str, Experiment[Any]] = {}
    for lab in LABS:
        rows: Sequence[Experiment[Any]] = importlib.import_module(f"saddles.{lab}.experiments").EXPERIMENTS
        known |= {row.name: row for row in rows}
    return known


@cache  # a module that cannot be imported would be tried again at every look
def _installed() -> tuple[dict[str, Experiment[Any]], tuple[str, ...]]:
    """Experiments of installed packages, and a sentence for each entry point that gives none."""
    known: dict[str, Experiment[Any]] = {}
    wrong = []
    for entry in importlib.metadata.entry_points(group="saddles.experiments"):
        try:
            rows = entry.load()
            reason = _misfit(rows, {**_shipped(), **known})
        except (Exception, SystemExit) as error:  # code of others: one broken package must not take the rest down
            words = str(error) if isinstance(error, SaddlesError) else f"{type(error).__name__}: {first_line(error)}"
            rows, reason = [], words.removesuffix(".")
        if reason:
            whose = f"the package {entry.dist.name}" if entry.dist is not None else "an installed package"
            entry_point = f"entry point `{entry.name} = {entry.value}`"
            wrong.append(f"The experiments of {whose} ({entry_point}) are left out: {reason}.")
        else:
            known |= {row.name: row for row in rows}
    return known, tuple(wrong)


def _misfit(rows: object, taken: Mapping[str, Experiment[Any]]) -> str:
    """Why this is not a list of new experiments; "" where it is."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Experiment) for row in rows):
        return f"it must name a list of Experiment; got a {type(rows).__name__}"
    names = [row.name for row in rows]
    twice = next((name for name in names if name in taken or names.count(name) > 1), None)
    return "" if twice is None else f"an experiment named {twice!r} exists already"


def chosen(labs: Sequence[str]) -> list[Experiment[Any]]:
    """The experiments of some labs, of all where none is named."""
    rows = list(registry().values())
    names = sorted({row.lab for row in rows})
    for lab in labs:
        if lab not in names:
            raise _unknown("lab", lab, names)
    return [row for row in rows if not labs or row.lab in labs]


def find(name: str | Experiment[Any]) -> Experiment[Any]:
    """One experiment by name; one that is given itself is it."""
    if isinstance(name, Experiment):
        return name
    if not isinstance(name, str):
        raise SaddlesError.must_be("experiment", "an Experiment or the name of one", name)
    known = registry()
    if any(row.lab == name for row in known.values()):
        raise SaddlesError(f"{name!r} is a lab. Give one of its experiments; `saddles list {name}` shows them.")
    if name not in known:
        raise _unknown("experiment", name, known, "`saddles list` shows all of them.")
    return known[name]


def _unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> SaddlesError:
    """The usual sentence, and which packages are left out: the name may be one of theirs."""
    return SaddlesError(" ".join([str(SaddlesError.unknown(kind, name, known, otherwise)), *left_out()]))
