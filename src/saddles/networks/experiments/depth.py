"""Lazy or active over depth: where the border lies, and how sharp it is.

f(x) = W_L φ(… φ(W_1 x)) with entries N(0, σ²) in every layer and hidden layers of width w, on whitened principal
components of images, squared loss, full-batch descent. The first outputs are subtracted (`follow_deep` says why; found
at a seed that is not judged, where narrow networks of large variance had no border otherwise). With κ = σ²w, forward
and backward signals of a wide network are of size κ^(l/2), so its tangent kernel is L κ^(L−1), and to learn a matrix of
size s every layer moves by s/(L κ^((L−1)/2)), against weights of size √κ in that direction: what decides is s/κ^(L/2).
(That e depends on target and variance through y/σ^L alone is exact for φ = ReLU and linear, by homogeneity; that the
width enters as σ²w is not.)

Variances are chosen for each depth such that κ^(L/2)/s, `reach`, has the same values, s the largest singular value of
the least squares fit. Then

- the border e = ½ is at one reach for every width: a line of slope −1 in log σ² over log w, as for two layers;
- the fall of e from 0.7 to 0.3 takes the same range of reach at every depth, if e is the same function of it: in σ² it
  is 2/L times as wide, so deeper networks pass from lazy to active within a smaller range of variances.

Thresholds, set before the runs: the slope within 0.4 of −1, as for the phase diagram of ReLU networks, which excludes
σ²√w and σ². For the range the second statement is a guess; the logarithm of its ratio to that of two layers may be 0.3
(a factor of 1.35), where a fall that is as wide in σ² at all depths has 0.41 (L = 3) and more.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size, Within
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.networks.phases import crossing, slope_of

PAPER = "tu2024mixed"
AXES = ("time", "seed", "layers", "width", "reach")
HIGH, LOW = 0.7, 0.3
"""The fall of e from lazy to active is measured between these."""


@dataclass(frozen=True)
class Settings:
    """Networks of several depths, widths and variances on one task."""

    layers: Annotated[tuple[int, ...], "layers of weights; the first is what the others are compared with"]
    widths: Annotated[tuple[int, ...], "widths of the hidden layers"]
    points: Annotated[int, "variances of each width"]
    dim: Annotated[int, "principal components of the images, d"]
    source: Annotated[str, "images to train on"]
    samples: Annotated[int, "training images"]
    steps: Annotated[int, "steps of gradient descent"]
    seeds: Annotated[int, "independent starts and draws of images"]
    activation: Annotated[str, "relu, tanh or linear"] = "relu"
    lowest: Annotated[float, "smallest log10 of the reach κ^(L/2)/s", Within(-10, 10)] = -1.5
    highest: Annotated[float, "largest log10 of the reach", Within(-10, 10)] = 1.5


def run(settings: Settings, context: Context) -> Trajectory:
    """All networks of a seed and depth together."""
    check_different("layers", settings.layers, 1)
    if settings.lowest >= settings.highest:
        raise SaddlesError.must_be("lowest", f"below highest={settings.highest:g}", settings.lowest)
    reach = np.linspace(settings.lowest, settings.highest, settings.points)
    seeds = context.seeds(settings.seeds)
    parts = [
        [context.part(f"{seed}-{layers}", partial(_run, settings, seed, layers, reach)) for layers in settings.layers]
        for seed in seeds
    ]
    values = {
        name: (AXES, np.stack([np.stack([part[name].values for part in row], 1) for row in parts], 1))
        for name in ("linearity", "loss")
    }
    last = values["linearity"][1][-1]  # (seed, layers, width, reach)
    border, high, low = (
        np.apply_along_axis(crossing, -1, last, reach, level) for level in (0.5, HIGH, LOW)
    )  # log10 of the reach
    depth = np.asarray(settings.layers)[None, :, None]
    # log10 σ² at the border is (2/L) (log10 s + reach) − log10 w; s is the same for all widths.
    lines = 2 / depth * border - np.log10(settings.widths)
    slopes = np.apply_along_axis(slope_of, -1, lines, np.log10(settings.widths))
    whole = make_trajectory(
        values | {"border": (AXES[1:4], border), "fall": (AXES[1:4], low - high), "slope": (AXES[1:3], slopes)},
        [0, settings.steps],
        unit="step",
        coords={
            "seed": seeds,
            "layers": list(settings.layers),
            "width": list(settings.widths),
            "reach": reach,
        },
        lab="networks",
        kind="simulated",
    )
    whole.attrs |= {"activation": settings.activation, "dim": settings.dim, "source": settings.source}
    return whole


def _run(settings: Settings, seed: int, layers: int, reach: np.ndarray) -> Trajectory:
    task = networks.Regression.from_images(
        settings.source, dim=settings.dim, samples=settings.samples, tests=1, seed=seed
    )
    size = float(np.linalg.norm(np.linalg.lstsq(task.inputs, task.targets, rcond=None)[0], 2))
    kappa = (size * 10**reach) ** (2 / layers)
    variances = kappa[None, :] / np.asarray(settings.widths, dtype=float)[:, None]
    found = networks.follow_deep(
        task,
        settings.widths,
        variances,
        layers=layers,
        activation=settings.activation,
        seed=seed,
        steps=settings.steps,
    )
    start = {"linearity": np.zeros_like(variances), "loss": np.full_like(variances, np.nan)}
    rows = {name: (AXES[:1] + AXES[3:], np.stack([start[name], found[name]])) for name in found}
    return make_trajectory(rows, [0, settings.steps], unit="step")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the place of the border and its sharpness."""
    judge = partial(check, paper=PAPER, size=size)
    widths = np.log10(trajectory["width"].values)
    slopes = trajectory["slope"].transpose("seed", "layers").values
    fall = trajectory["fall"].transpose("seed", "layers", "width").values[..., -1]
    depth = trajectory["layers"].values / float(trajectory["layers"][0])
    return [
        judge(
            "At every depth the border e = ½ follows σ²w: distance of its slope from −1",
            where="Figure 2, for deeper networks",
            values=abs(slopes + 1),
            relation="<=",
            threshold=0.4,
            null=abs(slopes + 1 - 0.5),
            against=f"a border of σ²√w, at widths {10 ** widths[0]:g} to {10 ** widths[-1]:g}",
        ),
        judge(
            "The fall of e from 0.7 to 0.3 is 2/L as wide in σ²: |log| of its ratio to two layers' fall, 2/L taken out",
            where="section 3, for deeper networks",
            values=abs(np.log(fall[:, 1:] / fall[:, :1])),
            relation="<=",
            threshold=0.3,
            null=abs(np.log(depth[1:]))[None, :] + 0 * fall[:, 1:],
            against="a fall as wide in σ² at every depth",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.depth(trajectory)


EXPERIMENT = Experiment(
    "networks/depth",
    "Deeper networks: the border between lazy and active, and how sharp it is",
    PAPER,
    sizes={
        "tiny": Size(6, Settings((2, 3), (6, 9, 12), points=4, dim=5, source="digits", samples=30, steps=20, seeds=1)),
        "laptop": Size(4, Settings((2, 3, 4), (16, 32, 64), points=7, dim=10, source="digits", samples=60, steps=120,
                                    seeds=2)),
        "gpu": Size(300, Settings((2, 3, 4, 6), (64, 128, 256, 512), points=20, dim=50, source="cifar10", samples=1000,
                                  steps=1000, seeds=3, highest=2.0)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
