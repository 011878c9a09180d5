"""Theorem 4.1: diagonal K and Q converge in direction to the ℓ1 max-margin solution.

The excess is ‖β/μ‖₁ over the optimum of the linear program (HiGHS, with its certificate), minus 1. The theorem speaks
of the limit; how near a norm of 1e5 and 1e7 comes to it was stated beforehand: median ≤ 0.5 %, nine in ten within
1 %, all within 3 % at 1e5; all within 1 % at 1e7. The excess keeps falling: what is left at the last norm of the excess
at norm 100 is at most a half, where a limit elsewhere would leave a floor; (log t)^−a with a ≥ 0.1 would leave a third
over these five decades, and `dual_slack` is what a should become. Lemma 4.2: the norm diverges (every run reaches the
last norm), and the loss falls to L* at the rate of an exponential loss, L − L* ~ 1/t: −log(L − L*)/log t is 1 within
1 % at the end (corrections are ln μ/μ, 1e-5 here).

Nulls. Of the excess: the ℓ2 max-margin solution, the limit of one trained β; its ℓ1 norm over the optimum. Of the fall:
the ℓ2 norm of the same runs over the ℓ2 optimum, which must stay away from 0. Of the loss: the trained β with the
queries given to other sequences, which leaves L* as it is.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from saddles import figures, margin, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.status import status_of
from saddles.core.trajectory import Trajectory
from saddles.margin.experiments.norm_grid import (
    PAPER,
    Grid,
    ScaledDraws,
    at,
    each,
    gather,
    norm_grid,
    on_norms,
    piece,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(settings: ScaledDraws, context: Context) -> Trajectory:
    """One flow and one linear program per instance."""
    grid, seeds = norm_grid(1.0, settings.until, decades=2), context.seeds(settings.instances)
    pieces = {f"seed-{seed}": partial(_instance, settings, grid, seed) for seed in seeds}
    return gather(
        each(context, "margin/diagonal", pieces),
        grid,
        "instance",
        seeds,
        model=margin.DiagonalAttention(settings.scale),
    )


def _instance(settings: ScaledDraws, grid: Grid, seed: int) -> xr.Dataset:
    """The flow of one draw of the data against its optimum."""
    task = settings.tokens(3, seed, diagonal=True)
    best, ridge = margin.max_margin(task, "l1"), margin.max_margin(task, "frobenius", diagonal=True)
    model = margin.DiagonalAttention(settings.scale)
    flow = simulate(model, task, settings.method)
    norms = measures.unit_margin(flow)
    flow = flow.assign(
        excess=norms["l1"] / best.objective - 1, ridge_excess=norms["frobenius"] / ridge.objective - 1
    )  # fmt: skip
    names = ("excess", "ridge_excess", "log_time", "margin", "log_loss_gap", "certified_gap")
    numbers = {
        "optimum": best.objective, "optimum_gap": best.gap, "dual_slack": dual_slack(task, best),
        "reached": float(status_of(flow).ok), "ridge_l1": np.abs(ridge.solution).sum() / best.objective - 1,
        "permuted_log_loss_gap": permuted_gap(model, task, flow["beta"].values[-1]),
    }  # fmt: skip
    return piece(on_norms(flow, grid, names), numbers, grid)


def permuted_gap(model: "margin.DiagonalAttention", task: "margin.Tokens", beta: np.ndarray) -> float:
    """Log(L − L*) of a β on data whose queries belong to other sequences."""
    other = margin.Tokens(task.X, np.roll(task.z, 1, axis=0), task.y, task.head)
    return model.flow(other)[0].coefficients.loss(other.margins(beta))[1]


def dual_slack(task: "margin.Tokens", best: "margin.Certified") -> float:
    """1 − max |Bλ*|_j over the coordinates that are 0 in the solution: how fast the last of them fades.

    β_j/|β| ∝ |β|^−(1 − |Bλ*|_j): where a coordinate is nearly as good as those of the solution it fades slowly. 1
    where no coordinate is 0.
    """
    # HiGHS returns a vertex, whose zeros are exact but for rounding.
    zero = np.abs(best.solution) <= 1e-9 * np.abs(best.solution).max()
    return float(1 - np.abs(best.multipliers @ task.diagonal)[zero].max()) if zero.any() else 1.0


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the excess at 1e5 and at 1e7, its fall, divergence and the loss."""
    middle, end = at(trajectory, "excess", 1e5), trajectory["excess"].values[-1]
    far = trajectory["time"].values[-1] > 6.99  # log10 of 1e7, but for the rounding of the grid
    other, clock = trajectory["ridge_l1"].values, trajectory["log_time"].values[-1]
    left = {name: trajectory[name].values[-1] / at(trajectory, name, 100.0) for name in ("excess", "ridge_excess")}
    judge = partial(check, paper=PAPER, size=size)
    limit, ridge = partial(judge, where="Theorem 4.1"), "the ℓ2 solution"
    return [
        limit("ℓ1 norm at unit margin above the optimum at |β| = 1e5: median over the instances",
              values=np.median(middle), relation="<=", threshold=0.005, null=np.median(other), against=ridge),
        limit("the same: share of instances within 1 %",
              values=np.mean(middle <= 0.01), relation=">=", threshold=0.9, null=np.mean(other <= 0.01),
              against=ridge),
        limit("the same: the worst instance", values=middle, relation="<=", threshold=0.03, null=other,
              against=ridge),
        limit("ℓ1 norm at unit margin above the optimum at |β| = 1e7: the worst instance",
              values=end, relation="<=", threshold=0.01, null=other, against=ridge,
              not_applicable="" if far else "the run ends before norm 1e7"),
        limit("the excess keeps falling: at the last norm over at norm 100",
              values=left["excess"], relation="<=", threshold=0.5, null=left["ridge_excess"],
              against="excess over the ℓ2 optimum"),
        judge("|β| diverges: share of runs that reach the last norm", where="Lemma 4.2",
              values=trajectory["reached"].values.mean(), relation=">=", threshold=1.0,
              against="it says that runs end where they should"),
        judge("the loss falls to L* like 1/t: |log(L − L*)/log t + 1| at the end",
              where="Theorem 4.1, global convergence",
              values=np.abs(trajectory["log_loss_gap"].values[-1] / clock + 1), relation="<=", threshold=0.01,
              null=np.abs(trajectory["permuted_log_loss_gap"].values / clock + 1), against="permuted data"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> "Figure":
    """The excess against the norm, against log t, and its distribution."""
    return figures.margin.diagonal(trajectory)


_data = partial(ScaledDraws, n=6, length=5, dim=20, scale=0.5, until=1e7)

DIAGONAL = Experiment(
    name="margin/diagonal",
    title="Diagonal attention converges in direction to the ℓ1 max-margin solution",
    paper=PAPER,
    sizes={
        "tiny": Size(3, ScaledDraws(n=3, length=4, dim=12, scale=0.5, instances=4, until=1e5)),
        "laptop": Size(6, _data(instances=30)),
        "gpu": Size(120, _data(instances=200)),
        "paper": Size(600, _data(instances=1000)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
