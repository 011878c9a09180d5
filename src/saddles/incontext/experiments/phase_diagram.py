"""The phase diagram of one wide head: where the lazy theory holds, over width and variance, and what bounds it.

A cell is a head of width w and variance σ², followed until it has learned. It counts as lazy where the lazy theory,
M' = −2σ²w ∇L(M), misses its loss by at most a tenth of the first one at all times. The border is interpolated between
cells, in log σ².

Thresholds, written before the runs that judge them (a prototype had five inputs and another seed):

- *σ²w decides.* If only σ²w matters, the border's slope in (log w, log σ²) is −1; a border of σ²√w would have −1/2,
  one of σ² alone 0. Corrections of relative size √(D/w) move the border of the narrowest heads: 0.1 is allowed.
- *The self-consistent theory has the same border*: it is wrong by terms of the order 1/√w, and the widths are apart by
  a decade, so a fifth of a decade is allowed, mean over widths.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, incontext
from saddles.core.claim import Claim, check, too_few
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.incontext.experiments.lazy_active import end_of_learning, lazy_loss

PAPER = "tu2024mixed"
LEVEL = 0.1
"""Part of the first loss by which the lazy theory may miss the loss of a lazy head."""
LUCK = 0.05
"""Share of random orders that a null keeps, its luckiest."""
ALL = 6
"""Most widths of which every order is looked at; of more, as many are drawn."""
CLOCK = np.linspace(0.0, 1.0, 61)
LOSSES = "loss", "predicted_loss", "lazy_loss"


@dataclass(frozen=True)
class Settings:
    """Heads over width and variance."""

    dim: Annotated[int, "dimension D of the inputs"]
    seeds: Annotated[int, "independent initial weights"]
    widths: Annotated[tuple[float, ...], "widths w"] = (1e2, 1e3, 1e4, 1e5, 1e6)
    variances: Annotated[tuple[float, ...], "variances σ², falling or rising"] = tuple(10.0**k for k in range(-9, 2))
    prompt: Annotated[int, "pairs in a prompt, N"] = 60


def run(settings: Settings, context: Context) -> Trajectory:
    """Losses of the flow and of both theories in every cell, how far they lie apart, and the borders."""
    check_different("widths", settings.widths, 1)
    check_different("variances", settings.variances, 2)
    seeds, widths, variances = context.seeds(settings.seeds), np.sort(settings.widths), np.sort(settings.variances)
    parts = [context.part(str(seed), partial(_run, settings, seed)) for seed in seeds]
    losses = {name: np.stack([part[name].values for part in parts], axis=1) for name in LOSSES}
    flow, theory, lazy = losses.values()
    maps = {
        name: abs(one - other).max(axis=0) / flow[0]
        for name, one, other in (
            ("lazy_error", flow, lazy), ("theory_error", flow, theory), ("predicted_lazy_error", theory, lazy),
        )
    }  # fmt: skip
    variables = {name: (("time", "seed", "width", "variance"), values) for name, values in losses.items()}
    variables |= {name: (("seed", "width", "variance"), values) for name, values in maps.items()}
    variables |= {
        name: (("seed", "width"), np.array([[border(row, variances) for row in one] for one in maps[of]]))
        for name, of in (("border", "lazy_error"), ("theory_border", "predicted_lazy_error"))
    }
    coords = {"seed": seeds, "width": widths, "variance": variances}
    return make_trajectory(variables, CLOCK, unit="part of the run", coords=coords, lab="incontext",
                           kind="simulated", level=LEVEL)  # fmt: skip


def _run(settings: Settings, seed: int) -> Trajectory:
    task = incontext.Regression(np.linspace(1.0, 0.2, settings.dim), settings.prompt)
    widths, variances = np.sort(settings.widths), np.sort(settings.variances)
    losses = np.zeros((len(LOSSES), len(CLOCK), len(widths), len(variances)))
    for (i, width), (j, variance) in itertools.product(enumerate(widths), enumerate(variances)):
        model, threshold = incontext.Wide(width, variance), variance * width
        times = CLOCK * end_of_learning(threshold)
        flow = simulate(model, task, incontext.GradientFlow(rtol=1e-7), times=times, seed=seed)
        theory = predict(model, task, incontext.SelfConsistent(1e-7), times=times, seed=seed)
        lazy = lazy_loss(task, flow["matrix"].values[0], threshold, times)
        losses[..., i, j] = flow["loss"], theory["loss"], lazy
    found = {name: (("time", "width", "variance"), one) for name, one in zip(LOSSES, losses, strict=True)}
    return make_trajectory(found, CLOCK, coords={"width": widths, "variance": variances})


def border(errors: np.ndarray, variances: np.ndarray) -> float:
    """The variance above which all heads are lazy, interpolated in logarithms; NaN where there is none in the grid."""
    above = np.flatnonzero(errors > LEVEL)
    if not len(above) or above[-1] == len(errors) - 1:
        return float("nan")
    at = above[-1]
    place = (np.log(LEVEL) - np.log(errors[at])) / (np.log(errors[at + 1]) - np.log(errors[at]))
    return float(variances[at] * (variances[at + 1] / variances[at]) ** place)


def slope(borders: np.ndarray, widths: np.ndarray) -> float:
    """Of log σ² along the border against log w."""
    known = np.isfinite(borders)
    return float(np.polyfit(np.log(widths[known]), np.log(borders[known]), 1)[0]) if known.sum() > 1 else float("nan")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge what the border depends on, and the self-consistent theory on both of its sides."""
    judge = partial(check, paper=PAPER, size=size)
    widths = trajectory["width"].values
    borders = trajectory["border"].transpose("seed", "width").values
    theory = np.log10(trajectory["theory_border"].transpose("seed", "width").values)
    place = np.log10(widths) - np.log10(widths).mean()
    other = theory.mean(-1, keepdims=True) - place / 2
    widest = trajectory.isel(width=-1).max("variance")
    return [
        judge(
            "The border between lazy and active follows σ²w: distance of its slope from −1",
            where="section 2.1", relation="<=", threshold=0.1,
            values=[abs(slope(row, widths) + 1) for row in borders],
            null=[_luckiest(row, widths) for row in borders],
            against="widths in random order, luckiest 5 %",
            not_applicable=too_few("`widths`", widths),
        ),
        judge(
            "The self-consistent theory has the border where the flow has it: mean distance in decades of σ²",
            where="equation (1)", relation="<=", threshold=0.2,
            values=abs(np.log10(borders) - theory).mean(-1),
            null=abs(np.log10(borders) - other).mean(-1),
            against="a border of σ²√w through the same middle",
            not_applicable=too_few("`widths`", widths),
        ),
        judge(
            "It follows the widest head at every variance: largest distance of the loss, relative to the first",
            where="equation (1)", relation="<=", threshold=1e-3,
            values=widest["theory_error"].values,
            null=widest["lazy_error"].values,
            against="the lazy theory",
        ),
    ]  # fmt: skip


def _luckiest(borders: np.ndarray, widths: np.ndarray) -> float:
    """The distance from −1 that the luckiest orders of the widths reach."""
    if len(widths) <= ALL:
        orders = np.array(list(itertools.permutations(range(len(widths)))))
    else:
        draws = np.tile(np.arange(len(widths)), (math.factorial(ALL), 1))
        orders = np.random.default_rng(0).permuted(draws, axis=1)
    return float(np.quantile([abs(slope(borders[order], widths) + 1) for order in orders], LUCK))


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.incontext.phase_diagram(trajectory)


EXPERIMENT = Experiment(
    "incontext/phase-diagram",
    "A wide head over width and variance: where it is lazy, and where the self-consistent theory says so",
    PAPER,
    sizes={
        "tiny": Size(8, Settings(dim=2, seeds=1, widths=(1e3, 1e5), variances=(1e-6, 1e-4, 1e-2))),
        "laptop": Size(30, Settings(dim=12, seeds=3)),
        "gpu": Size(60, Settings(dim=24, seeds=5, widths=tuple(10.0**k for k in range(2, 9)),
                                  variances=tuple(10.0 ** (k / 2) for k in range(-22, 3)))),
    },
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
