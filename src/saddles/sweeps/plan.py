"""What a sweep is: one experiment, its settings, a grid. Stored in sweep.json, from which it is resumed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saddles.core import provenance
from saddles.core.experiment import Experiment, as_dict, find
from saddles.core.provenance import differences
from saddles.core.trajectory import SCHEMA
from saddles.errors import SaddlesError
from saddles.runtime.records import check_types
from saddles.sweeps.grid import Cell, Grid, read_grid


@dataclass(frozen=True)
class Plan:
    """A sweep before it runs. `settings` are those of the size with `changes`, before the grid changes them."""

    experiment: Experiment
    size: str
    settings: Mapping[str, object]
    changes: Mapping[str, object]
    grid: Grid
    versions: Mapping[str, str] = field(default_factory=provenance.versions)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of every cell."""
        return {
            "experiment": self.experiment.name,
            "size": self.size,
            "settings": dict(self.settings),
            "changes": dict(self.changes),
            "grid": {name: list(values) for name, values in self.grid.values.items()},
            "zipped": self.grid.zipped,
            "seeds": None if self.grid.seeds is None else list(self.grid.seeds),
        }

    @property
    def identity(self) -> str:
        """Ten characters that stand for what would be computed."""
        facts = self.facts | {"schema": SCHEMA, "version": self.versions["saddles"]}
        if code := self.experiment.code:
            facts["code"] = code
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> Path:
        """Where the sweep is written unless another place is given."""
        return Path("runs") / self.experiment.name / f"sweep-{self.identity}"

    def cell_settings(self, cell: Cell) -> object:
        """Settings of one cell, as the experiment's `run` takes them."""
        now = stored(self.experiment.settings(self.size))
        planned = {key: value for key, value in self.settings.items() if key not in now or not same(value, now[key])}
        return self.experiment.settings(self.size, {**planned, **cell.changes})


def stored(settings: object) -> dict[str, Any]:
    """Settings as sweep.json gives them back: tuples are lists."""
    return json.loads(json.dumps(as_dict(settings)))


def same(one: object, other: object) -> bool:
    """Whether two settings are stored alike; NaN is, although it does not equal itself."""
    return json.dumps(one) == json.dumps(other)


def make_plan(experiment: Experiment, size: str, changes: Mapping[str, object], grid: Grid) -> Plan:
    """A plan, where no setting is both fixed and varied."""
    both = sorted(set(changes) & set(grid.values))
    if both:
        raise SaddlesError(f"`{both[0]}` is given both as a setting and in the grid. Leave one of them out.")
    varied = {key: values[0] for key, values in grid.values.items()}
    changes = {**experiment.fallback(size, {**changes, **varied}), **changes}
    settings = stored(experiment.settings(size, changes))
    return Plan(experiment, size, settings, {key: settings[key] for key in changes}, grid)


def plan_from_words(
    name: str | None, words: Sequence[str], zipped: bool, seeds: str | None, size: str | None,
    changes: Mapping[str, object], resume: Path | None,
) -> Plan | None:  # fmt: skip
    """The plan that a command line describes; None where it only resumes a sweep."""
    if name is None:
        if resume is None:
            raise SaddlesError("Give LAB/NAME (`saddles list` shows them) or --resume.")
        if words or seeds is not None or size is not None or changes:
            raise SaddlesError("A sweep that is resumed has its own grid and settings. Give --resume alone.")
        return None
    experiment = find(name)
    size = size or experiment.default
    experiment.settings(size, changes)
    return make_plan(experiment, size, changes, read_grid(experiment, size, words, zipped, seeds))


def read_plan(facts: Mapping[str, Any], experiment: Experiment | None = None) -> Plan:
    """The plan that a sweep.json holds, as it was."""
    seeds, hint = facts["seeds"] or [], "Restore sweep.json from a copy, or start the sweep again"
    check_types(facts["grid"], dict.fromkeys(facts["grid"], list), "`grid` of sweep.json", hint)
    check_types({str(k): seed for k, seed in enumerate(seeds)}, {str(k): int for k in range(len(seeds))},
                "`seeds` of sweep.json", hint)  # fmt: skip
    return Plan(
        experiment or find(facts["experiment"]), facts["size"], facts["settings"], facts["changes"],
        Grid(facts["grid"], facts["zipped"], facts["seeds"]), facts["versions"],
    )  # fmt: skip


def refuse_changes(plan: Plan, folder: Path) -> None:
    """Refuse to resume where the experiment's settings or the versions are no longer those of the plan."""
    changes = {key: value for key, value in plan.changes.items() if key in plan.settings}
    now = stored(plan.experiment.settings(plan.size, changes))
    other = [key for key in {**now, **plan.settings} if not same(now.get(key), plan.settings.get(key))]
    if other:
        raise SaddlesError(
            f"{folder} was started with {other[0]}={plan.settings.get(other[0])!r}; {plan.experiment.name} at size "
            f"{plan.size} now has {now.get(other[0])!r}. Resume with the old settings with --accept-changes, or start "
            "again with another --out."
        )
    differ = differences(plan.versions, provenance.versions())
    if differ:
        raise SaddlesError(
            f"{folder} was started with {differ[0]}; this is {differ[1]}. Mix them with --accept-changes, or start "
            "again with another --out."
        )


def refuse_other_plan(asked: Plan, begun: Plan, folder: Path) -> None:
    """Refuse to resume a folder with another grid or other settings than those it was started with."""
    mine, theirs = asked.facts, begun.facts
    other = [name for name in mine if not same(mine[name], theirs[name])]
    if other:
        name = other[0]
        raise SaddlesError(
            f"{folder} was started with {name} {json.dumps(theirs[name])}; got {json.dumps(mine[name])}. "
            "Give --resume alone, or another --out."
        )
