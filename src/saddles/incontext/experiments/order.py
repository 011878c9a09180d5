"""Which direction separate heads learn when, over many random covariances, by the gap of the eigenvalues.

A head that grows along the largest eigenvector keeps a part s^{1 − (λ_2/λ_1)²} of the others, so that the order is sure
where neighbouring eigenvalues are apart, and a matter of luck where they are close. Threshold, set before any run: all
orders are as predicted where neighbours are below 0.8 of each other. Stage by stage the theory must name the direction
that the flow learns in 95 % of the stages of all covariances: from close eigenvalues a difference of the sleeping
directions in the last digits may decide.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from saddles import figures, incontext
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.runtime.progress import bar

PAPER = "zhang2025training"

APART = 0.8
"""Neighbours below this ratio count as apart."""


@dataclass(frozen=True)
class Settings:
    """Random spectra, half of them with neighbours apart."""

    dim: Annotated[int, "dimension D of the inputs"]
    heads: Annotated[int, "attention heads of rank 1"]
    covariances: Annotated[int, "random covariances, every other one with neighbouring ratios below 0.8"]
    scale: Annotated[float, "size of the start"] = 1e-8
    prompt: Annotated[int, "pairs in a prompt, N"] = 31


def run(settings: Settings, context: Context) -> Trajectory:
    """The directions in the order of learning, in the flow and in the theory."""
    model = incontext.Separate(settings.heads, 1, settings.scale)
    rows = []
    with bar("incontext/order", settings.covariances) as progress:
        for number, seed in enumerate(context.seeds(settings.covariances)):
            ratios = np.random.default_rng([seed, 61]).uniform(*((0.6, APART) if number % 2 else (0.6, 1.0)),
                                                               size=settings.dim - 1)  # fmt: skip
            values = np.cumprod(np.concatenate([[1.0], ratios]))
            task = incontext.Regression(values, settings.prompt)
            flow = simulate(model, task, incontext.GradientFlow(rtol=1e-6), seed=seed)
            theory = predict(model, task, incontext.AlternatingFlows(settings.dim), seed=seed)
            rows.append((ratios.max(), _order(flow["strength"].values, task), _foreseen(theory, settings.dim)))
            progress.advance(1)
    ratio, seen, foreseen = (np.stack([np.asarray(row[i], dtype=float) for row in rows]) for i in range(3))
    variables = {
        "ratio": (("time",), ratio), "seen": (("time", "stage"), seen), "foreseen": (("time", "stage"), foreseen)
    }  # fmt: skip
    return make_trajectory(
        variables, np.arange(len(rows)), unit="covariance", lab="incontext", kind="simulated",
        scale=settings.scale,
    )  # fmt: skip


def _order(strength: np.ndarray, task: "incontext.Regression") -> np.ndarray:
    """Directions by the instant at which each has half its final strength; −1 for those never learned."""
    values, _ = task.frame
    final = values / np.diag(task.frame[1].T @ task.cost.moment @ task.frame[1])
    risen = strength > final / 2
    first = np.where(risen.any(axis=0), risen.argmax(axis=0), len(strength) + np.arange(len(values)))
    order = np.argsort(first, kind="stable")
    return np.where(risen.any(axis=0)[order], order, -1)


def _foreseen(theory: Trajectory, dim: int) -> np.ndarray:
    """The direction that the neuron which woke at each stage points to; −1 beyond the last stage."""
    rows = theory["stage_direction"].values[1:, 1 : 1 + dim]
    order = np.full(dim, -1)
    order[: len(rows)] = np.argmax(np.abs(rows), axis=1)[:dim]
    return order


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the order where neighbours are apart, and the theory everywhere."""
    seen, foreseen = trajectory["seen"].values, trajectory["foreseen"].values
    apart = trajectory["ratio"].values < APART
    sorted_order = np.arange(seen.shape[1])
    mixed = np.random.default_rng(0).permuted(np.tile(sorted_order, (len(seen), 1)), axis=1)
    return [
        check(
            "Where neighbouring eigenvalues are below 0.8 of each other, the largest is learned first: share of "
            "covariances in full order",
            paper=PAPER, where="section 5", size=size, relation=">=", threshold=1.0,
            values=(seen[apart] == sorted_order).all(axis=1).mean(),
            null=(mixed[apart] == sorted_order).all(axis=1).mean(),
            against="directions in random order",
        ),
        check(
            "Over all covariances the theory names the direction of each stage: share of stages",
            paper=PAPER, where="alternating flows", size=size, relation=">=", threshold=0.95,
            values=(seen == foreseen).mean(),
            null=(seen == np.roll(mixed, 1, axis=0)).mean(),
            against="directions in random order",
        ),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.incontext.order(trajectory)


EXPERIMENT = Experiment(
    "incontext/order",
    "Which eigenvector is learned when, over random covariances",
    PAPER,
    sizes={
        "tiny": Size(8, Settings(dim=2, heads=4, covariances=4, scale=1e-4)),
        "laptop": Size(120, Settings(dim=8, heads=16, covariances=100)),
        "gpu": Size(1200, Settings(dim=8, heads=16, covariances=1000)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
