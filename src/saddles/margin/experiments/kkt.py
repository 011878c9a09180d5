"""A.5: the three KKT residuals along the path, with the multipliers of the proof and with φ/‖Bφ‖∞.

With the proof's λ = φ/ln μ coordinate j of Bλ is asinh(β_j/ω₀²)/ln μ = sign β_j (1 + ln(2|β̂_j|/ω₀²)/ln μ + …). On the
support of the solution β̂* stationarity therefore falls exactly like D/ln μ with D = max_j |ln(2|β̂*_j|/ω₀²)|. Checked:
the product with ln μ over D is 1 within a tenth at the last norm, in the median instance (β̂_j is within a few per cent
of β̂*_j there, and D is of order one or more; a nearly degenerate instance, whose last coordinates have not grown yet,
is further off). Its null is the D of another instance.

Slackness with the proof's λ and the gap certified by φ/‖Bφ‖∞ fall like 1/ln μ as well. From norm 100 to 1e9 ln μ grows
about fivefold; at most a half may be left. Their null are the multipliers of the next sequence: which constraints have
accumulated coefficients, and which have the least margin, must belong together.

Not claimed, because no flow could break it: feasibility of β/μ (any β with a positive margin), dual feasibility of
φ/‖Bφ‖∞ and its bound (weak duality), and the fall of the stationarity whose support is read off β itself
(asinh(β_j/ω₀²)/ln μ tends to ±1 in whatever direction β diverges).
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from saddles import figures, margin
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.margin.experiments.norm_grid import PAPER, Grid, ScaledDraws, each, gather, norm_grid, on_norms, piece
from saddles.margin.observe import optimality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    "margin", "log_time", "kkt_feasibility", "kkt_stationarity", "kkt_slackness", "support_stationarity",
    "certified_gap", "dual_objective", "dual_stationarity", "dual_slackness", "null_kkt_slackness",
    "null_certified_gap",
)  # fmt: skip


def run(settings: ScaledDraws, context: Context) -> Trajectory:
    """One flow per instance."""
    grid, seeds = norm_grid(100.0, settings.until), context.seeds(settings.instances)
    rows = each(context, "margin/kkt", {f"seed-{seed}": partial(_instance, settings, grid, seed) for seed in seeds})
    return gather(rows, grid, "instance", seeds, model=margin.DiagonalAttention(settings.scale))


def _instance(settings: ScaledDraws, grid: Grid, seed: int) -> xr.Dataset:
    task = settings.tokens(3, seed, diagonal=True)
    best = margin.max_margin(task, "l1")
    flow = simulate(margin.DiagonalAttention(settings.scale), task, settings.method, keep=["accumulated"])
    other = np.roll(flow["accumulated"].values, settings.length - 1, axis=1)  # those of the next sequence
    null = optimality(flow["beta"].values, other, task, "l1")
    flow = flow.assign(
        {"support_stationarity": ("time", _on_support(flow, task, best.solution))}
        | {f"null_{name}": ("time", null[name]) for name in ("kkt_slackness", "certified_gap")}
    )
    there = np.abs(best.solution)[_support(best.solution)]
    # D of the module's docstring, from the solution and ω₀ alone.
    level = float(np.abs(np.log(2 * there / settings.scale**2)).max())
    return piece(on_norms(flow, grid, NAMES), {"optimum": best.objective, "level": level}, grid)


def _support(solution: np.ndarray) -> np.ndarray:
    """Coordinates that are not 0; those of a vertex are exact but for rounding."""
    return np.abs(solution) > 1e-9 * np.abs(solution).max()


def _on_support(flow: Trajectory, task: "margin.Tokens", solution: np.ndarray) -> np.ndarray:
    """max |(Bλ)_j − sign β̂*_j| over the support of the solution, with λ = φ/ln μ; NaN where μ ≤ 1."""
    there, least = _support(solution), flow["margin"].values
    logs = np.log(np.where(least > 1, least, np.nan))
    push = flow["accumulated"].values @ task.diagonal[:, there] / logs[:, None]
    return np.abs(push - np.sign(solution[there])).max(axis=1)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the rate of stationarity, and the fall of the other residuals."""
    judge = partial(check, paper=PAPER, size=size)
    last, level = trajectory.isel(time=-1), trajectory["level"].values
    product = last["support_stationarity"].values * np.log(last["margin"].values)
    names = ("kkt_slackness", "certified_gap", "null_kkt_slackness", "null_certified_gap")
    left = {name: trajectory[name].values[-1] / trajectory[name].values[0] for name in names}
    return [
        judge("on the solution's support stationarity is D/ln μ, D = max|ln(2|β̂*|/ω₀²)|: median relative error",
              where="A.5, C1, (37)", values=np.median(np.abs(product / level - 1)), relation="<=", threshold=0.1,
              null=np.median(np.abs(product / np.roll(level, 1) - 1)), against="D of another instance"),
        judge("complementary slackness with the proof's λ falls: last over first residual", where="A.5, C3",
              values=left["kkt_slackness"], relation="<=", threshold=0.5, null=left["null_kkt_slackness"],
              against="multipliers of another instance"),
        judge("the gap certified by φ/‖Bφ‖∞ falls: last over first", where="A.5",
              values=left["certified_gap"], relation="<=", threshold=0.5, null=left["null_certified_gap"],
              against="multipliers of another instance"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> "Figure":
    """The residuals against the norm, with both kinds of multipliers."""
    return figures.margin.kkt(trajectory)


_data = partial(ScaledDraws, n=6, length=5, dim=20, scale=0.5, until=1e9)

KKT = Experiment(
    name="margin/kkt",
    title="The three KKT residuals fall along the path, with the proof's multipliers and with dual feasible ones",
    paper=PAPER,
    sizes={
        "tiny": Size(3, ScaledDraws(n=3, length=4, dim=12, scale=0.5, instances=2, until=1e5)),
        "laptop": Size(4, _data(instances=10)),
        "gpu": Size(60, _data(instances=50)),
        "paper": Size(240, _data(instances=200)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
