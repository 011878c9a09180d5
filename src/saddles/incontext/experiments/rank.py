"""Heads of rank R: R directions a head, with two laws of waiting.

Between heads everything is small, and the wait grows like 1/s with the start s. Inside a head the value is learned
already, so that the next direction grows exponentially: by what it has fallen behind, the wait from direction m to
m + 1 of a head grows by [1 − (λ_{m+1}/λ_m)²] / (2vλ²_{m+1}) for each unit of log(1/s), v = (M*_m)^{1/3} being the value
of a head that has learned direction m. With H·R < D directions at hand the loss stops at L_{HR}.

Thresholds, before these seeds: a prototype with one spectrum had the slope to 0.6 % and the exponent to 9e-4, from
fits between neighbouring starts. 3 % and 0.01 are required. The null of the slope leaves out the bracket: a direction
that begins to grow only when the one before it is learned.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from saddles import figures, incontext
from saddles.core.claim import Claim, check, too_few
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.incontext.experiments.order import learned
from saddles.incontext.experiments.staircase import spectrum
from saddles.measures.lines import slope

PAPER = "zhang2025training"

DIM = 3
"""Two directions for the first head of rank two, one for the second."""

LEVELS = 400
"""Instants of the losses that are drawn."""

SHOWN = (-10.0, 25.0)
"""They are drawn around the instant at which the first direction is half learned."""


@dataclass(frozen=True)
class Settings:
    """Random spectra, and starts."""

    seeds: Annotated[int, "independent spectra and initial weights"]
    starts: Annotated[list[float], "starts of the heads, from the largest down"]
    prompt: Annotated[int, "pairs in a prompt, N"] = 31


def run(settings: Settings, context: Context) -> Trajectory:
    """When two heads of rank two learn each of three directions, from each start; where one head stops."""
    check_different("starts", settings.starts, 1)
    clock = np.linspace(*SHOWN, LEVELS)
    parts = [_one(settings, seed, clock) for seed in context.seeds(settings.seeds)]
    dims = {
        "loss": ("time", "start", "seed"), "seen_time": ("start", "seed", "direction"), "slope": ("seed",),
        "plain_slope": ("seed",), "stop": ("seed",), "plateau": ("seed", "level"),
    }  # fmt: skip
    variables = {
        name: (names, np.stack([part[name] for part in parts], axis=names.index("seed")))
        for name, names in dims.items()
    }
    return make_trajectory(
        variables, clock, unit="gradient time since the first direction", coords={"start": settings.starts},
        lab="incontext", kind="simulated",
    )  # fmt: skip


def _one(settings: Settings, seed: int, clock: np.ndarray) -> dict[str, np.ndarray]:
    task = incontext.Regression(spectrum(DIM, 0.8, np.random.default_rng([seed, 66])), settings.prompt)
    flow = incontext.GradientFlow(rtol=1e-7)
    when, losses = [], []
    for start in settings.starts:
        run = simulate(incontext.Separate(2, 2, start), task, flow, seed=seed)
        when.append(learned(run["strength"].values, run["time"].values, task))
        losses.append(np.interp(when[-1][0] + clock, run["time"], run["loss"]))
    alone = simulate(incontext.Separate(1, 2, settings.starts[0]), task, flow, seed=seed)
    values = task.frame[0]
    head = float(task.frame[1][:, 0] @ task.target @ task.frame[1][:, 0]) ** (1 / 3)
    plain = 1 / (2 * head * values[1] ** 2)
    return {
        "loss": np.stack(losses, axis=1),
        "seen_time": np.stack(when),
        "slope": np.asarray((1 - (values[1] / values[0]) ** 2) * plain),
        "plain_slope": np.asarray(plain),
        "stop": np.asarray(float(alone["loss"][-1])),
        "plateau": task.plateaus,
    }


def waits(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Inside the first head and between the two: (start, seed) each."""
    inner, outer = np.moveaxis(np.diff(trajectory["seen_time"].values, axis=-1), -1, 0)
    return inner, outer


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge both laws and the loss at which one head stops."""
    inner, outer = waits(trajectory)
    logs = np.log(1 / trajectory["start"].values)
    seen, exponent, other = (slope(logs, rows) for rows in (inner, np.log(outer), np.log(inner)))
    told, plain, stop = (trajectory[name].values for name in ("slope", "plain_slope", "stop"))
    alone = too_few("`starts`", logs)
    levels = trajectory["plateau"].values
    return [
        check(
            "Inside a head the wait grows with log(1/s) at the predicted slope: largest relative error",
            paper=PAPER, where="section 5, derived here", size=size, relation="<=", threshold=0.03,
            values=np.abs(told / seen - 1).max(), null=np.abs(plain / seen - 1).min(),
            against="the slope of a direction that does not grow before its turn", not_applicable=alone,
        ),
        check(
            "Between heads the wait grows as 1/s: largest distance of the exponent from 1",
            paper=PAPER, where="section 5, derived here", size=size, relation="<=", threshold=0.01,
            values=np.abs(exponent - 1).max(), null=np.abs(other - 1).min(), against="the waits inside a head",
            not_applicable=alone,
        ),
        check(
            "One head of rank two stops with two directions learned: largest distance of its loss from L_2, in L_0",
            paper=PAPER, where="section 5", size=size, relation="<=", threshold=0.01,
            values=(np.abs(stop - levels[:, 2]) / levels[:, 0]).max(),
            null=(np.abs(stop[:, None] - levels[:, [1, 3]]) / levels[:, :1]).min(), against="L_1 and L_3",
        ),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.incontext.rank(trajectory)


EXPERIMENT = Experiment(
    "incontext/rank",
    "Heads of rank two: waits inside a head and between heads",
    PAPER,
    sizes={
        "tiny": Size(8, Settings(seeds=1, starts=[1e-3, 1e-4])),
        "laptop": Size(4, Settings(seeds=6, starts=[1e-3, 1e-4, 1e-5, 1e-6])),
        "gpu": Size(200, Settings(seeds=30, starts=[1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])),
    },
    run=run,
    claims=claims,
    figure=figure,
)
