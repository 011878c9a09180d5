"""The page of runs: trajectories on disk and recordings at work, alone or two side by side."""

from collections.abc import Mapping
from dataclasses import replace

import xarray as xr

from saddles.errors import SaddlesError
from saddles.explorer.page import Fit, Page, Panel, Results
from saddles.explorer.pages import overlay_panels, recording_panels, trajectory_panels
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.run_details import details
from saddles.explorer.run_folders import RunFolders
from saddles.explorer.view import RefusedError, parted

KEPT = 12
"""Open runs that a server remembers."""
LAID = 7
"""Runs that are laid over another: with it, as many as there are colours to tell apart."""


class OpenRuns:
    """Opens runs in the named folders, and remembers the last few until they change."""

    def __init__(self, folders: RunFolders) -> None:
        self.folders = folders
        self._kept: dict[str, tuple[tuple[int, ...], Results]] = {}

    def open(self, setting: str, name: str) -> Results:
        """A run's trajectories by group."""
        try:
            stamp = self.folders.stamp(name)
            held = self._kept.get(name)
            if held is None or held[0] != stamp:
                held = (stamp, self.folders.open(name))
                self._kept = {**dict(list(self._kept.items())[1 - KEPT :]), name: held}
        except SaddlesError as error:
            raise RefusedError(setting, str(error)) from error
        return held[1]

    def names(self) -> dict[str, str]:
        """The runs there are, in words."""
        return {"": "—"} | {run.name: run.words for run in self.folders.list()}

    def newest(self) -> dict[str, str]:
        """The settings of the page that is opened without any: the run that changed last."""
        known = self.folders.list()
        return {"run": known[0].name} if known else {}

    def details(self, view: Runs) -> str:
        """What else is stored of the run, and all runs."""
        return details(self.folders, view.run)

    def stamp(self, view: Runs) -> tuple[tuple[int, ...], ...]:
        """Something that changes when an open run does."""
        return tuple(self.folders.stamp(name) for name in _named(view).values())

    def compute(self, view: Runs, draft: bool = False) -> Results:
        """The runs that are chosen, each with its groups: "run", "other", "over_1" and so on."""
        results = {}
        for key, name in _named(view).items():
            parts = self.open(key.partition("_")[0], name)
            results |= {f"{key}/{group}" if group else key: data for group, data in parts.items()}
        return results

    def code(self, view: Runs) -> str:
        """The lines that open the same in Python."""
        lines = ["import saddles"]
        for key, name in _named(view).items():
            place = self.folders.place(name)
            live = (place / "rows").is_dir() and not (place / "trajectory.zarr").is_dir()
            lines.append(f"{key} = saddles.{'probe.recorded' if live else 'load'}({str(place)!r})")
        return "\n".join(lines) + "\n"


def check(view: Runs) -> None:
    """Nothing is computed here; sizes are checked when a run is opened."""
    if len(parted(view.over)) > LAID:
        raise RefusedError("over", f"At most {LAID} runs are laid over another; got {len(parted(view.over))}.")


def _named(view: Runs) -> dict[str, str]:
    """The runs of a view, by their names in its results."""
    over = [name for name in parted(view.over) if name != view.run] if view.run else []
    named = {"run": view.run, "other": view.other} | {f"over_{k}": name for k, name in enumerate(over, 1)}
    return {key: name for key, name in named.items() if name}


def _split(view: Runs, results: Mapping[str, xr.Dataset], run: str) -> Results:
    """One run's groups; a trajectory of lab `transformers` as the recording that it is made of."""
    parts = {key.partition("/")[2]: data for key, data in results.items() if key.partition("/")[0] == run}
    if "" in parts and recording_panels.is_of_lab(parts[""]):
        return {"heads": recording_panels.of_lab(view, parts[""])}
    return parts


def panels(view: Runs, results: Results) -> list[Panel]:
    """All runs in one, where some are laid over the first; then its panels, in turns with those of the other."""
    named = _named(view)
    laid = {name: _split(view, results, key) for key, name in named.items() if key != "other"}
    return (overlay_panels.panels(view, laid) if len(laid) > 1 else []) + _beside(view, results)


def _beside(view: Runs, results: Results) -> list[Panel]:
    first, second = (_panels(view, _split(view, results, setting), setting) for setting in ("run", "other"))
    if not second:
        return first
    longest = max(len(first), len(second))
    pairs = [(side[k] if k < len(side) else None) for k in range(longest) for side in (first, second)]
    return [panel for panel in pairs if panel is not None]


def _panels(view: Runs, parts: Results, setting: str) -> list[Panel]:
    if not parts:
        return []
    mark = {"run": "", "other": "beside: "}[setting]
    kind = recording_panels if "heads" in parts else trajectory_panels
    return [replace(panel, title=mark + panel.title) for panel in kind.panels(view, parts)]


def fit(view: Runs, results: Results) -> dict[str, Fit]:
    """Which settings mean something for the runs that are open."""
    sides = [parts for parts in (_split(view, results, "run"), _split(view, results, "other")) if parts]
    heads = [parts["heads"] for parts in sides if "heads" in parts]
    others = [parts for parts in sides if "heads" not in parts]
    fitted: dict[str, Fit] = {} if heads else dict.fromkeys(("measure", "product", "layer", "head"), None)
    for name in ("layer", "head") if heads else ():
        fitted[name] = max(min(data.sizes[name] for data in heads) - 1, 0)
    fitted["variable"] = trajectory_panels.names(others[0]) if others else None
    fitted["at"] = _axes(view, results, others)
    moves = bool(heads) or any(trajectory_panels.moves(view, parts) for parts in others)
    return fitted if moves else fitted | {"instant": None}


def _axes(view: Runs, results: Results, others: list[Results]) -> dict[str, list[str]] | None:
    """The further axes of what is drawn; of runs of lab `transformers`, those of its runs."""
    of_lab = [data for key, data in results.items() if key in ("run", "other") and recording_panels.is_of_lab(data)]
    if others:
        data, name = trajectory_panels.chosen(view, others[0])
        return trajectory_panels.axes(data[name])
    return trajectory_panels.axes(of_lab[0], recording_panels.RUNS) if of_lab else None


def say(view: Runs, results: Results) -> str:
    """What the runs are."""
    words = []
    for setting in ("run", "other"):
        parts = _split(view, results, setting)
        if parts:
            told = (recording_panels if "heads" in parts else trajectory_panels).say(view, parts)
            words.append(told if setting == "run" else f"Beside it: {told}")
    return " ".join(words) or "Choose a run. Those in the folders named on the command line are listed."


def page(folders: RunFolders) -> Page[Runs]:
    """The page of the runs in some folders."""
    runs = OpenRuns(folders)
    return Page(
        "runs", "Runs", "Any trajectory on disk, and a training run while it is being recorded: ranks by layer and "
        "head, spectra over time, stages. Name folders on the command line: saddles explore runs/",
        Runs, check, runs.compute, panels, say, runs.code, moving="instant", fit=fit,
        lists=dict.fromkeys(("run", "other", "over"), runs.names), resets={"run": ("over", "variable", "at")},
        stamp=runs.stamp, opening=runs.newest, details=runs.details,
    )  # fmt: skip
