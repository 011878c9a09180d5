"""Conjecture 4.1 for linear networks with any input covariance: plateaus, slopes of the times, and where it fails.

At any one α the times are off by several per cent, because directions take a while to align; their slopes against
log(1/α) are not. Thresholds, before these seeds: a median error of 1 % of the slopes and 3 % in nine problems of ten
(the exceptions have close μ). The null takes every singular value of Σ_yx alone, as for white inputs. The formula must
also fail where it is known to: where Σ_xx and BᵀB commute and σ and μ are ordered differently, a flow rests at a saddle
that the formula skips, and alternating flows, which integrate instead of assuming, name its loss.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import figures, incontext
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, Variable, make_trajectory

if TYPE_CHECKING:
    from jaxtyping import Array

PAPER = "kunin2025alternating"

ROWS = 1601
"""Instants of a flow, from which drops are read off."""

LATEST = 30.0
"""Problems whose last drop is conjectured later than this many times the first are drawn anew: they would take most of
the solver's steps."""


@dataclass(frozen=True)
class Settings:
    """Random problems, and two starts for the slopes."""

    problems: Annotated[int, "random covariances and targets"]
    commuting: Annotated[int, "problems with Σ_xx and BᵀB diagonal"]
    dim: Annotated[int, "inputs and outputs", Within(2, LARGEST)] = 3
    neurons: Annotated[int, "hidden neurons"] = 8
    large: Annotated[float, "the larger start α"] = 1e-5
    small: Annotated[float, "the smaller start α"] = 1e-8


def run(settings: Settings, context: Context) -> Trajectory:
    """Measured and conjectured slopes and plateaus of generic problems; plateaus of commuting ones."""
    from saddles.incontext.linear_networks import conjectured, flows  # loads JAX

    draw, dim = np.random.default_rng([context.seed, 63]), settings.dim
    inputs, truths, stages = [], [], []
    while len(stages) < settings.problems:
        root, truth = draw.normal(size=(dim, 2 * dim)), draw.normal(size=(dim, dim))
        told = conjectured(root @ root.T / (2 * dim), truth)
        if told.slopes[-1] <= LATEST * told.slopes[0]:
            inputs.append(root @ root.T / (2 * dim))
            truths.append(truth)
            stages.append(told)
    inputs, truths = np.stack(inputs), np.stack(truths)
    plateaus = np.stack([one.plateaus for one in stages])
    slopes = np.stack([one.slopes for one in stages])
    seen, levels = [], np.zeros((settings.problems, dim))
    middle = (plateaus[:, 1:] + plateaus[:, :-1]) / 2
    for scale in (settings.large, settings.small):
        spans = 1.3 * slopes[:, -1] * np.log(1 / scale)
        losses = flows(inputs, truths, spans, scale, settings.neurons, ROWS, context.seed)
        when = np.stack([_crossings(losses[:, p], middle[p]) for p in range(settings.problems)])
        seen.append(when * spans[:, None])
        if scale == settings.small:
            between = (when + np.concatenate([np.zeros((len(when), 1)), when[:, :-1]], axis=1)) / 2
            levels = np.stack(
                [np.interp(between[p], np.linspace(0, 1, ROWS), losses[:, p]) for p in range(settings.problems)]
            )
    measured = (seen[1] - seen[0]) / np.log(settings.large / settings.small)
    mu = plateaus[:, :-1] - plateaus[:, 1:]
    cross = np.linalg.svd(truths @ inputs, compute_uv=False)
    variables = {
        "slope": (("time", "stage"), measured), "conjectured_slope": (("time", "stage"), slopes),
        "white_slope": (("time", "stage"), 1 / (2 * cross)),
        "level": (("time", "stage"), levels), "plateau": (("time", "stage"), plateaus[:, :-1]),
"closest": (("time",), (mu[:, 1:] / mu[:, :-1]).max(axis=1)),
    } | _commuting(settings, context, draw)  # fmt: skip
    return make_trajectory(variables, np.arange(settings.problems), unit="problem", lab="incontext", kind="simulated")


def _crossings(loss: np.ndarray, levels: np.ndarray) -> np.ndarray:
    clock = np.linspace(0, 1, len(loss))
    # Interpolation needs a rising abscissa: the smallest loss so far, with its sign changed.
    return np.interp(-levels, -np.minimum.accumulate(loss), clock)


def _commuting(settings: Settings, context: Context, draw: np.random.Generator) -> dict[str, Variable]:
    """First plateaus where σ = bs and μ = b²s are ordered differently, of flow, formula and alternating flows."""
    from saddles.incontext.linear_networks import conjectured, flows  # loads JAX

    # Σ_xx = diag(s, 1), B = diag(r/s, 1): σ = (r, 1) and μ = (r²/s, 1), of opposite orders for √s < r < 1.
    small = draw.uniform(0.1, 0.3, size=settings.commuting)
    ratio = np.sqrt(small) + (1 - np.sqrt(small)) * draw.uniform(0.3, 0.7, size=settings.commuting)
    inputs = np.stack([np.diag([s, 1.0]) for s in small])
    truths = np.stack([np.diag([r / s, 1.0]) for r, s in zip(ratio, small, strict=True)])
    formula = np.stack([conjectured(*pair).plateaus[1] for pair in zip(inputs, truths, strict=True)])
    ends = np.log(1 / settings.small) / 2 * (0.5 / ratio + 0.5)  # half-way between the two drops, at σ = 1 and σ = r
    losses = flows(inputs, truths, ends, settings.small, settings.neurons, 3, context.seed)[-1]
    named = []
    for pair in zip(inputs, truths, strict=True):
        points = np.sqrt(2) * np.linalg.cholesky(pair[0]).T
        model = incontext.Neurons(_neuron, 2, 4, 2, settings.small, np.kron(np.array([[1.0, 1.0]]), np.eye(2)))
        told = predict(model, incontext.Samples(points, points @ pair[1].T), incontext.AlternatingFlows(1))
        named.append(float(told["plateau"][1]))
    values = {"commuting_level": losses, "commuting_formula": formula, "commuting_named": np.array(named)}
    return {name: (("commuting",), rows) for name, rows in values.items()}


def _neuron(x: "Array", theta: "Array") -> "Array":
    return theta[:2] * (theta[2:] @ x)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge slopes, plateaus and the failure."""
    error = abs(trajectory["conjectured_slope"] / trajectory["slope"] - 1)
    white = abs(trajectory["white_slope"] / trajectory["slope"] - 1)
    scale = trajectory["plateau"].isel(stage=0)
    off = abs(trajectory["level"] - trajectory["plateau"]) / scale
    rolled = np.roll(trajectory["plateau"].values, 1, axis=0)
    other = np.abs(trajectory["level"].values - rolled) / scale.values[:, None]
    flow, named, formula = (trajectory[f"commuting_{name}"].values for name in ("level", "named", "formula"))
    return [
        check(
            "The slopes of the stage times against log(1/α) are the conjectured ones: median relative error",
            paper=PAPER, where="Conjecture 4.1", size=size, relation="<=", threshold=0.01,
            values=float(error.median()), null=float(white.median()), against="each singular value of Σ_yx alone",
        ),
        check(
            "They are within 3 %: share of stages",
            paper=PAPER, where="Conjecture 4.1", size=size, relation=">=", threshold=0.9,
            values=float((error <= 0.03).mean()), null=float((white <= 0.03).mean()),
            against="each singular value of Σ_yx alone",
        ),
        check(
            "Between two drops the loss is the conjectured one: median distance, relative to the first loss",
            paper=PAPER, where="Conjecture 4.1", size=size, relation="<=", threshold=0.01,
            values=float(off.median()), null=float(np.median(other)), against="the plateaus of the next problem",
        ),
        check(
            "Where covariances commute and the orders differ, alternating flows name the plateau: largest error",
            paper=PAPER, where="section 4", size=size, relation="<=", threshold=0.01,
            values=np.abs(named / flow - 1).max(), null=np.abs(formula / flow - 1).min(),
            against="the formula, which fails there",
        ),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.incontext.conjecture(trajectory)


EXPERIMENT = Experiment(
    "incontext/conjecture",
    "Plateaus and times of linear networks with any input covariance, and where the conjecture fails",
    PAPER,
    sizes={
        "tiny": Size(8, Settings(problems=6, commuting=1)),
        "laptop": Size(7, Settings(problems=200, commuting=3)),
        "gpu": Size(120, Settings(problems=1000, commuting=20)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
