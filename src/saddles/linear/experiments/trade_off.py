"""The trade-off of Figure 2, bottom left: deeper in the active regime, better and slower.

Along γ_σ² at fixed γ_w, from the transition on. Threshold: both monotone, up to 2 % for the test
error, which saturates at the error of the best rank-K fit and is read off at whole steps.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.linear import trade_off as figure
from saddles.linear.diagram import follow_cells
from saddles.linear.experiments.scaling import rate, width
from saddles.linear.task import Denoising
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]

PAPER = "tu2024mixed"


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Best test error and its step, over distances to the transition and seeds."""
    seeds = context.seeds(settings["seeds"])
    distances = np.linspace(0.1, 1.5, settings["points"])
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
    whole.attrs |= {name: settings[name] for name in ("dim", "rank", "c", "gamma_w")}
    return whole


def _line(settings: dict[str, Any], seed: int, distances: np.ndarray, tick: Any) -> Trajectory:
    dim, gamma_w = settings["dim"], settings["gamma_w"]
    task = Denoising(dim, settings["rank"], seed=seed)
    wide = width(dim, gamma_w)
    variances = [1 - gamma_w - distance for distance in distances]
    cells = [(0, dim**g, rate(dim, gamma_w, g, task.target, settings["c"])) for g in variances]
    found = follow_cells(task, [wide], cells, seed=seed, limit=settings["limit"], tick=tick)
    times = found["best_step"] * np.array([cell[2] for cell in cells])
    variables = {name: (("time",), found[name]) for name in ("best_test_error", "best_step", "stable_rank")}
    return make_trajectory(variables | {"best_time": (("time",), times)}, distances, unit="distance")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge monotony."""
    error = trajectory["best_test_error"].transpose("time", "seed").values
    steps = trajectory["best_step"].transpose("time", "seed").values
    judge = partial(check, paper=PAPER, where="Figure 2, bottom left", size=size)
    return [
        judge(
            "The best test error falls with the distance to the transition: largest relative rise between neighbours",
            values=(error[1:] / error[:-1] - 1).max(axis=0),
            relation="<=",
            threshold=0.02,
        ),
        judge(
            "The steps to it grow with the distance: smallest rise between neighbours",
            values=np.diff(steps, axis=0).min(axis=0),
            relation=">=",
            threshold=0.0,
        ),
        judge(
            "The error at the far end is far below that at the transition: ratio",
            values=error[-1] / error[0],
            relation="<=",
            threshold=0.5,
        ),
    ]
