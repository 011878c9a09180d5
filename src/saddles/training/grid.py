"""One training run for every point of a grid of settings and seeds, and all of them as one dataset."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import xarray as xr

from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.training import processes

Grid = Mapping[str, Sequence[float]]
"""Two axes of runs: a setting, then the seed."""

Train = Callable[[float, int, Path | None, str], Trajectory]
"""(setting, seed, folder for a checkpoint, title of the progress bar) -> the run."""


def run_grid(name: str, grid: Grid, context: Context, train: Train) -> list[Trajectory]:
    """Train once for every setting and seed.

    Finished runs are parts of the experiment, the one in progress has a checkpoint.

    Args:
        name: of the experiment, for the progress bar.
    """
    processes.join()
    runs: list[Trajectory] = []
    (axis, settings), (_, seeds) = grid.items()
    if not settings or len(set(settings)) < len(settings):
        raise SaddlesError.must_be(f"{axis}s", "one or more different numbers", list(settings))
    for setting, seed in itertools.product(settings, seeds):
        # All digits: settings that differ in the seventh one must not share a part.
        label = f"{axis}-{str(setting).removesuffix('.0')}-seed-{seed}"
        # All processes work with the folder of the first one, which is the one that writes.
        folder = processes.agreed(context.folder(label))
        title = f"{name}, run {len(runs) + 1} of {len(settings) * len(seeds)}"
        runs.append(context.part(label, partial(train, setting, int(seed), folder, title)))
        # The finished part is stored by now, so that the checkpoint of the run in progress is no longer needed.
        if folder is not None and processes.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return runs


def stack_runs(runs: Sequence[Trajectory], grid: Grid, fill: Mapping[str, float] | None = None) -> xr.Dataset:
    """Runs in the order of the grid as one dataset, the axes of the grid before those of a run.

    Args:
        fill: variable -> value after the end of a run that stopped early; NaN for all others.
    """
    axes = list(grid)
    width = len(grid[axes[1]])
    rows = [list(runs[at : at + width]) for at in range(0, len(runs), width)]
    # "override" takes what does not depend on the run from the first one, and "outer" the times of the longest.
    whole = xr.combine_nested(
        rows,
        concat_dim=axes,
        data_vars="all",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="drop",
        fill_value=dict(fill or {}),
    )
    return whole.assign_coords({axis: list(values) for axis, values in grid.items()}).transpose(*axes, ...)
