"""A narrow product of two factors: which directions outside the spans of its start it can learn, and which stay lazy.

A head has d × d_h factors with d_h < d. Let A₀ = W₂W₁ be such a product and the target A₀ + s u vᵀ with u and v
outside the spans of its columns and rows. There the gradient is zero, and the energy to second order in W₂ → W₂ + u aᵀ,
W₁ → W₁ + b vᵀ is ½(aᵀW₁W₁ᵀa + bᵀW₂ᵀW₂b) − s aᵀb: the direction grows where s² exceeds the smallest eigenvalue of
W₁W₁ᵀW₂ᵀW₂, that is where s exceeds σ_min(A₀), the smallest singular value of the product that is not 0, and it then
takes that one's place (the best approximation of this rank, by Eckart and Young, keeps the larger one). σ²w, the border
of networks wider than d, is far below.

Targets here have a fiftieth of u and v inside the spans, which starts what can grow; factors are i.i.d. N(0, 1/d).

Thresholds, written after three seeds at d = 48 and w = 4 and before those judged: the part inside moves the border to
second order only, and no s is within 5 % of it, so that nine of ten targets must be on the side that σ_min(A₀) says.
Below the border e was at most 0.15 and above it at least 1.1: a factor of 2 is required between the smallest e of those
that should be learned and the largest of the others.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError

PAPER = "tu2024mixed"
INSIDE = 0.02
"""Part of u and of v inside the spans of the start."""
LONG = 300.0
"""Time in units of 1/σ_min(A₀): what is 5 % above the border grows with a twentieth of that rate."""
AXES = ("time", "seed", "ratio")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Narrow products and targets outside their spans."""

    dim: Annotated[int, "rows and columns of the product, d"]
    width: Annotated[int, "columns of each factor, less than d"]
    seeds: Annotated[int, "independent starts and targets"]
    ratios: Annotated[tuple[float, ...], "singular values s of the target, over the smallest of the start"] = (
        0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0,
    )  # fmt: skip


def run(settings: Settings, context: Context) -> Trajectory:
    """What is learned of every target, and how linear the change is."""
    check_different("ratios", settings.ratios, 2)
    if not 1 <= settings.width < settings.dim:
        raise SaddlesError.must_be("width", f"at least 1 and less than `dim`, {settings.dim}", settings.width)
    seeds = context.seeds(settings.seeds)
    rows = [context.part(str(seed), partial(_run, settings, seed)) for seed in seeds]
    found = {name: (AXES, np.stack([row[name].values for row in rows], axis=1)) for name in ("learned", "linearity")}
    smallest = np.array([float(row["threshold"]) for row in rows])
    coords = {"seed": seeds, "ratio": list(settings.ratios)}
    return make_trajectory(
        found | {"threshold": (("seed",), smallest)}, [0.0, LONG], unit="over σ_min(A₀)", coords=coords,
        lab="networks", kind="simulated", dim=settings.dim, width=settings.width,
    )  # fmt: skip


def _run(settings: Settings, seed: int) -> Trajectory:
    dim, width = settings.dim, settings.width
    model, unit = networks.Perceptron(width, 1 / dim, "linear"), np.eye(dim)
    first, second = model.start(networks.Regression(unit, unit, unit, unit), seed)
    before = second @ first
    smallest = float(np.linalg.svd(before, compute_uv=False)[width - 1])
    draw = np.random.default_rng([seed, 37])
    left, right = (_outside(factor, draw) for factor in (second, first.T))
    learned, linearity = np.zeros((2, len(settings.ratios))), np.zeros((2, len(settings.ratios)))
    for at, ratio in enumerate(settings.ratios):
        target = before + ratio * smallest * np.outer(left, right)
        # With these inputs (1/2n) Σ‖f − y‖² is ½‖A − target‖².
        task = networks.Regression(np.sqrt(dim) * unit, np.sqrt(dim) * target.T, unit, target.T)
        run = simulate(
            model, task, networks.GradientFlow(rtol=1e-7), times=[0.0, LONG / smallest], seed=seed, keep=["outputs"]
        )
        change = run["outputs"].values.transpose(0, 2, 1) / np.sqrt(dim) - before
        learned[:, at] = np.einsum("r,trc,c->t", left, change, right) / (ratio * smallest)
        linearity[:, at] = run["linearity"].values
    variables = {"learned": (("time", "ratio"), learned), "linearity": (("time", "ratio"), linearity)}
    return make_trajectory(variables | {"threshold": ((), np.asarray(smallest))}, [0.0, LONG])


def _outside(factor: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A unit vector outside the span of a factor's columns, but for a small part."""
    basis, vector = np.linalg.qr(factor)[0], draw.normal(size=len(factor))
    inside = basis @ (basis.T @ vector)
    outside = vector - inside
    whole = outside / np.linalg.norm(outside) + INSIDE * inside / np.linalg.norm(inside)
    return whole / np.linalg.norm(whole)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge where the border is, and whether e shows it."""
    judge = partial(check, paper=PAPER, where="section 1.4, for a width below d", size=size)
    last, ratio = trajectory.isel(time=-1), trajectory["ratio"].values
    learned, e = last["learned"].values >= 0.5, last["linearity"].values
    border = trajectory.attrs["width"] / trajectory.attrs["dim"] / trajectory["threshold"].values  # σ²w over σ_min
    mixed = np.array([np.random.default_rng([at, 38]).permutation(row) for at, row in enumerate(e)])
    return [
        judge(
            "A direction outside the start's spans is learned if it exceeds σ_min(A₀): share of targets as predicted",
            values=(learned == (ratio > 1)).mean(axis=1),
            relation=">=",
            threshold=0.9,
            null=(learned == (ratio > border[:, None])).mean(axis=1),
            against="σ²w in the place of σ_min(A₀)",
        ),
        judge(
            "It is then active, and lazy below: smallest e above σ_min(A₀) over the largest below",
            values=_step(e, ratio),
            relation=">=",
            threshold=2.0,
            null=_step(mixed, ratio),
            against="the same e in random order",
        ),
    ]


def _step(linearity: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    return linearity[:, ratio > 1].min(axis=1) / linearity[:, ratio < 1].max(axis=1)


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.narrow_head(trajectory)


EXPERIMENT = Experiment(
    "networks/narrow-head",
    "Which directions a product narrower than its dimension can learn outside the spans of its start",
    PAPER,
    sizes={
        "tiny": Size(10, Settings(dim=12, width=2, seeds=1, ratios=(0.5, 2.0))),
        "laptop": Size(15, Settings(dim=64, width=6, seeds=5)),
        "gpu": Size(60, Settings(dim=192, width=16, seeds=10)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
