"""What the experiments share: a run for every colour separation and seed, and all of them as one small trajectory.

Along `time`, in steps: `output` (time, separation, seed, point, coordinate), `accuracy` (the same, no coordinate), the
terms of the bound in bits per dimension and the ends of the schedule (time, separation, seed). `signal`
(separation, coordinate) are the differences of class means in pixels, `spread` the standard deviations of a concept
within its class in the same unit, `target` (coordinate) is where class 11 belongs.
`image` (instant, separation, point, row, column, channel) is the film strip of the first seed.
"""

import itertools
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saddles.core.experiment import Context
from saddles.core.trajectory import FINISHED, Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.runtime.packages import need_package

INSTANTS = 12
"""Pictures of a film strip."""
CURVES = ("diffusion", "latent", "reconstruction", "gamma_min", "gamma_max")


def run_all(name: str, settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once for every separation and seed; finished runs are parts, the one at work has a checkpoint."""
    need_package("torch", "torch")
    began = time.perf_counter()
    separations, seeds = settings["separations"], context.seeds(settings["seeds"])
    if not separations or sorted(set(separations)) != list(separations):
        raise SaddlesError.about(
            f"separations={separations} came", "different ones in ascending order are needed", "try 0.2,0.7"
        )
    prepared = _Prepared(settings)
    found = []
    for separation, seed in itertools.product(separations, seeds):
        label = f"separation-{separation:g}-seed-{seed}"
        title = f"{name}, run {len(found) + 1} of {len(separations) * len(seeds)}"
        folder = context.folder(label)
        found.append(context.part(label, partial(prepared.run, separation, seed, folder, title)))
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    circles = [prepared.circles(separation) for separation in separations]
    return together(found, circles, seeds, wall_time=time.perf_counter() - began)


class _Prepared:
    """Settings as objects; a classifier is made or found once a separation."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from saddles.diffusion import ClassifierPlan, Plan, UNetShape

        self.settings = settings
        self.shape = UNetShape(settings["side"], settings["channels"], settings["blocks"], settings["heads"])
        names = ("steps", "batch", "rate", "images", "evaluations")
        self.plan = Plan(**{name: settings[name] for name in names})
        self.classifier = ClassifierPlan(
            settings["classifier_channels"],
            settings["classifier_features"],
            settings["classifier_steps"],
            settings["classifier_batch"],
            held_out=settings["held_out"],
        )
        for separation in settings["separations"]:
            self.circles(separation)

    def circles(self, separation: float) -> Any:
        from saddles.diffusion import Circles

        names = ("size", "side", "colour_spread", "size_spread")
        return Circles(separation, **{name: self.settings[name] for name in names})

    def run(self, separation: float, seed: int, folder: Path | None, title: str) -> Trajectory:
        import torch

        from saddles.diffusion import Evaluation, concept_classifier, make_vdm, train

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        circles = self.circles(separation)
        classifier, _ = concept_classifier(circles, self.classifier, device=device)
        look = Evaluation(circles, classifier, self.settings["shown"], self.settings["sampling"], seed)
        model = make_vdm(self.shape, seed).to(device)
        store = self.settings["store"]
        return train(model, circles, look, self.plan, seed=seed, folder=folder, store_every=store, title=title)


def together(found: list[Trajectory], circles: list[Any], seeds: list[int], wall_time: float = 0.0) -> Trajectory:
    """One trajectory from all runs, separations first; those that stopped early are NaN from there on."""
    separations = [one.colour for one in circles]
    longest = max(found, key=lambda part: part.sizes["time"])
    times = longest["time"].values
    grid, runs = (len(separations), len(seeds)), ("separation", "seed")
    variables: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name in ("output", "accuracy", *CURVES):
        rows = np.stack([part[name].reindex(time=times).values for part in found])
        rows = np.moveaxis(rows.reshape(*grid, *rows.shape[1:]), 2, 0)
        dims = tuple(str(dim) for dim in found[0][name].dims[1:])
        variables[name] = (("time", *runs, *dims), rows)
    firsts = found[:: len(seeds)]
    places = np.unique(np.linspace(0, max(len(times) - 1, 0), INSTANTS).round().astype(int)) if len(times) else []
    pictures = [_pictures(part, places) for part in firsts]
    strip = ("instant", "separation", "point", "row", "column", "channel")
    variables["image"] = (strip, np.stack(pictures, axis=1).astype(np.uint8))
    variables["signal"] = (("separation", "coordinate"), np.array([one.signals() for one in circles]))
    variables["spread"] = (("separation", "coordinate"), np.array([one.spreads() for one in circles]))
    variables["target"] = (("coordinate",), np.ones(2))
    first = found[0]
    coords: dict[str, Any] = {"point": first["point"].values, "coordinate": first["coordinate"].values}
    coords |= {"separation": np.asarray(separations, dtype=float), "seed": seeds, "step": ("time", times.astype(int))}
    coords["instant"] = times[places].astype(int)
    status = next((part.attrs["status"] for part in found if part.attrs["status"] != FINISHED), FINISHED)
    return make_trajectory(
        variables,
        times,
        unit="step",
        coords=coords,
        status=status,
        wall_time=wall_time,
        gradient_evaluations=sum(part.attrs["gradient_evaluations"] for part in found),
        lab="diffusion",
        kind="recorded",
        method=first.attrs["method"],
    )


def _pictures(run: Trajectory, places: Any) -> np.ndarray:
    """Pictures at these evaluations, white where the run had stopped."""
    images = run["image"].values
    found = np.full((len(places), *images.shape[1:]), 255, dtype=np.uint8)
    there = [k for k, place in enumerate(places) if place < len(images)]
    found[there] = images[[places[k] for k in there]]
    return found
