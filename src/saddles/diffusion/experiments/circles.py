"""Concept learning in a diffusion model: Figures 6a (order and speed), 6b (transient memorisation), 6c (slowing down).

A run for every colour separation and seed, all of them as one small trajectory. Along `time`, in steps: `output`
(time, separation, seed, point, coordinate), `accuracy` (the same, no coordinate), the terms of the bound in bits per
dimension and the ends of the schedule (time, separation, seed). `signal` (separation, coordinate) are the differences
of class means in pixels, `spread` the standard deviations of a concept within its class in the same unit, `target`
(coordinate) is where class 11 belongs. `image` (instant, separation, point, row, column, channel) is the film strip of
the first seed. Thresholds of the claims are explained in `verdicts`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from saddles import diffusion, figures, training
from saddles.core.claim import Claim
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.status import Status, status_of
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diffusion.experiments.verdicts import PAPER, memorisation_claims, order_claims, slowing_claims
from saddles.errors import SaddlesError
from saddles.runtime.packages import need_package

INSTANTS = 12
"""Pictures of a film strip."""
WHITE = 255
"""Pictures after the end of a run that stopped early."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A diffusion model on images of circles; the defaults are the paper's."""

    separations: Annotated[tuple[float, ...], "differences of the colours, ascending, one run per difference and seed"]
    size: Annotated[float, "difference of the diameters, as a share of the image's side"] = 0.4
    side: Annotated[int, "pixels along the side of an image"] = 32
    colour_spread: Annotated[
        float, "how far a colour lies from its mean, as a share of the difference", Within(0, LARGEST)
    ] = 0.125
    size_spread: Annotated[
        float, "how far a diameter lies from its mean, as a share of the difference", Within(0, LARGEST)
    ] = 0.375
    channels: Annotated[tuple[int, ...], "channels of the U-Net's levels"] = (64, 128, 256)
    blocks: Annotated[int, "residual blocks per level"] = 2
    heads: Annotated[int, "heads of the attention"] = 4
    steps: Annotated[int, "training steps"] = 20_000
    batch: Annotated[int, "images per step"] = 128
    rate: Annotated[float, "learning rate"] = 1e-3
    images: Annotated[int, "images per class in the training set"] = 2048
    evaluations: Annotated[int, "evaluations, equally spaced in the square root of the step"] = 60
    every: Annotated[int, "steps between further evaluations; 0 for none"] = 0
    until: Annotated[int, "the last step of the further evaluations"] = 2000
    shown: Annotated[int, "images per class at an evaluation"] = 32
    sampling: Annotated[int, "steps of the sampler"] = 100
    seeds: Annotated[int, "independent runs behind each claim"] = 5
    store: Annotated[float, "seconds from one checkpoint to the next", Within(0, LARGEST)] = 60.0
    classifier_channels: Annotated[tuple[int, ...], "channels of the classifier's levels"] = (32, 32, 32)
    classifier_features: Annotated[int, "channels that the classifier pools"] = 64
    classifier_steps: Annotated[int, "training steps of a round of the classifier"] = 10_000
    classifier_batch: Annotated[int, "images per step of the classifier"] = 128
    held_out: Annotated[int, "images per class that the classifier must get right"] = 1024

    def circles(self, separation: float) -> "diffusion.Circles":
        """The distribution of images at one separation of the colours."""
        return diffusion.Circles(separation, self.size, self.side, self.colour_spread, self.size_spread)

    def shape(self) -> "diffusion.UNetShape":
        """The denoiser."""
        return diffusion.UNetShape(self.side, self.channels, self.blocks, self.heads)

    def plan(self) -> "diffusion.Plan":
        """The training."""
        return diffusion.Plan(
            self.steps, self.batch, self.rate, images=self.images, evaluations=self.evaluations, every=self.every,
            until=self.until,
        )  # fmt: skip

    def classifier_plan(self) -> "diffusion.ClassifierPlan":
        """The training of the classifier."""
        return diffusion.ClassifierPlan(
            self.classifier_channels, self.classifier_features, self.classifier_steps, self.classifier_batch,
            held_out=self.held_out,
        )  # fmt: skip


def run(settings: Settings, context: Context, *, name: str) -> Trajectory:
    """Train once for every separation and seed."""
    need_package("torch", "probe")
    began = time.perf_counter()
    separations = settings.separations
    if not separations or sorted(set(separations)) != list(separations):
        raise SaddlesError.must_be("separations", "different values in ascending order", separations)
    # All settings are checked here, before anything is trained.
    circles = [settings.circles(separation) for separation in separations]
    shape, plan, classifier_plan = settings.shape(), settings.plan(), settings.classifier_plan()

    def train(separation: float, seed: int, folder: Path | None, title: str) -> Trajectory:
        device, images = training.processes.device(), settings.circles(separation)
        classifier, _ = diffusion.concept_classifier(images, classifier_plan, device=device)
        look = diffusion.Evaluation(images, classifier, settings.shown, settings.sampling, seed)
        model = diffusion.make_vdm(shape, seed).to(device)
        return diffusion.train(
            model, images, look, plan, seed=seed, folder=folder, store_every=settings.store, title=title
        )

    grid = {"separation": separations, "seed": context.seeds(settings.seeds)}
    runs = training.run_grid(name, grid, context, train)
    whole = together(runs, circles, grid)
    whole.attrs["wall_time_s"] = time.perf_counter() - began
    return whole


def together(
    runs: list[Trajectory], circles: Sequence["diffusion.Circles"], grid: Mapping[str, Sequence[float]]
) -> Trajectory:
    """One trajectory from all runs; those that stopped early are NaN, and their pictures white, from there on."""
    whole = training.stack_runs([run.drop_vars("step") for run in runs], grid, fill={"image": WHITE})
    whole = whole.transpose("time", ...)
    steps = whole["time"].values.astype(int)
    places = np.unique(np.linspace(0, len(steps) - 1, INSTANTS).round().astype(int)) if len(steps) else []
    strip = whole["image"].isel(time=places, seed=0, drop=True).rename(time="instant")
    variables = {str(key): (tuple(map(str, value.dims)), value.values) for key, value in whole.items()}
    variables["image"] = (tuple(map(str, strip.dims)), strip.values)
    variables["signal"] = (("separation", "coordinate"), np.array([one.signals() for one in circles]))
    variables["spread"] = (("separation", "coordinate"), np.array([one.spreads() for one in circles]))
    variables["target"] = (("coordinate",), np.ones(2))
    coords = {key: whole[key].values for key in ("point", "coordinate", *grid)}
    return make_trajectory(
        variables,
        steps,
        unit="step",
        coords={**coords, "step": ("time", steps), "instant": steps[places]},
        status=Status.all_of(map(status_of, runs)),
        gradient_evaluations=sum(run.attrs["gradient_evaluations"] for run in runs),
        lab="diffusion",
        kind="recorded",
        method=runs[0].attrs["method"],
    )


def order_figure(trajectory: Trajectory) -> Drawing:
    """Figure 6a: paths through concept space and times of learning, by separation."""
    return figures.diffusion.orders(trajectory)


def memorisation_figure(trajectory: Trajectory) -> Drawing:
    """Figure 6b: the path of class 11 and its error."""
    return figures.diffusion.memorisation(trajectory)


def slowing_figure(trajectory: Trajectory) -> Drawing:
    """Figure 6c: the speed of class 11 in concept space."""
    return figures.diffusion.slowing(trajectory)


_SWEEP = (0.137, 0.247, 0.358, 0.468, 0.579, 0.689, 0.8)
"""The separations that the authors' script draws."""
_PAPER = Settings(separations=_SWEEP, every=50)
_GPU = replace(_PAPER, steps=4000, evaluations=40, classifier_steps=600)
_LAPTOP = replace(
    _PAPER, every=0, side=16, size_spread=0.2, channels=(16, 32), blocks=1, heads=1, steps=500, batch=32, images=512,
    evaluations=12, shown=16, sampling=25, seeds=1, classifier_channels=(8, 16), classifier_features=16,
    classifier_steps=150, classifier_batch=64, held_out=256,
)  # fmt: skip
_TINY = replace(
    _LAPTOP, side=8, size_spread=0.1, channels=(8, 16), steps=200, batch=16, images=128, evaluations=8, shown=4,
    sampling=10, classifier_channels=(8, 8), classifier_features=8, classifier_steps=120, classifier_batch=32,
    held_out=64,
)  # fmt: skip
_SIZES = {"tiny": _TINY, "laptop": _LAPTOP, "gpu": _GPU, "paper": _PAPER}


def _experiment(
    name: str,
    title: str,
    claims: Callable[[Trajectory, str], list[Claim]],
    figure: Callable[[Trajectory], Drawing],
    seconds: tuple[float, ...],
    separations: tuple[tuple[float, ...], ...] = ((0.7,), (0.7,), _SWEEP, _SWEEP),
) -> Experiment[Settings]:
    """Seconds and separations are those of tiny, laptop, gpu and paper."""
    rows = zip(_SIZES.items(), seconds, separations, strict=True)
    sizes = {size: Size(took, replace(settings, separations=some)) for (size, settings), took, some in rows}
    full = f"diffusion/{name}"
    return Experiment(
        full, title, PAPER, sizes=sizes, default="tiny", run=partial(run, name=full), claims=claims, figure=figure
    )


EXPERIMENTS = [
    _experiment("figure-6a", "A diffusion model learns colour and size in the order of their signals",
                order_claims, order_figure, (10, 35, 3000, 13_000), ((0.4, 0.7), (0.2, 0.7), _SWEEP, _SWEEP)),
    _experiment("figure-6b", "Transient memorisation in a diffusion model: the concept error rises before it falls",
                memorisation_claims, memorisation_figure, (7, 20, 3000, 13_000)),
    _experiment("figure-6c", "Concept learning in a diffusion model slows down exponentially",
                slowing_claims, slowing_figure, (7, 20, 3000, 13_000)),
]  # fmt: skip
