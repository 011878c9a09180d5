"""Lemma 5.1 and Theorem 5.1: Assumption 4 data, rotated, full K and Q aligned at the start.

The alignment defect, the share of W outside the diagonal of U_KᵀWU_Q, stays below 1e-8 (stated beforehand; the
solver's steps are linear combinations of aligned matrices, so only rounding can enter). The nuclear norm at unit margin
meets the closed form Σ 1/((1 − c) r_i s_i) to 0.1 %: the coordinates do not interact, margins differ by O(1) at the end
while the norm is at least 1e4. The closed form is the optimum to 1e-6 by an independent solver. The claims apply where
the data satisfy Assumptions 1 to 4.

Nulls. Of alignment: the same data from a random K and Q of the same size. Of the limit: the direction in which the flow
sets out, at the first norm. Of the closed form: the same formula on tokens moved by a hundredth, which breaks
Assumption 4. On these data the Frobenius norm has the same solution (`frobenius_apart`), so that the limit shows a
max-margin solution, and not which norm is minimised: `margin/general` is about that.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from saddles import figures, margin, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
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

UNALIGNED = 10.0
"""Norm to which the unaligned start is trained: its defect is of order 1 from the beginning."""

MOVED = 0.01
"""Standard deviation by which tokens are moved to break Assumption 4, hardly visible beside norms of order 1."""


def run(settings: ScaledDraws, context: Context) -> Trajectory:
    """One aligned flow per instance."""
    grid, seeds = norm_grid(0.1, settings.until), context.seeds(settings.instances)
    rows = each(context, "margin/aligned", {f"seed-{seed}": partial(_instance, settings, grid, seed) for seed in seeds})
    return gather(rows, grid, "instance", seeds, model=margin.FactoredAttention(scale=settings.scale))


def _instance(settings: ScaledDraws, grid: Grid, seed: int) -> xr.Dataset:
    task = settings.tokens(4, seed)
    closed, convex, flat = (margin.max_margin(task, name) for name in ("aligned", "nuclear", "frobenius"))
    model = margin.FactoredAttention(scale=settings.scale, weights=margin.aligned_weights(task, seed=seed))
    frames = margin.aligned_frames(task, seed)
    flow = simulate(model, task, settings.method)
    free = simulate(margin.FactoredAttention(scale=settings.scale), task, margin.MarginFlow(UNALIGNED), seed=seed)
    flow = flow.assign(
        defect=measures.alignment_defect(flow, *frames),
        distance=measures.direction_error(flow, closed.solution)["norm"],
        excess=measures.unit_margin(flow)["nuclear"] / closed.objective - 1,
    )
    values = on_norms(flow, grid, ("defect", "distance", "excess", "log_time", "margin", "log_loss_gap"))
    seen = _diagonal(flow["weights"].values, *frames) / flow["margin"].where(flow["margin"] > 0).values[:, None]
    entries = np.stack([on_norms(flow.assign(one=("time", row)), grid, ("one",))["one"] for row in seen.T], axis=1)
    return piece(
        values,
        {
            "optimum": closed.objective, "closed_gap": abs(closed.gap), "moved_apart": _moved_apart(task, seed),
            "solver_apart": convex.objective / closed.objective - 1,
            "frobenius_apart": float(
                np.linalg.norm(flat.solution - closed.solution) / np.linalg.norm(closed.solution)
            ),
            "assumptions": float(margin.check_assumptions(task).about(("1", "2", "3", "4")).hold),
            "worst_defect": float(flow["defect"].max()),
            "unaligned_defect": float(measures.alignment_defect(free, *frames).max()),
            "entry": (("time", "coordinate"), entries),
            "goal": (("coordinate",), _diagonal(closed.solution[None], *frames)[0]),
        },
        grid,
    )  # fmt: skip


def _moved_apart(task: "margin.Tokens", seed: int) -> float:
    """How far the closed form is from the optimum of tokens moved a little; inf where it does not separate."""
    draw = np.random.default_rng([seed, 65])
    moved = margin.Tokens(task.X + MOVED * draw.normal(size=task.X.shape), task.z, task.y, task.head)
    best = margin.max_margin(moved, "nuclear").objective
    try:
        return margin.max_margin(moved, "aligned", tolerance=1.0).objective / best - 1
    except SaddlesError:
        return np.inf


def _diagonal(weights: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The diagonals of U_KᵀWU_Q, shape (time, coordinate), of W (time, row, column)."""
    return np.einsum("da,tde,ea->ta", left, weights, right)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge alignment, the limit and the closed form."""
    broken = int((trajectory["assumptions"].values < 1).sum())
    judge = partial(
        check, paper=PAPER, size=size, relation="<=",
        not_applicable=f"{broken} instances break one of Assumptions 1 to 4" if broken else "",
    )  # fmt: skip
    return [
        judge("gradient flow preserves alignment: largest share of W off the diagonal of U_KᵀWU_Q at any time",
              where="Lemma 5.1", values=trajectory["worst_defect"].values, threshold=1e-8,
              null=trajectory["unaligned_defect"].values, against="a start that is not aligned"),
        judge("the limit is the max-margin solution: nuclear norm at unit margin above the closed form",
              where="Theorem 5.1", values=trajectory["excess"].values[-1], threshold=1e-3,
              null=never_smaller(trajectory["excess"].values[0]), against="the start"),
        judge("the closed form solves (9) and the nuclear norm problem: relative difference from an independent solver",
              where="(9), A.7", values=np.abs(trajectory["solver_apart"].values), threshold=1e-6,
              null=np.abs(trajectory["moved_apart"].values), against="the closed form on data that are not aligned"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> "Figure":
    """The diagonal of U_KᵀWU_Q, the excess over the closed form, and the alignment defect."""
    return figures.margin.aligned(trajectory)


_large = partial(ScaledDraws, n=8, length=7, dim=16, scale=0.1, until=1e5)

ALIGNED = Experiment(
    name="margin/aligned",
    title="Assumption 4, rotated: alignment is kept, and the limit solves the nuclear norm problem",
    paper=PAPER,
    sizes={
        "tiny": Size(4, ScaledDraws(n=2, length=3, dim=5, scale=0.1, instances=2, until=1e4)),
        "laptop": Size(6, ScaledDraws(n=4, length=5, dim=8, scale=0.1, instances=12, until=1e5)),
        "gpu": Size(90, _large(instances=20)),
        "paper": Size(240, _large(instances=50)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
