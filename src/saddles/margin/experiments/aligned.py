"""Lemma 5.1 and Theorem 5.1: Assumption 4 data, rotated, full K and Q aligned at the start.

The alignment defect, the share of W outside the diagonal of U_KᵀWU_Q, stays below 1e-8 (stated beforehand; the
solver's steps are linear combinations of aligned matrices, so only rounding can enter). The nuclear norm at unit margin
meets the closed form Σ 1/((1 − c) r_i s_i) to 0.1 %: the coordinates do not interact, margins differ by O(1) at the end
while the norm is at least 1e4. The closed form is the optimum: its own certificate and an independent solver agree to
1e-6.
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
from saddles.margin.experiments.norm_grid import PAPER, Grid, ScaledDraws, each, gather, norm_grid, on_norms, piece

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(settings: ScaledDraws, context: Context) -> Trajectory:
    """One aligned flow per instance."""
    grid, seeds = norm_grid(0.1, settings.until), context.seeds(settings.instances)
    rows = each(context, "margin/aligned", {f"seed-{seed}": partial(_instance, settings, grid, seed) for seed in seeds})
    return gather(rows, grid, "instance", seeds, model=margin.FactoredAttention(scale=settings.scale))


def _instance(settings: ScaledDraws, grid: Grid, seed: int) -> xr.Dataset:
    task = settings.tokens(4, seed)
    closed, convex = margin.max_margin(task, "aligned"), margin.max_margin(task, "nuclear")
    model = margin.FactoredAttention(scale=settings.scale, weights=margin.aligned_weights(task, seed=seed))
    frames = margin.aligned_frames(task, seed)
    flow = simulate(model, task, settings.method)
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
            "optimum": closed.objective, "closed_gap": abs(closed.gap),
            "solver_apart": convex.objective / closed.objective - 1,
            "assumptions": float(margin.check_assumptions(task).about(("1", "2", "3", "4")).hold),
            "worst_defect": float(flow["defect"].max()),
            "entry": (("time", "coordinate"), entries),
            "goal": (("coordinate",), _diagonal(closed.solution[None], *frames)[0]),
        },
        grid,
    )  # fmt: skip


def _diagonal(weights: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The diagonals of U_KᵀWU_Q, shape (time, coordinate), of W (time, row, column)."""
    return np.einsum("da,tde,ea->ta", left, weights, right)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge alignment, the limit and the closed form."""
    judge = partial(check, paper=PAPER, size=size)
    return [
        judge("the data satisfy Assumptions 1 to 4: share of instances", where="Assumptions 1 to 4",
              values=trajectory["assumptions"].values.mean(), relation=">=", threshold=1.0),
        judge("gradient flow preserves alignment: largest share of W off the diagonal of U_KᵀWU_Q at any time",
              where="Lemma 5.1", values=trajectory["worst_defect"].values, relation="<=", threshold=1e-8),
        judge("the limit solves the nuclear norm problem: nuclear norm at unit margin above the closed form",
              where="Theorem 5.1", values=trajectory["excess"].values[-1], relation="<=", threshold=1e-3),
        judge("the closed form solves (9) and the nuclear norm problem: gap of its own certificate", where="(9), A.7",
              values=trajectory["closed_gap"].values, relation="<=", threshold=1e-6),
        judge("an independent solver finds the same optimum: relative difference", where="(9), A.7",
              values=np.abs(trajectory["solver_apart"].values), relation="<=", threshold=1e-6),
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
        "laptop": Size(15, ScaledDraws(n=4, length=5, dim=8, scale=0.1, instances=20, until=1e5)),
        "gpu": Size(90, _large(instances=20)),
        "paper": Size(240, _large(instances=50)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
