"""What the experiments share: a run for every scale and seed, and all of them as one small trajectory.

Along `time`: ranks, norm and noise floor of the change of every head (time, scale, seed, layer, head, product), losses,
accuracy and learning rate (time, scale, seed). Whole spectra are kept of the first seed and at no more than 24 steps,
spaced geometrically, along `instant`. Everything is float32: the probe's numbers are better than that, and files small.
"""

import itertools
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.experiment import Context
from saddles.core.trajectory import FINISHED, Trajectory, make_trajectory

RANKS = ("stable_rank", "effective_rank", "energy_rank_90", "energy_rank_99", "frobenius_norm", "noise_floor")
CURVES = ("train_loss", "test_loss", "test_accuracy", "rate")
INSTANTS = 24


@dataclass(frozen=True, eq=False)
class Setup:
    """One training run, ready to start."""

    model: Any
    feed: Any
    recipe: Any
    outputs: int
    """Classes, or words of the vocabulary."""


Prepare = Callable[[float, int], Setup]
"""(scale of the initialisation, seed) -> what is trained."""


def run_all(name: str, settings: dict[str, Any], context: Context, prepare: Prepare) -> Trajectory:
    """Train once for every scale and seed; finished runs are parts, the one at work has a checkpoint."""
    from saddles.training import processes

    began = time.perf_counter()
    processes.join()
    seeds, scales = context.seeds(settings["seeds"]), settings.get("scales", [1.0])
    found = []
    for scale, seed in itertools.product(scales, seeds):
        label = f"scale-{scale:g}-seed-{seed}"
        folder = processes.agreed(context.folder(label))
        title = f"{name}, run {len(found) + 1} of {len(scales) * len(seeds)}"
        found.append(context.part(label, partial(_run_one, settings, prepare, scale, seed, folder, title)))
        if folder is not None and processes.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if processes.rank():
        return xr.Dataset()
    whole = _together(found, scales, seeds)
    whole.attrs["wall_time_s"] = time.perf_counter() - began
    return whole


def _run_one(
    settings: dict[str, Any], prepare: Prepare, scale: float, seed: int, folder: Path | None, title: str
) -> Trajectory:
    from saddles.training import processes
    from saddles.transformers.training import train

    setup = prepare(scale, seed)
    every = min(settings["every"], setup.recipe.steps)
    tree = train(
        setup.model,
        setup.feed,
        setup.recipe,
        every=every,
        evaluate_every=every * settings["tests"],
        folder=folder,
        store_every=settings["store"],
        title=title,
    )
    if processes.rank():
        return xr.Dataset()
    heads = tree["heads"].to_dataset()
    heads.attrs |= {"outputs": setup.outputs, "steps_per_epoch": setup.feed.steps, "recipe": repr(setup.recipe)}
    return thinned(heads)


def thinned(heads: xr.Dataset) -> xr.Dataset:
    """Ranks at every measurement, spectra at a few, in single precision."""
    steps = heads["step"].values
    ideal = np.geomspace(steps[0], steps[-1], INSTANTS)
    places = np.unique(np.searchsorted(steps, ideal * (1 - 1e-9)))
    spectra = heads["singular_value"].isel(time=places).drop_vars(["time", "step", "epoch"]).rename(time="instant")
    kept = heads[[*RANKS, *CURVES, "initial_stable_rank", "initial_singular_value"]]
    kept = kept.assign(singular_value=spectra.assign_coords(instant=steps[places]))
    return kept.map(lambda variable: variable.astype(np.float32), keep_attrs=True).assign_attrs(heads.attrs)


def _together(found: list[Trajectory], scales: list[float], seeds: list[int]) -> Trajectory:
    """One trajectory from all runs; those that stopped early are NaN from there on."""
    longest = max(found, key=lambda part: part.sizes["time"])
    times, instants = longest["time"].values, longest["instant"].values
    parts = [part.drop_vars(["step", "epoch"]).reindex(time=times, instant=instants) for part in found]
    variables: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name in parts[0].data_vars:
        dims = tuple(str(dim) for dim in parts[0][name].dims)
        rows = np.stack([part[name].values for part in parts])
        rows = rows.reshape(len(scales), len(seeds), *rows.shape[1:])
        if name in ("singular_value", "initial_singular_value"):
            rows, runs = rows[:, 0], ("scale",)
        else:
            runs = ("scale", "seed")
        clock = dims[:1] if dims[:1] in (("time",), ("instant",)) else ()
        if clock:
            rows = np.moveaxis(rows, len(runs), 0)
        variables[str(name)] = ((*clock, *runs, *dims[len(clock) :]), rows)
    first = found[0]
    coords = {name: first[name] for name in ("layer", "head", "product", "attention", "rotary")}
    coords |= {"scale": np.asarray(scales, dtype=float), "seed": seeds, "instant": instants}
    coords |= {"step": ("time", times.astype(int)), "epoch": ("time", times / first.attrs["steps_per_epoch"])}
    status = next((part.attrs["status"] for part in found if part.attrs["status"] != FINISHED), FINISHED)
    return make_trajectory(
        variables,
        times,
        unit="step",
        coords=coords,
        status=status,
        lab="transformers",
        kind="recorded",
        outputs=first.attrs["outputs"],
        method=first.attrs["recipe"],
    )


def recipe_for(settings: dict[str, Any], optimiser: str, decay: str, steps_per_epoch: int) -> Any:
    """Epochs as steps."""
    from saddles.transformers.recipe import Recipe

    steps = max(1, math.ceil(settings["epochs"] * steps_per_epoch))
    warm_up = min(steps, round(settings["warm_up"] * steps_per_epoch))
    return Recipe(optimiser, settings["rate"], steps, warm_up, decay, settings["accumulate"])


def prepare_images(settings: dict[str, Any], optimiser: str) -> Prepare:
    """A ViT on images that fit into memory."""
    from saddles.training.processes import device
    from saddles.transformers.feed import ImageFeed
    from saddles.transformers.images import load_images
    from saddles.transformers.vit import ViTShape, make_vit

    images = load_images(settings["source"]).first(settings["train"] or None, settings["test"] or None)
    rows, _, channels = images.shape
    sizes = {name: settings[name] for name in ("patch", "width", "layers", "heads", "head_width", "hidden")}
    shape = ViTShape(side=rows, channels=channels, classes=images.classes, **sizes)

    def prepare(scale: float, seed: int) -> Setup:
        place = device()
        feed = ImageFeed(images, settings["batch"], seed, place, settings["pad"])
        recipe = recipe_for(settings, optimiser, "cosine", feed.steps)
        return Setup(make_vit(shape, scale, seed).to(place), feed, recipe, images.classes)

    return prepare
