"""The page of runs: trajectories on disk and recordings at work, alone or two side by side."""

from collections.abc import Mapping
from dataclasses import replace

import xarray as xr

from saddles.errors import SaddlesError
from saddles.explorer.page import Fit, Page, Panel, Results
from saddles.explorer.pages import recording_panels, trajectory_panels
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.run_details import details
from saddles.explorer.run_folders import RunFolders
from saddles.explorer.view import RefusedError

KEPT = 4
"""Open runs that a server remembers."""


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
        return tuple(self.folders.stamp(name) for name in (view.run, view.other) if name)

    def compute(self, view: Runs, draft: bool = False) -> Results:
        """The runs that are chosen: "run" and "other", each with its groups."""
        results = {}
        for setting, name in (("run", view.run), ("other", view.other)):
            parts = self.open(setting, name) if name else {}
            results |= {f"{setting}/{group}" if group else setting: data for group, data in parts.items()}
        return results

    def code(self, view: Runs) -> str:
        """The lines that open the same in Python."""
        lines = ["import saddles"]
        for setting, name in (("run", view.run), ("other", view.other)):
            if name:
                place = self.folders.place(name)
                live = (place / "rows").is_dir() and not (place / "trajectory.zarr").is_dir()
                lines.append(f"{setting} = saddles.{'probe.recorded' if live else 'load'}({str(place)!r})")
        return "\n".join(lines) + "\n"


def check(view: Runs) -> None:
    """Nothing is computed here; sizes are checked when a run is opened."""


def _split(view: Runs, results: Mapping[str, xr.Dataset], setting: str) -> Results:
    """One run's groups; a trajectory of lab `transformers` as the recording that it is made of."""
    parts = {key.partition("/")[2]: data for key, data in results.items() if key.partition("/")[0] == setting}
    if "" in parts and recording_panels.is_of_lab(parts[""]):
        return {"heads": recording_panels.of_lab(view, parts[""])}
    return parts


def panels(view: Runs, results: Results) -> list[Panel]:
    """The panels of the run; with another, those of both in turns, so that they stand side by side."""
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
    several = any(axis in data.coords for data in heads for axis in recording_panels.RUNS)
    fitted["variable"] = trajectory_panels.names(others[0]) if others else None
    fitted["at"] = [] if others or several else None
    return fitted if sides else fitted | {"instant": None}


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
        lists={"run": runs.names, "other": runs.names}, stamp=runs.stamp, opening=runs.newest, details=runs.details,
    )  # fmt: skip
