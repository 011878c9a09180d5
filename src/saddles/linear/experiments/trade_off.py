"""The trade-off of Figure 2, bottom left: deeper in the active regime, better and slower.

Along γ_σ² at fixed γ_w, from the transition on. Threshold: both monotone, up to 2 % for the test
error, which saturates at the error of the best rank-K fit and is read off at whole steps. The null of each claim is the
same with the distances in reverse order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.linear.experiments.scaling import PAPER, rate, width
from saddles.runtime.progress import bar


@dataclass(frozen=True)
class Settings:
    """A line of cells from the transition into the active regime."""

    dim: Annotated[int, "rows and columns of the matrix, d"]
    points: Annotated[int, "distances to the transition"]
    seeds: Annotated[int, "independent tasks and initial weights"]
    rank: Annotated[int, "rank K of the truth A*"] = 5
    gamma_w: Annotated[float, "width w = d^gamma_w", Within(-10, 10)] = 2.0
    c: Annotated[float, "learning rate η = d²/(c ‖A*‖)"] = 50.0
    limit: Annotated[int, "most steps of a cell"] = 9000


def run(settings: Settings, context: Context) -> Trajectory:
    """Best test error and its step, over distances to the transition and seeds."""
    seeds = context.seeds(settings.seeds)
    distances = np.linspace(0.1, 1.5, settings.points)
    with bar("linear/trade-off", len(seeds) * len(distances)) as progress:
        make = partial(_line, settings, distances=distances, tick=progress.advance)
        parts = [context.part(f"seed-{seed}", partial(make, seed)) for seed in seeds]
    names = ("best_test_error", "best_step", "best_time", "stable_rank")
    variables = {name: (("time", "seed"), np.stack([part[name].values for part in parts], axis=-1)) for name in names}
    whole = make_trajectory(
        variables,
        distances,
        unit="distance to the transition, 1 − γ_w − γ_σ²",
        coords={"seed": seeds},
        lab="linear",
        kind="simulated",
    )
    whole.attrs |= {"dim": settings.dim, "rank": settings.rank, "c": settings.c, "gamma_w": settings.gamma_w}
    return whole


def _line(settings: Settings, seed: int, distances: np.ndarray, tick: Callable[[float], None]) -> Trajectory:
    from saddles.linear.diagram import follow_cells  # loads JAX

    dim, gamma_w = settings.dim, settings.gamma_w
    task = linear.Denoising(dim, settings.rank, seed=seed)
    wide = width(dim, gamma_w)
    variances = [1 - gamma_w - distance for distance in distances]
    cells = [(0, dim**g, rate(dim, gamma_w, g, task.target, settings.c)) for g in variances]
    measured = follow_cells(task, [wide], cells, seed=seed, limit=settings.limit, tick=tick)
    times = measured["best_step"] * np.array([cell[2] for cell in cells])
    variables = {name: (("time",), measured[name]) for name in ("best_test_error", "best_step", "stable_rank")}
    return make_trajectory(variables | {"best_time": (("time",), times)}, distances, unit="distance")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge that both are monotone."""
    error = trajectory["best_test_error"].transpose("time", "seed").values
    steps = trajectory["best_step"].transpose("time", "seed").values
    judge = partial(check, paper=PAPER, where="Figure 2, bottom left", size=size)
    mixed = np.random.default_rng(0).permutation(len(error))
    return [
        judge(
            "The best test error falls with the distance to the transition: largest relative rise between neighbours",
            values=(error[1:] / error[:-1] - 1).max(axis=0),
            relation="<=",
            threshold=0.02,
            null=(error[mixed][1:] / error[mixed][:-1] - 1).max(axis=0),
            against="distances in random order",
        ),
        judge(
            "The steps to it grow with the distance: smallest rise between neighbours",
            values=np.diff(steps, axis=0).min(axis=0),
            relation=">=",
            threshold=0.0,
            null=np.diff(steps[mixed], axis=0).min(axis=0),
            against="distances in random order",
        ),
        judge(
            "The error at the far end is far below that at the transition: ratio",
            values=error[-1] / error[0],
            relation="<=",
            threshold=0.5,
            null=(error[1:] / error[:-1]).min(axis=0),
            against="the largest fall in one step of the sweep",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.trade_off(trajectory)


EXPERIMENT = Experiment(
    "linear/trade-off",
    "Training time against test error along the distance to the transition",
    PAPER,
    sizes={
        "tiny": Size(4, Settings(dim=40, rank=3, points=5, c=20.0, seeds=2)),
        "laptop": Size(3, Settings(dim=100, points=9, seeds=3)),
        "gpu": Size(20, Settings(dim=200, points=13, seeds=4)),
        "paper": Size(300, Settings(dim=200, points=13, seeds=3)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
