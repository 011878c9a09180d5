"""Section E.2: transient memorisation fades as the hidden width grows, at fixed scale of W(0).

A symmetric pair on s = d = 2, μ = (1, 2), σ = 0.05, U(0) Gaussian with d'τ² fixed: major entries start at d'τ²,
minor ones at 0 ± τ²√d', so they matter less as d' grows.

Claims and their thresholds: the mean depth of transient memorisation falls with d'; the slope of its log
against log d' is negative in every group of starts, and the widest network has less than half of the depth
of the narrowest (its minor entries start √(d'_max/d'_min) ≥ 4 times smaller).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import concepts, figures
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.concepts.observe import point_loss
from saddles.core.claim import Claim, check
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.settings import check_different
from saddles.core.status import Status
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.loss_curves import descents

_DRAW = 41
"""Tag that keeps the draws of this experiment apart from others of the same seed."""


@dataclass(frozen=True)
class Settings:
    """The widths that are compared, and how many starts of each are followed."""

    widths: Annotated[tuple[int, ...], "hidden widths d'", Within(2, LARGEST)] = (2, 4, 8, 16, 32, 64)
    scale: Annotated[float, "d'τ², the size of the major entries of W(0)"] = 0.02
    starts: Annotated[int, "starts in each group", Within(10, LARGEST)] = 400
    seeds: Annotated[int, "groups of starts; each is one value behind a claim"] = 3
    until: Annotated[float, "gradient time"] = 20.0
    instants: Annotated[int, "saved instants, logarithmic", Within(10, LARGEST)] = 300


def run(settings: Settings, context: Context) -> Trajectory:
    """Mean depth and fraction of starts with two descents, over widths and groups of starts."""
    check_different("widths", settings.widths)
    task = concepts.Identity((1.0, 2.0), 0.05)
    widths, seeds = settings.widths, context.seeds(settings.seeds)
    times = np.concatenate([[0.0], np.geomspace(0.01, settings.until, settings.instants)])
    losses = np.zeros((len(times), len(widths), len(seeds), settings.starts))
    statuses: list[Status] = []
    for i, width in enumerate(widths):
        scale = np.sqrt(settings.scale / width)
        factors = np.concatenate(
            [
                scale * np.random.default_rng([seed, _DRAW, width]).normal(size=(settings.starts, 2, width))
                for seed in seeds
            ]
        )
        flows, status = concepts.flow_many(
            _reduced(factors), task.strengths, task.target, times, observe=("output",), rtol=1e-6
        )
        statuses.append(status)
        losses[:, i] = point_loss(flows["output"], task.target).reshape(len(times), len(seeds), -1)
    dims = ("time", "width", "seed", "run")
    whole = make_trajectory(
        {"loss": (dims, losses)},
        times,
        unit="gradient time",
        lab="concepts",
        kind="simulated",
        task=task,
        coords={"width": list(widths), "seed": seeds},
        status=Status.all_of(statuses),
    )
    table = descents(whole["loss"])
    whole["depth"] = table["depth"].mean("run")
    whole["twice"] = (table["count"] >= 2).mean("run")
    shown = whole["loss"].isel(seed=0, run=slice(0, 12))
    whole = whole.drop_vars("loss")
    whole["test_loss"] = shown.drop_vars("seed")
    whole.attrs["scale"] = settings.scale
    return whole


def _reduced(factors: np.ndarray) -> np.ndarray:
    """A factor with two columns and the same UUᵀ: training sees U only through it."""
    return np.linalg.cholesky(factors @ factors.swapaxes(1, 2))


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the fall."""
    depth = trajectory["depth"].transpose("width", "seed").values
    logs = np.log(np.maximum(depth, 1e-6))
    slope = np.polyfit(np.log(trajectory["width"].values), logs, 1)[0]
    mixed = np.random.default_rng(0).permuted(depth, axis=0)
    mixed_slope = np.polyfit(np.log(trajectory["width"].values), np.log(np.maximum(mixed, 1e-6)), 1)[0]
    judge = partial(check, paper=PAPER, where="Section E.2", size=size)
    return [
        judge("Transient memorisation falls with d': slope of log mean depth against log d'",
              values=list(slope), relation="<=", threshold=0.0, null=list(mixed_slope),
              against="widths in random order, for each seed its own"),
        judge("The widest has less than half the depth of the narrowest: ratio",
              values=list(depth[-1] / depth[0]), relation="<=", threshold=0.5,
              null=list(mixed[-1] / np.maximum(mixed[0], 1e-6)),
              against="widths in random order, for each seed its own"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Depth of transient memorisation against the width."""
    return figures.concepts.breakdown(trajectory)


EXPERIMENT = Experiment(
    "concepts/breakdown",
    "Transient memorisation fades with the hidden width at fixed scale of W(0)",
    PAPER,
    sizes=sizes(
        Size(4, Settings(widths=(2, 8, 32), starts=30, seeds=2, instants=200)),
        Size(5, Settings()),
        Size(90, Settings(widths=(2, 4, 8, 16, 32, 64, 128), starts=3000)),
        gpu_seconds=15,
    ),
    run=run,
    claims=claims,
    figure=figure,
)
