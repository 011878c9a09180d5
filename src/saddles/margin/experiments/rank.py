"""K and Q with few columns, and starts that are not aligned: what section 3 expects and Theorem 5.1 does not cover.

(W*-SVM) minimises the nuclear norm over rank(W) ≤ d_e, and section 3 expects the direction of W = KQᵀ to converge to
its solution. The theorem shows it for d_e ≥ d, data under Assumption 4 and aligned starts. Here K and Q start from
small Gaussian entries: on general data with d_e = 1 and 2, judged against `low_rank_margin`, whose optimum is proven
for d_e = 1 (all signs of qᵀz_i are tried) and wherever the solution without the constraint has rank d_e at most; and
on data under Assumption 4 with d_e = d, judged against the closed form.

Claims and their thresholds, all at the last norm and of the median instance, as in `margin/general`: the nuclear norm
at unit margin is at most 1 % above the optimum. For d_e = 1 it is also put over the local optimum that lies nearest,
where the local solver ends from the flow's own W: the weaker statement that the limit is a local solution. A flow that
does not separate counts as infinitely far.

Nulls: for d_e = 1 another local optimum, the median over all signs; for d_e = 2 the optimum of rank 1; for the local
optimum a W = kqᵀ that only separates, with the signs of qᵀz_i that the flow ends with, over the local optimum next to
it: what a limit without any bias among the separating ones would give; under Assumption 4 the direction of the first
step from a small start, Σ (x_opt − x_l)zᵀ over all constraints. (Cut to rank 1 the first step is not a null: one q must
have the right sign in every sequence, and it hardly ever separates.)
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import figures, margin, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.margin.experiments.norm_grid import (
    PAPER,
    Grid,
    ScaledDraws,
    each,
    gather,
    never_smaller,
    norm_grid,
    on_norms,
    piece,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (1, 2)
"""Columns d_e of K and Q on general data."""


@dataclass(frozen=True, kw_only=True)
class Settings(ScaledDraws):
    """Settings of rank."""

    starts: Annotated[int, "starts of the local solver"]


def run(settings: Settings, context: Context) -> Trajectory:
    """Every instance with one and two columns, and one under Assumption 4 with all of them."""
    grid, seeds = norm_grid(1.0, settings.until), context.seeds(settings.instances)
    parts = {f"instance-{seed}": partial(_instance, settings, grid, seed) for seed in seeds}
    return gather(each(context, "margin/rank", parts), grid, "instance", seeds)


def _instance(settings: Settings, grid: Grid, seed: int) -> xr.Dataset:
    task = settings.tokens(3, seed)
    values: dict[str, Grid] = {}
    numbers: dict[str, float] = {}
    convex = margin.max_margin(task, "nuclear")
    for columns in COLUMNS:
        best = margin.low_rank_margin(task, columns, starts=settings.starts, seed=seed, convex=convex)
        last = _follow(task, columns, settings, grid, seed, best.best.objective, values)
        if columns == 1:
            numbers["separating_1"] = _only_separating(task, last)
        near = (
            margin.low_rank.local_optimum(task, *margin.low_rank.truncated(last, columns))
            if task.margins(last).min() > 0
            else None
        )
        finite = best.objectives[np.isfinite(best.objectives)]
        numbers |= {
            f"above_convex_{columns}": best.best.objective / convex.objective - 1,
            f"proven_{columns}": float(best.proven),
            f"local_optima_{columns}": float(len(np.unique(np.round(finite / finite.min(), 3)))),
            f"local_{columns}": np.nan
            if near is None
            else margin.low_rank.unit_norm(task, last) / margin.low_rank.unit_norm(task, near) - 1,
            f"other_{columns}": float(np.median(finite)) / best.best.objective - 1,
        }
    numbers["lower_2"] = (1 + numbers["above_convex_1"]) / (1 + numbers["above_convex_2"]) - 1
    paired = margin.Tokens.random(settings.dim - 2, 2 * (settings.length // 2) + 1, settings.dim, 4, seed)
    closed = margin.max_margin(paired, "aligned").objective
    _follow(paired, settings.dim, settings, grid, seed, closed, values)
    numbers["first_all"] = _first_step(paired, closed)
    return piece(values, numbers, grid)


def _follow(
    task: "margin.Tokens", columns: int, settings: Settings, grid: Grid, seed: int, best: float, values: dict[str, Grid]
) -> np.ndarray:
    """Train from a small random start, note the excess over an optimum on the grid, and return the last W."""
    flow = simulate(margin.FactoredAttention(columns, settings.scale), task, settings.method, seed=seed)
    flow = flow.assign(excess=measures.unit_margin(flow)["nuclear"] / best - 1)
    values[f"excess_{'all' if columns == settings.dim else columns}"] = on_norms(flow, grid, ("excess",))["excess"]
    return flow["weights"].values[-1]


def _only_separating(task: "margin.Tokens", last: np.ndarray) -> float:
    """Excess of some kqᵀ with the signs of the flow's end over the local optimum next to it; infinite without one."""
    _, query = margin.low_rank.truncated(last, 1)
    pair = margin.low_rank.separating(task, np.where(task.z @ query[:, 0] < 0, -1.0, 1.0))
    near = None if pair is None else margin.low_rank.local_optimum(task, *pair)
    if pair is None or near is None:
        return np.inf
    return margin.low_rank.unit_norm(task, pair[0] @ pair[1].T) / margin.low_rank.unit_norm(task, near) - 1


def _first_step(task: "margin.Tokens", best: float) -> float:
    """Excess of the direction of the first step; infinite where that does not separate."""
    weights = task.left.T @ task.right
    return margin.low_rank.unit_norm(task, weights) / best - 1 if task.margins(weights).min() > 0 else np.inf


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the medians at the last norm."""
    judge = partial(check, paper=PAPER, size=size, relation="<=", threshold=0.01)
    few = "d_e = {} columns, small random start: nuclear norm at unit margin above the optimum of that rank, median"
    return [
        *(
            judge(few.format(columns), where="(W*-SVM), beyond Theorem 5.1",
                  values=np.median(_ends(trajectory, f"excess_{columns}")),
                  null=np.median(trajectory[null].values), against=against)
            for columns, null, against in ((1, "other_1", "another local optimum"), (2, "lower_2", "that of rank 1"))
        ),
        judge("d_e = 1: the same above the local optimum next to the flow's end, median",
              where="(W*-SVM), beyond Theorem 5.1", values=np.median(never_smaller(trajectory["local_1"].values)),
              null=np.median(trajectory["separating_1"].values),
              against="a W that only separates, with the same signs"),
        judge("Assumption 4, a start that is not aligned: nuclear norm at unit margin above the closed form, median",
              where="Theorem 5.1 without its start", values=np.median(_ends(trajectory, "excess_all")),
              null=np.median(trajectory["first_all"].values), against="the direction of the first step"),
    ]  # fmt: skip


def _ends(trajectory: Trajectory, name: str) -> np.ndarray:
    return never_smaller(trajectory[name].values[-1])


def figure(trajectory: Trajectory) -> "Figure":
    """Excess over the optimum against the norm: one column, two, and all of them under Assumption 4."""
    return figures.margin.rank(trajectory)


_full = partial(Settings, scale=1e-3, starts=12)

RANK = Experiment(
    name="margin/rank",
    title="Few columns of K and Q, and starts that are not aligned: how far from the max-margin solution of that rank",
    paper=PAPER,
    sizes={
        "tiny": Size(5, _full(n=2, length=3, dim=4, instances=2, until=100.0, starts=4)),
        "laptop": Size(8, _full(n=4, length=4, dim=6, instances=12, until=3000.0)),
        "gpu": Size(120, _full(n=4, length=4, dim=6, instances=50, until=3000.0, starts=40)),
        "paper": Size(600, _full(n=8, length=6, dim=16, instances=50, until=3000.0, starts=40)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
