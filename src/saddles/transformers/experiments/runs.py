"""What the experiments share: settings, a run for every scale and seed, and all of them as one small trajectory.

Along `time`: ranks, norm and noise floor of the change of every head (time, scale, seed, layer, head, product), losses,
accuracy and learning rate (time, scale, seed). Whole spectra are kept of the first seed and at no more than 24 steps,
spaced geometrically, along `instant`; of every seed the leading singular values there, and by how much the last
spectrum exceeds the initial one. Everything is float32: the probe's numbers are better than that, and files small.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import figures, training, transformers
from saddles.core.experiment import LARGEST, Context, Drawing, Within
from saddles.core.status import Status, status_of
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.runtime.packages import need_package

PAPER = "boix2023rank"
RANKS = ("stable_rank", "effective_rank", "energy_rank_90", "energy_rank_99", "frobenius_norm", "noise_floor")
CURVES = ("train_loss", "test_loss", "test_accuracy", "rate")
SPECTRA = ("singular_value", "initial_singular_value")
INSTANTS = 24
"""Most steps at which whole spectra are kept."""
LEADING = 5
"""Singular values that are kept of every seed."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of every training run here."""

    source: Annotated[
        str,
        "data set, folder or file to train on; digits and python are built in, hf:NAME downloads, made is synthetic",
    ]
    epochs: Annotated[float, "passes through the training data"]
    batch: Annotated[int, "samples per step"]
    rate: Annotated[float, "highest learning rate"]
    warm_up: Annotated[float, "epochs of warm-up, in which the learning rate grows linearly", Within(0, LARGEST)]
    every: Annotated[int, "steps from one measurement of the heads to the next"]
    tests: Annotated[int, "measurements from one test to the next"] = 1
    spectra: Annotated[int, "measurements from one whole spectrum to the next; between them stable ranks alone"] = 1
    accumulate: Annotated[int, "parts that a batch is split into, to save memory"] = 1
    clip: Annotated[float, "gradients longer than this are shortened to it; 0 leaves all as they are"] = 0.0
    seeds: Annotated[int, "independent runs behind each claim"] = 1
    store: Annotated[float, "seconds from one checkpoint to the next", Within(0, LARGEST)] = 60.0

    def recipe(self, optimiser: str, decay: str, steps_per_epoch: int) -> "transformers.Recipe":
        """The recipe, with epochs as steps."""
        if not self.epochs > 0:
            raise SaddlesError.must_be("epochs", "positive", self.epochs)
        steps = max(1, math.ceil(self.epochs * steps_per_epoch))
        warm_up = min(steps, round(self.warm_up * steps_per_epoch))
        clip = self.clip or math.inf
        return transformers.Recipe(optimiser, self.rate, steps, warm_up, decay, self.accumulate, clip)


Prepare = Callable[[float, int], "transformers.Setup"]
"""(scale of the initialisation, seed) -> what is trained, on the device of this process."""


def train_all(
    name: str, settings: Training, context: Context, prepare: Prepare, scales: tuple[float, ...] = (1.0,)
) -> Trajectory:
    """Train once for every scale and seed."""
    began = time.perf_counter()
    grid = {"scale": scales, "seed": context.seeds(settings.seeds)}

    def train(scale: float, seed: int, folder: Path | None, title: str) -> Trajectory:
        return _train(settings, prepare(scale, seed), folder, title)

    runs = training.run_grid(name, grid, context, train)
    if training.processes.rank():
        return xr.Dataset()
    whole = _together(runs, grid)
    whole.attrs["wall_time_s"] = time.perf_counter() - began
    return whole


def need_torch() -> None:
    """Refuse to start where torch or transformers is missing."""
    need_package("torch", "probe")
    need_package("transformers", "probe")


def _train(settings: Training, setup: "transformers.Setup", folder: Path | None, title: str) -> Trajectory:
    every = min(settings.every, setup.recipe.steps)
    tree = transformers.train(
        setup.model,
        setup.feed,
        setup.recipe,
        every=every,
        spectra=every * settings.spectra,
        evaluate_every=every * settings.tests,
        folder=folder,
        store_every=settings.store,
        title=title,
    )
    if training.processes.rank():
        return xr.Dataset()
    heads = tree["heads"].to_dataset()
    heads.attrs |= {"outputs": setup.outputs, "steps_per_epoch": setup.feed.steps, "recipe": repr(setup.recipe)}
    heads.attrs["trained_on"] = getattr(setup.feed, "data", "")
    return thinned(heads)


def thinned(heads: xr.Dataset) -> xr.Dataset:
    """Ranks at every measurement, spectra at a few, in single precision."""
    steps = heads["step"].values
    spectra = heads["singular_value"]
    there = np.flatnonzero(spectra.notnull().any([axis for axis in spectra.dims if axis != "time"]).values)
    if not there.size:  # a run that diverged before its first spectrum, or with it
        there = np.arange(len(steps))
    ideal = np.geomspace(steps[there[0]], steps[there[-1]], INSTANTS)
    # A little less than ideal, so that rounding in geomspace does not skip the measurement that is meant.
    places = there[np.unique(np.searchsorted(steps[there], ideal * (1 - 1e-9)))]
    spectra = spectra.isel(time=places).drop_vars(["time", "step", "epoch"]).rename(time="instant")
    kept = heads[[*RANKS, *CURVES, "initial_stable_rank", "initial_singular_value"]]
    spectra = spectra.assign_coords(instant=steps[places])
    leading = spectra.isel(index=slice(LEADING)).drop_vars("index", errors="ignore").rename(index="leading")
    excess = spectrum_excess(spectra.isel(instant=-1, drop=True), heads["initial_singular_value"])
    kept = kept.assign(singular_value=spectra, leading_singular_value=leading, spectrum_excess=excess)
    return kept.map(lambda variable: variable.astype(np.float32), keep_attrs=True).assign_attrs(heads.attrs)


def spectrum_excess(end: xr.DataArray, first: xr.DataArray) -> xr.DataArray:
    """By how much σ_i/σ_1 of the change exceeds that of the initial product at most, mean over the heads of a layer."""
    values, begun = (one / one.isel(index=0) for one in (end, first))
    # beyond the head's dimension the initial product has rounding errors for singular values
    inside = (begun > 1e-5).all([axis for axis in begun.dims if axis != "index"])
    gap = (values - begun).mean("head", skipna=False).where(inside)
    return gap.isel(index=slice(1, None)).max("index")  # both are 1 at the first index


def _together(runs: list[Trajectory], grid: Mapping[str, Sequence[float]]) -> Trajectory:
    """One trajectory from all runs; those that stopped early are NaN from there on."""
    first = runs[0]
    whole = training.stack_runs([run.drop_vars(["step", "epoch"]) for run in runs], grid)
    whole = whole.assign({name: whole[name].isel(seed=0, drop=True) for name in SPECTRA})
    whole = whole.transpose("time", "instant", ..., missing_dims="ignore")
    # Scales may be trained in any order, for instance a random one; figures have the largest first, as the paper has.
    whole = whole.sortby("scale", ascending=False)
    times = whole["time"].values
    coords = {name: whole[name] for name in ("layer", "head", "product", "attention", "rotary", *grid, "instant")}
    coords |= {"step": ("time", times.astype(int)), "epoch": ("time", times / first.attrs["steps_per_epoch"])}
    return make_trajectory(
        {str(name): (tuple(map(str, variable.dims)), variable.values) for name, variable in whole.items()},
        times,
        unit="step",
        coords=coords,
        status=Status.all_of(map(status_of, runs)),
        lab="transformers",
        kind="recorded",
        outputs=first.attrs["outputs"],
        method=first.attrs["recipe"],
        trained_on="; ".join(dict.fromkeys(run.attrs["trained_on"] for run in runs)),
    )


def growth_figure(trajectory: Trajectory) -> Drawing:
    """Ranks by layer, spectra, loss and accuracy."""
    return figures.transformers.growth(trajectory)
