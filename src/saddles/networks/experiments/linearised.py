"""When a network and its linearisation part, by width.

A ReLU network with entries N(0, 1/d) on images, trained by gradient descent with the rate 1/λ_max of the tangent
kernel at the start, and its linearised twin in closed form (`Linearised`). At this variance the outputs at the start
are of size √(w/d), and must be undone; the change of the weights that this takes bends the network by a share of about
√(d/w), so the largest distance between the two falls with the width as w^(−½) by this estimate. (At the end both fit
the training data and meet again; a first version judged the end, and its null passed.)

Thresholds, set before the runs: the exponent within 0.2 of −½; the widest network within 0.1 of its linearisation when
the narrowest has long parted (by half or more of its run).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory

PAPER = "tu2024mixed"
AXES = ("time", "seed", "width")
PARTED = 0.1
"""The runs have parted where they differ by more than this share of what was learned."""


@dataclass(frozen=True)
class Settings:
    """Networks of several widths on one task."""

    source: Annotated[str, "images to train on"]
    dim: Annotated[int, "principal components of the images, d"]
    samples: Annotated[int, "training images; samples times classes is the size of the kernel"]
    widths: Annotated[tuple[int, ...], "widths"]
    steps: Annotated[int, "steps of gradient descent"]
    seeds: Annotated[int, "independent starts and draws of images"]


def run(settings: Settings, context: Context) -> Trajectory:
    """Each width once per seed, beside its linearisation."""
    seeds = context.seeds(settings.seeds)
    runs = [
        [context.part(f"{seed}-{width}", partial(_run, settings, seed, width)) for width in settings.widths]
        for seed in seeds
    ]
    names = ("distance", "linearity", "loss", "linearised_loss")
    stacked = {
        name: (AXES, np.stack([np.stack([one[name].values for one in row], -1) for row in runs], 1)) for name in names
    }
    parting = np.array([[float(one["parting"]) for one in row] for row in runs])
    return make_trajectory(
        {**stacked, "parting": (("seed", "width"), parting)},
        np.arange(settings.steps + 1),
        unit="step",
        coords={"seed": seeds, "width": list(settings.widths)},
        lab="networks",
        kind="simulated and predicted",
    )


def _run(settings: Settings, seed: int, width: int) -> Trajectory:
    task = networks.Regression.from_images(settings.source, dim=settings.dim, samples=settings.samples, seed=seed)
    model = networks.Perceptron(width, 1 / settings.dim)
    rate = 1 / networks.top_eigenvalue(model, task, seed=seed)
    steps = settings.steps
    real = simulate(model, task, networks.GradientDescent(rate, steps), seed=seed, keep=("outputs",))
    linear = predict(
        model, task, networks.Linearised(rate), times=rate * np.arange(steps + 1), seed=seed, keep=("outputs",)
    )
    apart = networks.distance(real, linear).values
    late = np.flatnonzero(apart > PARTED)
    return make_trajectory(
        {
            "distance": apart,
            "linearity": real["linearity"].values,
            "loss": real["loss"].values,
            "linearised_loss": linear["loss"].values,
            "parting": ((), float(late[0]) if late.size else float("inf")),
        },
        np.arange(steps + 1),
        unit="step",
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge how the distance depends on the width."""
    judge = partial(check, paper=PAPER, where="lazy limit of wide networks", size=size)
    # Not at the end: both runs fit the training data then, and meet again.
    most = trajectory["distance"].max("time").transpose("seed", "width").values
    widths = np.log(trajectory["width"].values)
    order = np.random.default_rng(1).permutation(len(widths))
    exponents = [np.polyfit(widths, np.log(row), 1)[0] for row in most]
    mixed = [np.polyfit(widths, np.log(row[order]), 1)[0] for row in most]
    parting = trajectory["parting"].transpose("seed", "width").values / float(trajectory["time"][-1])
    return [
        judge(
            "A network and its linearisation part by w^(−½): distance of the largest distance's exponent from −½",
            values=np.abs(np.array(exponents) + 0.5),
            relation="<=",
            threshold=0.2,
            null=np.abs(np.array(mixed) + 0.5),
            against="widths in random order",
        ),
        judge(
            "The widest network stays with its linearisation: largest distance",
            values=most[:, -1],
            relation="<=",
            threshold=0.1,
            null=most[:, 0],
            against="the narrowest network",
        ),
        judge(
            "The narrowest network parts from its linearisation in the first half of its run: share of the steps",
            values=parting[:, 0],
            relation="<=",
            threshold=0.5,
            null=parting[:, -1],
            against="the widest network",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.linearised(trajectory)


EXPERIMENT = Experiment(
    "networks/linearised",
    "When a network and its linearisation part, by width",
    PAPER,
    sizes={
        "tiny": Size(8, Settings("digits", dim=6, samples=12, widths=(16, 64), steps=10, seeds=1)),
        "laptop": Size(60, Settings("digits", dim=20, samples=60, widths=(32, 128, 512, 2048, 8192), steps=300,
                                    seeds=3)),
        "gpu": Size(120, Settings("cifar10", dim=100, samples=400, widths=(128, 512, 2048, 8192, 32768, 131072),
                                  steps=1000, seeds=3)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
