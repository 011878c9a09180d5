"""Lemma 5.1 and Theorem 5.1: Assumption 4 data, rotated, full K and Q aligned at the start.

The alignment defect, the share of W outside the diagonal of U_KᵀWU_Q, stays below 1e-8 (asked for beforehand; the
solver's steps are linear combinations of aligned matrices, so only rounding can enter). The nuclear norm at unit margin
meets the closed form Σ 1/((1 − c) r_i s_i) to 0.1 %: the coordinates do not interact, margins differ by O(1) at the end
while the norm is at least 1e4. The closed form is the optimum: its own certificate and an independent solver agree to
1e-6.
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.margin import aligned as figure
from saddles.margin.assumptions import check_assumptions
from saddles.margin.convex import max_margin
from saddles.margin.experiments.table import PAPER, gather, norm_grid, on_norms, piece
from saddles.margin.method import MarginFlow
from saddles.margin.model import FactoredAttention, aligned_frames, aligned_weights
from saddles.margin.task import Tokens
from saddles.measures import alignment_defect, direction_error
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """One aligned flow an instance."""
    grid = norm_grid(0.1, settings["until"])
    seeds, rows = context.seeds(settings["instances"]), []
    with bar("margin/aligned", len(seeds)) as progress:
        for seed in seeds:
            rows.append(context.part(f"seed-{seed}", partial(_instance, settings, grid, seed)))
            progress.advance()
    return gather(rows, grid, "instance", seeds, model=FactoredAttention(scale=settings["scale"]))


def _instance(settings: dict[str, Any], grid: np.ndarray, seed: int) -> xr.Dataset:
    task = Tokens.random(settings["n"], settings["length"], settings["dim"], 4, seed)
    closed, convex = max_margin(task, "aligned"), max_margin(task, "nuclear")
    model = FactoredAttention(scale=settings["scale"], weights=aligned_weights(task, seed=seed))
    flow = simulate(model, task, MarginFlow(settings["until"]))
    apart = direction_error(flow, closed.solution)
    flow = flow.assign(
        defect=alignment_defect(flow, *aligned_frames(task, seed)), distance=apart["norm"],
        excess=flow["nuclear_norm"] / flow["margin"].where(flow["margin"] > 0) / closed.objective - 1,
    )  # fmt: skip
    checked = check_assumptions(task)
    seen = u_diagonal(flow, task, seed)
    values = on_norms(flow, grid, ("defect", "distance", "excess", "log_time", "margin", "log_loss_gap"))
    entries = np.stack([on_norms(flow.assign(one=("time", row)), grid, ("one",))["one"] for row in seen.T], axis=1)
    numbers = {
        "optimum": closed.objective, "closed_gap": abs(closed.gap),
        "solver_apart": convex.objective / closed.objective - 1,
        "assumptions": float(checked.about(("1", "2", "3", "4")).hold), "worst_defect": float(flow["defect"].max()),
        "entry": (("time", "coordinate"), entries), "goal": (("coordinate",), u_goal(closed.solution, task, seed)),
    }  # fmt: skip
    return piece(values, numbers, grid)


def u_diagonal(flow: Trajectory, task: Any, seed: int) -> np.ndarray:
    """The diagonal of U_KᵀWU_Q / μ over time."""
    left, right = aligned_frames(task, seed)
    margin = flow["margin"].where(flow["margin"] > 0).values[:, None]
    return np.einsum("da,tde,ea->ta", left, flow["weights"].values, right) / margin


def u_goal(solution: np.ndarray, task: Any, seed: int) -> np.ndarray:
    """The diagonal of U_KᵀŴU_Q of the closed form."""
    left, right = aligned_frames(task, seed)
    return np.einsum("da,de,ea->a", left, solution, right)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge alignment, the limit and the closed form."""
    facts: dict[str, Any] = {"paper": PAPER, "size": size}
    return [
        check("the data satisfy Assumptions 1 to 4: share of instances", where="Assumptions 1 to 4",
              values=trajectory["assumptions"].values.mean(), relation=">=", threshold=1.0, **facts),
        check("gradient flow preserves alignment: largest share of W off the diagonal of U_KᵀWU_Q at any time",
              where="Lemma 5.1", values=trajectory["worst_defect"].values, relation="<=", threshold=1e-8, **facts),
        check("the limit solves the nuclear norm problem: nuclear norm at unit margin above the closed form",
              where="Theorem 5.1", values=trajectory["excess"].values[-1], relation="<=", threshold=1e-3, **facts),
        check("the closed form solves (9) and the nuclear norm problem: gap of its own certificate", where="(9), A.7",
              values=trajectory["closed_gap"].values, relation="<=", threshold=1e-6, **facts),
        check("an independent solver finds the same optimum: relative difference", where="(9), A.7",
              values=np.abs(trajectory["solver_apart"].values), relation="<=", threshold=1e-6, **facts),
    ]  # fmt: skip
