"""The phase diagram of a real network: how linear its change is, over width and variance of its start.

f(x) = W2 φ(W1 x) with entries N(0, d^γ_σ²) and width d^γ_w on whitened principal components of images, squared loss,
full-batch gradient descent. The lab `linear` treats φ = identity, where the border between lazy and active is a line
of σ²w alone: γ_σ² = −γ_w + const, with the constant from the least squares fit (`saddles.networks.phases`).

Thresholds, set before the runs:

- Linear activation: the theory is exact for w far above d, and rows go down to w = d, where fluctuations of relative
  size √(d/w) move the border: 0.15 is allowed for the slope, and 0.15 in γ_σ² for the place of the line (a factor of
  1.7 in σ² at d = 30), in the mean over rows.
- ReLU and tanh: no theory. If what matters is σ²w, the slope is −1, and a border that depends on σ²√w or on σ² alone
  has −½ or 0. A prototype at one seed gave −1.3 for ReLU, so 0.4 is allowed to both sides, which excludes −½ and 0.
- Active networks test better than lazy ones where the target has structure that the kernel lacks: the mean accuracy of
  the third of the cells with the largest e is above that of the third with the smallest.
- Cross-entropy (`--set loss=cross-entropy`) has no end to train to: outputs go on growing, and the border moves with
  the number of steps. What decides is still the size of the change against σ²w, so the same slope is required; no line
  of the theory is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.networks.phases import predicted_linearity, slope_of
from saddles.runtime.progress import bar

PAPER = "tu2024mixed"
GAMMA_W = (1.0, 2.0)
"""Widths from d to d²."""
SAVED = 20
"""Instants of every run that are kept."""
AXES = ("time", "seed", "gamma_w", "gamma_variance")


@dataclass(frozen=True)
class Settings:
    """A grid of networks of one activation."""

    activation: Annotated[str, "relu, tanh or linear"]
    points: Annotated[int, "widths, and variances for each"]
    dim: Annotated[int, "principal components of the images, d", Within(2, LARGEST)]
    source: Annotated[str, "images: digits, cifar10, or whatever saddles.transformers.load_images takes"]
    samples: Annotated[int, "training images"]
    steps: Annotated[int, "steps of gradient descent"]
    seeds: Annotated[int, "independent starts and draws of images"]
    loss: Annotated[str, "squared or cross-entropy"] = "squared"
    lowest: Annotated[float, "smallest γ_σ²"] = -3.5
    highest: Annotated[float, "largest γ_σ²"] = -0.5


def run(settings: Settings, context: Context) -> Trajectory:
    """All networks of a seed together, seed by seed."""
    if settings.points < 2:
        raise SaddlesError.must_be("points", "at least 2", settings.points)
    up = np.linspace(*GAMMA_W, settings.points)
    across = np.linspace(settings.lowest, settings.highest, settings.points)
    seeds = context.seeds(settings.seeds)
    units = float(len(seeds) * settings.points * sum(_widths(settings, up)))
    with bar(f"networks, {settings.activation}", units) as progress:
        parts = []
        for seed in seeds:
            row = partial(_seed, settings, seed, up, across, progress.advance)
            parts.append(context.part(f"seed-{seed}", row))
    measured = {
        str(name): (AXES[: 1 + variable.ndim], np.stack([part[name].values for part in parts], axis=1))
        for name, variable in parts[0].data_vars.items()
        if variable.dims[:1] == ("time",)
    }
    rest = {
        name: np.stack([part[name].values for part in parts]) for name in ("border", "theory_border", "singular_value")
    }
    steps = parts[0]["time"].values
    whole = make_trajectory(
        measured
        | {
            "border": (("seed", "gamma_w"), rest["border"]),
            "theory_border": (("seed", "gamma_w"), rest["theory_border"]),
        }
        | {"singular_value": (("seed", "mode"), rest["singular_value"])}
        | {"slope": (("seed",), np.array([slope_of(row, up) for row in rest["border"]]))},
        steps,
        unit="step",
        coords={"seed": seeds, "gamma_w": up, "gamma_variance": across},
        lab="networks",
        kind="simulated and predicted",
    )
    whole.attrs |= {
        "activation": settings.activation, "loss": settings.loss, "dim": settings.dim, "source": settings.source,
    }  # fmt: skip
    return whole


def _widths(settings: Settings, up: np.ndarray) -> list[int]:
    return [round(settings.dim**gamma) for gamma in up]


def _seed(
    settings: Settings, seed: int, up: np.ndarray, across: np.ndarray, tick: Callable[[float], None]
) -> Trajectory:
    task = networks.Regression.from_images(
        settings.source, dim=settings.dim, samples=settings.samples, tests=0, seed=seed
    )
    saved = min(SAVED, settings.steps)
    steps = saved * max(1, round(settings.steps / saved))
    return networks.phase_diagram(
        task,
        up,
        across,
        activation=settings.activation,
        loss=settings.loss,
        seed=seed,
        steps=steps,
        saved=saved,
        tick=tick,
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the border and what lies on its two sides."""
    judge = partial(check, paper=PAPER, size=size)
    up, slopes = trajectory["gamma_w"].values, trajectory["slope"].values
    border = trajectory["border"].values
    order = np.random.default_rng(0).permutation(len(up))
    mixed = np.array([slope_of(row[order], up) for row in border])
    linear, squared = trajectory.attrs["activation"] == "linear", _squared(trajectory)
    last = trajectory.isel(time=-1)
    rows = [
        judge(
            "The border e = ½ between lazy and active follows σ²w: distance of its slope from −1",
            where="Figure 2, for a network with this activation",
            values=abs(slopes + 1),
            relation="<=",
            threshold=0.15 if linear and squared else 0.4,
            null=abs(mixed + 1),
            against="widths in random order",
        ),
        judge(
            "Active networks test better: accuracy of the third of cells with the largest e over the smallest third's",
            where="section 3",
            values=[
                _advantage(e, a) for e, a in zip(last["linearity"].values, last["test_accuracy"].values, strict=True)
            ],
            relation=">=",
            threshold=1.0 if linear else 1.05,
            null=[
                _advantage(e, _shuffled(a))
                for e, a in zip(last["linearity"].values, last["test_accuracy"].values, strict=True)
            ],
            against="accuracies in random order",
            not_applicable="all linear networks learn the same matrix" if linear and squared else "",
        ),
    ]
    return rows + _linear_claims(trajectory, judge) if linear and squared else rows


def _squared(trajectory: Trajectory) -> bool:
    return trajectory.attrs.get("loss", "squared") == "squared"


def _linear_claims(trajectory: Trajectory, judge: Callable[..., Claim]) -> list[Claim]:
    """What the theory says about every linear network."""
    up, border, last = trajectory["gamma_w"].values, trajectory["border"].values, trajectory.isel(time=-1)
    theory = trajectory["theory_border"].values
    dim = float(trajectory.attrs["dim"])
    across = trajectory["gamma_variance"].values
    threshold = dim ** (up[:, None] + across[None, :])
    predicted = np.stack([predicted_linearity(s, threshold) for s in trajectory["singular_value"].values])
    seen = last["linearity"].values
    naive = np.stack([1.0 * (s[0] > threshold) for s in trajectory["singular_value"].values])
    wide = up >= 1.5  # w ≥ d√d, where the theory's fluctuations are below d^−¼
    return [
        judge(
            "The border of a linear network lies where the theory puts it: mean distance in γ_σ²",
            where="equation (1); saddles.networks.phases",
            values=np.mean(abs(border - theory), -1),
            relation="<=",
            threshold=0.15,
            null=np.mean(abs(border - (theory.mean(-1, keepdims=True) - (up - up.mean()) / 2)), -1),
            against="a border of σ²√w through the same middle",
        ),
        judge(
            "e of every linear network of width d^1.5 and more is the predicted one: mean distance",
            where="equation (1); saddles.networks.phases",
            values=np.mean(abs(seen - predicted)[:, wide], (1, 2)),
            relation="<=",
            threshold=0.05,
            null=np.mean(abs(seen - naive)[:, wide], (1, 2)),
            against="a theory that jumps from 0 to 1 at σ²w = s₁",
        ),
    ]


def _advantage(linearity: np.ndarray, accuracy: np.ndarray) -> float:
    order = np.argsort(linearity.ravel())
    third = max(1, len(order) // 3)
    flat = accuracy.ravel()[order]
    return float(flat[-third:].mean() / flat[:third].mean())


def _shuffled(values: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).permutation(values.ravel())


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.phase_diagram(trajectory)


EXPERIMENT = Experiment(
    "networks/phase-diagram",
    "The phase diagram of a real network: lazy or active over width and initial variance",
    PAPER,
    sizes={
        "tiny": Size(8, Settings("relu", points=3, dim=8, source="digits", samples=100, steps=40, seeds=2)),
        "laptop": Size(11, Settings("relu", points=6, dim=30, source="digits", samples=300, steps=120, seeds=3)),
        "gpu": Size(400, Settings("relu", points=20, dim=100, source="cifar10", samples=2000, steps=1000, seeds=3)),
        "paper": Size(2000, Settings("relu", points=35, dim=100, source="cifar10", samples=5000, steps=2000, seeds=5)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)
