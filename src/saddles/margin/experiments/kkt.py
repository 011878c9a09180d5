"""A.5: the three KKT residuals along the path, with the multipliers of the proof and with φ/‖Bφ‖∞.

The proof's λ = φ/ln μ makes stationarity fall only like 1/ln μ: coordinate j of Bλ is ln(2β_j/ω₀²)/ln μ (1 + o(1)), so
the residual is about |ln(2β̂_j/ω₀²)|/ln μ. Checked: it falls along the path (its last value is below its first one, and
the product with ln μ varies by less than a factor of two over the last half of the decades, which a limit other than 0
or another power would break). Feasibility is exact once the margin is positive. Slackness falls. The other multipliers
are dual feasible at every time: their gap falls too, and the bound never exceeds the optimum.
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.progress import bar
from saddles.core.trajectory import Trajectory
from saddles.core.verbs import simulate
from saddles.figures.margin import kkt as figure
from saddles.margin.convex import solve
from saddles.margin.experiments.table import PAPER, gather, norm_grid, on_norms, piece
from saddles.margin.method import MarginFlow
from saddles.margin.model import DiagonalAttention
from saddles.margin.task import Tokens

__all__ = ["claims", "figure", "run"]

NAMES = (
    "margin", "log_time", "kkt_feasibility", "kkt_stationarity", "kkt_slackness",
    "certified_gap", "dual_objective", "dual_stationarity", "dual_slackness",
)  # fmt: skip


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """One flow an instance."""
    grid = norm_grid(100.0, settings["until"])
    seeds, rows = context.seeds(settings["instances"]), []
    with bar("margin/kkt", len(seeds)) as progress:
        for seed in seeds:
            rows.append(context.part(f"seed-{seed}", partial(_instance, settings, grid, seed)))
            progress.advance()
    return gather(rows, grid, "instance", seeds, model=DiagonalAttention(settings["scale"]))


def _instance(settings: dict[str, Any], grid: np.ndarray, seed: int) -> xr.Dataset:
    task = Tokens.random(settings["n"], settings["length"], settings["dim"], 3, seed, diagonal=True)
    flow = simulate(DiagonalAttention(settings["scale"]), task, MarginFlow(settings["until"]))
    return piece(on_norms(flow, grid, NAMES), {"optimum": solve(task, "l1").objective}, grid)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the fall of each residual."""
    facts: dict[str, Any] = {"paper": PAPER, "size": size}
    stationarity = trajectory["kkt_stationarity"].values
    scaled = stationarity * np.log(trajectory["margin"].values)
    half = scaled[len(scaled) // 2 :]
    slack, gap = trajectory["kkt_slackness"].values, trajectory["certified_gap"].values
    bound = trajectory["dual_objective"].values / trajectory["optimum"].values
    return [
        check("primal feasibility of β/μ: residual at the end", where="A.5, C2",
              values=trajectory["kkt_feasibility"].values[-1], relation="<=", threshold=1e-9, **facts),
        check("stationarity with the proof's λ falls: last over first residual", where="A.5, C1",
              values=stationarity[-1] / stationarity[0], relation="<=", threshold=1.0, **facts),
        check("stationarity falls like 1/ln μ: largest over smallest product with ln μ in the last half of the decades",
              where="A.5, C1", values=np.nanmax(half, axis=0) / np.nanmin(half, axis=0), relation="<=", threshold=2.0,
              **facts),
        check("complementary slackness with the proof's λ falls: last over first residual", where="A.5, C3",
              values=slack[-1] / slack[0], relation="<=", threshold=1.0, **facts),
        check("φ/‖Bφ‖∞ is dual feasible: its objective over the optimum", where="(ℓ1-SVM), weak duality",
              values=bound, relation="<=", threshold=1 + 1e-9, **facts),
        check("the gap certified by φ/‖Bφ‖∞ falls: last over first", where="A.5",
              values=gap[-1] / gap[0], relation="<=", threshold=1.0, **facts),
    ]  # fmt: skip
