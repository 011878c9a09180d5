"""Beyond the theorem: how the initial scale ω₀ changes the bias at finite norm.

Theorem 4.1 holds for every ω₀ in the limit. Claimed here: at every ω₀ the excess over the ℓ1 optimum is smaller at the
last norm than at norm 1e3 in nine of ten instances, which a bias that depended on ω₀ for ever would break. What is not
claimed but shown: which ω₀ is nearest to the limit at a given norm.
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.margin import initialisation as figure
from saddles.margin.convex import max_margin
from saddles.margin.experiments.table import PAPER, at, gather, norm_grid, on_norms, piece
from saddles.margin.method import MarginFlow
from saddles.margin.model import DiagonalAttention
from saddles.margin.task import Tokens
from saddles.measures import effective_rank
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Every scale on every instance."""
    grid = norm_grid(1.0, settings["until"])
    seeds, rows = context.seeds(settings["instances"]), []
    with bar("margin/initialisation", len(seeds) * len(settings["scales"])) as progress:
        for seed in seeds:
            task = Tokens.random(settings["n"], settings["length"], settings["dim"], 3, seed, diagonal=True)
            optimum, parts = max_margin(task, "l1").objective, []
            for scale in settings["scales"]:
                make = partial(_flow, task, optimum, scale, settings["until"], grid)
                parts.append(context.part(f"seed-{seed}-scale-{scale:g}", make))
                progress.advance()
            rows.append(gather(parts, grid, "scale", settings["scales"]))
    return gather(rows, grid, "instance", seeds, model=DiagonalAttention(settings["scales"]))


def _flow(task: Tokens, optimum: float, scale: float, until: float, grid: np.ndarray) -> xr.Dataset:
    flow = simulate(DiagonalAttention(scale), task, MarginFlow(until))
    flow = flow.assign(
        excess=flow["nuclear_norm"] / flow["margin"].where(flow["margin"] > 0) / optimum - 1,
        effective=effective_rank(flow["beta"]),
    )
    return piece(on_norms(flow, grid, ("excess", "log_time", "effective")), {}, grid)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the fall at every scale."""
    fallen = trajectory["excess"].values[-1] < at(trajectory, "excess", 1e3)
    axis = trajectory["excess"].isel(time=0).dims.index("instance")
    return [
        check("the excess over the ℓ1 optimum falls from norm 1e3 to the last one at every ω₀: share of instances",
              paper=PAPER, where="Theorem 4.1", values=fallen.mean(axis=axis), relation=">=", threshold=0.9, size=size),
    ]  # fmt: skip
