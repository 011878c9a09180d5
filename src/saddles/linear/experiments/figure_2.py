"""Figure 2: the phase diagram, four panels over (γ_σ², γ_w), one A* and E for all cells.

Claims and their thresholds compare cells inside a regime (0.1 away from each boundary in γ),
because boundaries blur at finite d:

- *Active recovers.* Its median best test error is below a fifth of the error of A = 0.
- *Lazy does not.* Every lazy cell keeps a third of min(‖A*‖², ‖E‖²)/d² (Proposition D.1).
- *Rank.* The stable rank of a rank-K matrix is at most K: the median active cell stays below,
  and the median lazy one, which fits noise of full rank too, is at least a fifth above that.
- *Distance.* Theorem 1 leaves a relative error √(d/w) in the kernel, so entries of order one may
  differ by that much: the mean square difference is at most d/w, in every cell.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from scipy.stats import spearmanr

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.linear import figure_2 as figure
from saddles.linear.diagram import ENDINGS, follow_cells
from saddles.linear.experiments.scaling import rate, width
from saddles.linear.task import Denoising
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]

PAPER = "tu2024mixed"
AXES = ("time", "gamma_w", "gamma_variance")
GAMMA_VARIANCE = (-3.0, 0.0)
GAMMA_W = (0.0, 2.8)
MARGIN = 0.1
"""Distance in the exponents from a boundary within which a cell belongs to no regime."""


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Every cell of the grid: a row of equal γ_w at a time on a CPU, all at once on a GPU."""
    dim, points = settings["dim"], settings["points"]
    (seed,) = context.seeds(1)
    task = Denoising(dim, settings["rank"], seed=seed)
    across, up = np.linspace(*GAMMA_VARIANCE, points), np.linspace(*GAMMA_W, points)
    rows = 1 if jax.devices()[0].platform == "cpu" else points
    with bar("linear/figure-2, cells", points**2) as progress:
        make = partial(_rows, task, across, settings=settings, seed=seed, tick=progress.advance)
        parts = [context.part(f"rows-{k}-{rows}", partial(make, up[k : k + rows])) for k in range(0, points, rows)]
    whole = make_trajectory(
        {
            str(name): (AXES, np.concatenate([part[name].values for part in parts], axis=1))
            for name in parts[0].data_vars
        }
        | {"zero_error": ((), float(np.mean(task.target**2))), "lazy_floor": ((), _floor(task))},
        [0.0],
        unit="end of the run",
        coords={"gamma_w": up, "gamma_variance": across},
        lab="linear",
        kind="simulated and predicted",
        task=task,
    )
    whole.attrs |= {"rank": settings["rank"], "dim": dim, "c": settings["c"], "endings": ", ".join(ENDINGS)}
    return whole


def _floor(task: Denoising) -> float:
    """⅓ min(‖A*‖², ‖E‖²)/d², Proposition D.1."""
    return float(min(np.mean(task.target**2), np.mean((task.observed - task.target) ** 2)) / 3)


def _rows(
    task: Denoising, across: np.ndarray, up: np.ndarray, *, settings: dict[str, Any], seed: int, tick: Any
) -> Trajectory:
    widths = [width(task.dim, gamma_w) for gamma_w in up]
    cells = [
        (k, task.dim**g, rate(task.dim, gamma_w, g, task.target, settings["c"]))
        for k, gamma_w in enumerate(up)
        for g in across
    ]
    follow = round(4 * settings["c"])
    found = follow_cells(task, widths, cells, seed=seed, limit=settings["limit"], follow=follow, tick=tick)
    shape = (1, len(up), len(across))
    return make_trajectory(
        {name: (AXES, values.reshape(shape)) for name, values in found.items()}, [0.0], unit="end of the run"
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the four panels."""
    here = trajectory.isel(time=0).transpose("gamma_w", "gamma_variance")
    w, v = np.meshgrid(here["gamma_w"].values, here["gamma_variance"].values, indexing="ij")
    inside = (w > 1 + MARGIN) & (2 * v + w < -MARGIN) & (np.abs(w + v - 1) > MARGIN)
    active, lazy = inside & (w + v < 1), inside & (w + v > 1)
    rank = int(trajectory.attrs["rank"])
    test, ranks, steps = (here[name].values for name in ("best_test_error", "stable_rank", "best_step"))
    dim = float(trajectory.attrs["dim"])
    distance = here["distance_at_best"].values * dim ** (w - 1)
    judge = partial(check, paper=PAPER, where="Figure 2", size=size)
    return [
        judge(
            "Active cells recover A*: median best test error over that of A = 0",
            values=_of(np.median, test[active]) / float(here["zero_error"]),
            relation="<=",
            threshold=0.2,
        ),
        judge(
            "Lazy cells fail: smallest best test error over ⅓ min(‖A*‖², ‖E‖²)/d²",
            where="Theorem 2, Proposition D.1",
            values=_of(np.min, test[lazy]) / float(here["lazy_floor"]),
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "Active cells have about the rank of A*: median stable rank over K",
            values=_of(np.median, ranks[active]) / rank,
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "Lazy cells overestimate the rank: their median stable rank over the active median",
            values=_of(np.median, ranks[lazy]) / _of(np.median, ranks[active]),
            relation=">=",
            threshold=1.2,
        ),
        judge(
            "Gradient descent stays close to the self-consistent dynamics where the theory applies: "
            "largest mean square difference at the best test error, over d/w",
            values=_of(np.max, distance[active | lazy]),
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "Training is longer deeper in the active regime: "
            "rank correlation of steps with the distance to the transition",
            values=_correlation((1 - w - v)[active], steps[active]),
            relation=">=",
            threshold=0.9,
        ),
    ]


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    found: Any = spearmanr(one, other)
    return float(found.statistic)


def _of(measure: Any, values: np.ndarray) -> float:
    """A number over cells; NaN where the grid has none of them."""
    return float(measure(values)) if values.size else float("nan")
