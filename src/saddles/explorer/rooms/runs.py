"""The room of runs: trajectories on disk and recordings at work, alone or two side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from saddles.errors import SaddlesError
from saddles.explorer.room import Panel, Room
from saddles.explorer.rooms import plain, recording
from saddles.explorer.shelf import Shelf
from saddles.explorer.view import RefusedError, choice, number, text

MEASURES = {
    "stable_rank": "stable rank", "effective_rank": "effective rank", "energy_rank_90": "rank of 90 % of the energy",
    "energy_rank_99": "rank of 99 % of the energy", "frobenius_norm": "Frobenius norm",
}  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """A run, perhaps another beside it, and where to look in them."""

    run: str = text("run")
    other: str = text("beside it")
    instant: float = number(1.0, "instant", 0.0, 1.0, 0.01, "share of the saved instants that has passed", still=True)
    variable: str = text("variable", "of a trajectory; empty is chosen for you", still=True)
    at: str = text("other axes", "positions along further axes, such as seed=1; 0 where nothing is said", still=True)
    measure: str = choice("stable_rank", "rank of the heads' change", MEASURES, still=True)
    product: str = choice(
        "KQ", "product", {"KQ": "keys and queries, W_K W_Qᵀ", "VO": "values and outputs, W_V W_Oᵀ"}, still=True
    )
    layer: int = number(0, "layer", 0, 199, 1, still=True)
    head: int = number(0, "head", 0, 199, 1, still=True)


class Reader:
    """Opens runs of a shelf, and remembers the last few until they change."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._kept: dict[str, tuple[tuple[int, ...], dict[str, xr.Dataset]]] = {}

    def open(self, setting: str, name: str) -> dict[str, xr.Dataset]:
        """A run's trajectories by group."""
        try:
            stamp = self.shelf.stamp(name)
            held = self._kept.get(name)
            if held is None or held[0] != stamp:
                held = (stamp, self.shelf.open(name))
                self._kept = {**dict(list(self._kept.items())[-3:]), name: held}
        except SaddlesError as error:
            raise RefusedError(setting, str(error)) from error
        return held[1]

    def names(self) -> dict[str, str]:
        """The runs there are, in words."""
        return {"": "—"} | {one.name: one.words for one in self.shelf.list()}

    def stamp(self, view: Runs) -> Any:
        """Something that changes when an open run does."""
        return tuple(self.shelf.stamp(name) for name in (view.run, view.other) if name)

    def compute(self, view: Runs, draft: bool = False) -> dict[str, xr.Dataset]:
        """What was asked for: "run" and "other", each with its groups."""
        found = {}
        for setting in ("run", "other"):
            name = getattr(view, setting)
            if name:
                parts = self.open(setting, name)
                found |= {f"{setting}/{group}" if group else setting: data for group, data in parts.items()}
        return found

    def code(self, view: Runs) -> str:
        """The lines that open the same in Python."""
        lines = ["import saddles"]
        for setting in ("run", "other"):
            name = getattr(view, setting)
            if name:
                place = str(self.shelf.place(name))
                live = (self.shelf.place(name) / "rows").is_dir() and not (
                    self.shelf.place(name) / "trajectory.zarr"
                ).is_dir()
                lines.append(f"{setting} = saddles.{'probe.recorded' if live else 'load'}({place!r})")
        return "\n".join(lines) + "\n"


def check(view: Runs) -> None:
    """Nothing is computed here; sizes are checked when a run is opened."""


def _split(view: Runs, found: Mapping[str, xr.Dataset], setting: str) -> dict[str, xr.Dataset]:
    """One run's groups; a trajectory of lab `transformers` as the recording that it is made of."""
    parts = {key.partition("/")[2]: data for key, data in found.items() if key.partition("/")[0] == setting}
    if "" in parts and recording.is_of_lab(parts[""]):
        return {"heads": recording.of_lab(view, parts[""])}
    return parts


def panels(view: Runs, found: dict[str, xr.Dataset]) -> list[Panel]:
    """The panels of the run; with another, those of both in turns, so that they stand side by side."""
    first, second = (_panels(view, _split(view, found, setting), setting) for setting in ("run", "other"))
    if not second:
        return first
    longest = max(len(first), len(second))
    pairs = [(side[k] if k < len(side) else None) for k in range(longest) for side in (first, second)]
    return [panel for panel in pairs if panel is not None]


def _panels(view: Runs, parts: dict[str, xr.Dataset], setting: str) -> list[Panel]:
    if not parts:
        return []
    mark = {"run": "", "other": "beside: "}[setting]
    draw: Any = recording.panels if "heads" in parts else plain.panels
    return [replace(panel, title=mark + panel.title) for panel in draw(view, parts)]


def fit(view: Runs, found: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Which settings mean something for the runs that are open."""
    sides = [parts for parts in (_split(view, found, "run"), _split(view, found, "other")) if parts]
    heads = [parts["heads"] for parts in sides if "heads" in parts]
    others = [parts for parts in sides if "heads" not in parts]
    fitted: dict[str, Any] = {} if heads else dict.fromkeys(("measure", "product", "layer", "head"))
    for name in ("layer", "head") if heads else ():
        fitted[name] = max(min(data.sizes[name] for data in heads) - 1, 0)
    several = any(axis in data.coords for data in heads for axis in recording.RUNS)
    fitted |= {"variable": plain.names(others[0]) if others else None, "at": [] if others or several else None}
    return fitted if sides else fitted | {"instant": None}


def say(view: Runs, found: dict[str, xr.Dataset]) -> str:
    """What the runs are."""
    words = []
    for setting in ("run", "other"):
        parts = _split(view, found, setting)
        if parts:
            told = recording.say(view, parts) if "heads" in parts else plain.say(view, parts)
            words.append(told if setting == "run" else f"Beside it: {told}")
    return " ".join(words) or "Choose a run. Those in the folders named on the command line are listed."


def room(shelf: Shelf) -> Room:
    """The room over a shelf."""
    reader = Reader(shelf)
    return Room(
        "runs", "Runs", "Any trajectory on disk, and a training run while it is being recorded: ranks by layer and "
        "head, spectra over time, stages. Name folders on the command line: saddles explore runs/",
        Runs, check, reader.compute, panels, say, reader.code, moving="instant", fit=fit,
        lists={"run": reader.names, "other": reader.names}, stamp=reader.stamp,
    )  # fmt: skip
