"""Theorem 4.1: diagonal K and Q converge in direction to the ℓ1 max-margin solution.

The excess is ‖β/μ‖₁ over the optimum of the linear program (HiGHS, with its certificate), minus 1. The theorem speaks
of the limit; how near a norm of 1e5 and 1e7 comes to it was asked for beforehand: median ≤ 0.5 %, nine in ten within
1 %, all within 3 % at 1e5; all within 1 % at 1e7. The excess falls with log t: excess ∝ (log t)^−a with a > 0, fitted
from norm 100 on, one a for each instance; `dual_slack` is what it should become. Lemma 4.2: the norm diverges (every
run reaches the last norm) and the loss falls to L*: L − L* is below e^−100 at the end, for log(L − L*) is about minus
the margin.
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.status import status_of
from saddles.core.trajectory import Trajectory
from saddles.figures.margin import diagonal as figure
from saddles.margin.certificate import Certified
from saddles.margin.convex import max_margin
from saddles.margin.experiments.table import PAPER, at, fall_rate, gather, norm_grid, on_norms, piece
from saddles.margin.method import MarginFlow
from saddles.margin.model import DiagonalAttention
from saddles.margin.task import Tokens
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """One flow and one linear program an instance."""
    grid = norm_grid(1.0, settings["until"])
    seeds = context.seeds(settings["instances"])
    rows = []
    with bar("margin/diagonal", len(seeds)) as progress:
        for seed in seeds:
            rows.append(context.part(f"seed-{seed}", partial(instance, settings, grid, seed)))
            progress.advance()
    return gather(rows, grid, "instance", seeds, model=DiagonalAttention(settings["scale"]))


def instance(settings: dict[str, Any], grid: np.ndarray, seed: int) -> xr.Dataset:
    """The flow of one draw of the data against its optimum."""
    task = Tokens.random(settings["n"], settings["length"], settings["dim"], 3, seed, diagonal=True)
    best = max_margin(task, "l1")
    flow = simulate(DiagonalAttention(settings["scale"]), task, MarginFlow(settings["until"]))
    flow = flow.assign(excess=flow["nuclear_norm"] / flow["margin"].where(flow["margin"] > 0) / best.objective - 1)
    names = ("excess", "log_time", "margin", "log_loss_gap", "certified_gap")
    values = on_norms(flow, grid, names)
    numbers = {
        "optimum": best.objective, "optimum_gap": best.gap, "dual_slack": dual_slack(task, best),
        "reached": float(status_of(flow).ok),
    }  # fmt: skip
    return piece(values, numbers, grid)


def dual_slack(task: Tokens, best: Certified) -> float:
    """1 − max |Bλ*|_j over the coordinates that are 0 in the solution: how fast the last of them fades.

    β_j/|β| ∝ |β|^−(1 − |Bλ*|_j): where a coordinate is nearly as good as those of the solution it fades slowly. 1
    where no coordinate is 0.
    """
    zero = np.abs(best.solution) <= 1e-9 * np.abs(best.solution).max()
    return float(1 - np.abs(best.multipliers @ task.diagonal)[zero].max()) if zero.any() else 1.0


def rates(trajectory: Trajectory) -> np.ndarray:
    """The exponent a of excess ∝ (log t)^−a of each instance, from norm 100 on."""
    late = trajectory.isel(time=trajectory["time"].values >= 2)
    pairs = zip(late["log_time"].values.T, late["excess"].values.T, strict=True)
    return np.array([fall_rate(clock, excess) for clock, excess in pairs])


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the excess at 1e5 and at 1e7, its fall, divergence and the loss."""
    middle, end = at(trajectory, "excess", 1e5), trajectory["excess"].values[-1]
    far = trajectory["time"].values[-1] > 6.99
    facts: dict[str, Any] = {"paper": PAPER, "size": size}
    short = "" if far else "the run ends before norm 1e7"
    rest: Any = {"where": "Theorem 4.1", **facts}
    return [
        check("ℓ1 norm at unit margin above the optimum at |β| = 1e5: median over the instances",
              values=np.median(middle), relation="<=", threshold=0.005, **rest),
        check("the same: share of instances within 1 %",
              values=np.mean(middle <= 0.01), relation=">=", threshold=0.9, **rest),
        check("the same: the worst instance", values=middle, relation="<=", threshold=0.03, **rest),
        check("ℓ1 norm at unit margin above the optimum at |β| = 1e7: the worst instance",
              values=end, relation="<=", threshold=0.01, not_applicable=short, **rest),
        check("the excess falls like (log t)^−a: least a",
              values=rates(trajectory), relation=">=", threshold=0.0, **rest),
        check("|β| diverges: share of runs that reach the last norm", where="Lemma 4.2",
              values=trajectory["reached"].values.mean(), relation=">=", threshold=1.0, **facts),
        check("the loss converges to L*: log(L − L*) at the end", where="Theorem 4.1, global convergence",
              values=trajectory["log_loss_gap"].values[-1], relation="<=", threshold=-100.0, **facts),
    ]  # fmt: skip
