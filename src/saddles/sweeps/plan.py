"""What a sweep is: one experiment, its settings, a grid. Kept in sweep.json, from which it goes on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saddles.core import provenance
from saddles.core.experiment import Experiment, find
from saddles.core.trajectory import SCHEMA
from saddles.errors import SaddlesError
from saddles.sweeps.grid import Cell, Grid, read_grid


@dataclass(frozen=True)
class Plan:
    """A sweep before it runs. `settings` are those of the size with `changes`, before the grid changes them."""

    row: Experiment
    size: str
    settings: Mapping[str, Any]
    changes: Mapping[str, Any]
    grid: Grid
    versions: Mapping[str, str] = field(default_factory=provenance.versions)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of every cell."""
        return {
            "experiment": self.row.name,
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
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> Path:
        """Where the sweep is written unless another place is asked for."""
        return Path("runs") / self.row.name / f"sweep-{self.identity}"

    def cell_settings(self, cell: Cell) -> dict[str, Any]:
        """Settings of one cell."""
        return {**self.settings, **cell.changes}


def make_plan(row: Experiment, size: str, changes: Mapping[str, Any], grid: Grid) -> Plan:
    """A plan, where no setting is both fixed and varied."""
    both = sorted(set(changes) & set(grid.values))
    if both:
        raise SaddlesError.about(f"{both[0]} came as a setting and in the grid", "it is one of them", "leave one out")
    settings = row.settings(size, changes)
    fixed = {key: settings[key] for key in changes}
    return Plan(row, size, settings, fixed, grid)


def asked_for(
    name: str | None, words: Sequence[str], zipped: bool, seeds: str | None, size: str | None,
    changes: Mapping[str, Any], resume: Path | None,
) -> Plan | None:  # fmt: skip
    """The plan that a command line asks for; None where it only resumes one."""
    if name is None:
        if resume is None:
            raise SaddlesError.about(
                "neither LAB/NAME nor --resume came", "one of them is needed", "see `saddles list`"
            )
        if words or seeds is not None or size is not None or changes:
            raise SaddlesError.about(
                "--resume came with a grid or settings", "a sweep knows its own", "give --resume alone"
            )
        return None
    row = find(name)
    size = size or row.default
    row.settings(size, changes)
    return make_plan(row, size, changes, read_grid(row, size, words, zipped, seeds))


def read_plan(facts: Mapping[str, Any], row: Experiment | None = None) -> Plan:
    """The plan that a sweep.json holds, as it was."""
    grid = Grid(facts["grid"], facts["zipped"], facts["seeds"])
    return Plan(
        row or find(facts["experiment"]), facts["size"], facts["settings"], facts["changes"], grid, facts["versions"]
    )


def refuse_changes(plan: Plan, folder: Path) -> None:
    """Refuse to go on where the experiment's settings or the versions are no longer those of the plan."""
    now = plan.row.settings(plan.size, {k: v for k, v in plan.changes.items() if k in plan.settings})
    other = [key for key in {**now, **plan.settings} if now.get(key) != plan.settings.get(key)]
    if other:
        raise SaddlesError.about(
            f"{folder} was begun with {other[0]}={plan.settings.get(other[0])!r}",
            f"{plan.row.name} at size {plan.size} has {now.get(other[0])!r} now",
            "use --accept-changes to go on with the old settings, or begin anew with another --out",
        )
    differ = differences(plan.versions, provenance.versions())
    if differ:
        raise SaddlesError.about(
            f"{folder} was begun with {differ[0]}",
            f"this is {differ[1]}",
            "use --accept-changes to mix them, or begin anew with another --out",
        )


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str] | None:
    """Packages whose versions differ, in words for both sides, saddles first; None where none does."""
    names = [name for name in {"saddles": "", **before, **now} if before.get(name) != now.get(name)]
    if not names:
        return None
    old, new = (
        ", ".join(f"{name} {side.get(name, '(none)')}" for name in names[:4]) + (", …" if len(names) > 4 else "")
        for side in (before, now)
    )
    return old, new


def refuse_other_plan(asked: Plan, stored: Plan, folder: Path) -> None:
    """Refuse to go on in a folder with another grid or other settings than those asked for."""
    mine, theirs = asked.facts, stored.facts
    other = [name for name in mine if json.dumps(mine[name]) != json.dumps(theirs[name])]
    if other:
        name = other[0]
        raise SaddlesError.about(
            f"{name} {json.dumps(mine[name])} came",
            f"{folder} was begun with {json.dumps(theirs[name])}",
            "give --resume alone, or another --out",
        )
