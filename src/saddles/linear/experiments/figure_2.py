"""Figure 2: the phase diagram, four panels over (γ_σ², γ_w), one A* and E for all cells.

Claims and their thresholds compare cells inside a regime (0.1 away from each boundary in γ),
because boundaries blur at finite d:

- *Active recovers.* Its median best test error is below a fifth of the error of A = 0.
- *Lazy does not.* Every lazy cell keeps a third of min(‖A*‖², ‖E‖²)/d² (Proposition D.1).
- *Rank.* The median active cell has the stable rank of A* within a fifth; the median lazy one, which fits noise of
  full rank too, is at least a fifth above the active one.
- *Distance.* Theorem 1 leaves a relative error √(d/w) in the kernel, so entries of order one may
  differ by that much: the mean square difference is at most d/w, in every cell.
- *Narrow.* "A good generalization even for small widths w < d, in particular when w ≈ Rank A*": at every width from K
  to d the median cell outside the noisy regime meets the threshold of the active ones.
- *Distance elsewhere.* It "is also small almost everywhere outside this region" (w < d, or noisy): small is a tenth
  of the mean square of A*, almost everywhere nine cells in ten. The panel is, as in the authors' code, the largest
  distance over time. (The stored diagram had been seen when this was written, and says no.)

The null of a claim about the cells of one regime is the same number of the other; that of a correlation, the same
with the cells in random order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.linear.experiments.scaling import PAPER, rates, width
from saddles.linear.phases import phase
from saddles.measures.lines import rank_correlation
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from saddles.linear.task import Denoising

AXES = ("time", "gamma_w", "gamma_variance")
GAMMA_VARIANCE = (-3.0, 0.0)
GAMMA_W = (0.0, 2.8)
MARGIN = 0.1
"""Distance in the exponents from a boundary within which a cell belongs to no regime."""


@dataclass(frozen=True)
class Settings:
    """A grid of networks on one task."""

    dim: Annotated[int, "rows and columns of the matrix, d"]
    points: Annotated[int, "cells along each of the two exponents"]
    limit: Annotated[int, "most steps of a cell"]
    rank: Annotated[int, "rank K of the truth A*"] = 5
    c: Annotated[float, "learning rate η = d²/(c ‖A*‖), or d²/(c w σ²) in the lazy regime"] = 5.0


def run(settings: Settings, context: Context) -> Trajectory:
    """Every cell of the grid: a row of equal γ_w at a time on a CPU, all at once on a GPU."""
    from saddles.linear.cell import ENDINGS  # loads JAX
    from saddles.linear.diagram import batched

    dim, points = settings.dim, settings.points
    (seed,) = context.seeds(1)
    task = linear.Denoising(dim, settings.rank, seed=seed)
    across, up = np.linspace(*GAMMA_VARIANCE, points), np.linspace(*GAMMA_W, points)
    rows = points if batched() else 1
    with bar("linear/figure-2, cells", points**2) as progress:
        make = partial(_rows, task, across, settings=settings, seed=seed, tick=progress.advance)
        parts = [context.part(f"rows-{k}-{rows}", partial(make, up[k : k + rows])) for k in range(0, points, rows)]
    whole = make_trajectory(
        {
            str(name): (AXES, np.concatenate([part[name].values for part in parts], axis=1))
            for name in parts[0].data_vars
        }
        | {"zero_error": ((), float(np.mean(task.target**2))), "lazy_floor": ((), _floor(task))}
        | {"true_rank": ((), float((np.linalg.norm(task.target) / np.linalg.norm(task.target, 2)) ** 2))},
        [0.0],
        unit="end of the run",
        coords={"gamma_w": up, "gamma_variance": across},
        lab="linear",
        kind="simulated and predicted",
        task=task,
    )
    whole.attrs |= {"rank": settings.rank, "dim": dim, "c": settings.c, "endings": ", ".join(ENDINGS)}
    return whole


def _floor(task: "Denoising") -> float:
    """⅓ min(‖A*‖², ‖E‖²)/d², Proposition D.1."""
    return float(min(np.mean(task.target**2), np.mean((task.observed - task.target) ** 2)) / 3)


def _rows(
    task: "Denoising",
    across: np.ndarray,
    up: np.ndarray,
    *,
    settings: Settings,
    seed: int,
    tick: Callable[[float], None],
) -> Trajectory:
    from saddles.linear.diagram import follow_cells  # loads JAX

    widths = [width(task.dim, gamma_w) for gamma_w in up]
    grid = [(k, g) for k in range(len(up)) for g in across]
    paces = rates(task.dim, [(up[k], g) for k, g in grid], task.target, settings.c)
    cells = [(k, task.dim**g, pace) for (k, g), pace in zip(grid, paces, strict=True)]
    follow = round(4 * settings.c)
    measured = follow_cells(task, widths, cells, seed=seed, limit=settings.limit, follow=follow, tick=tick)
    shape = (1, len(up), len(across))
    return make_trajectory(
        {name: (AXES, values.reshape(shape)) for name, values in measured.items()}, [0.0], unit="end of the run"
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the four panels."""
    here = trajectory.isel(time=0).transpose("gamma_w", "gamma_variance")
    w, v = np.meshgrid(here["gamma_w"].values, here["gamma_variance"].values, indexing="ij")
    regime = np.vectorize(phase)(w, v)
    apart = np.min(np.abs([w - 1, 2 * v + w, w + v - 1]), axis=0) > MARGIN
    active, lazy = apart & (regime == "active"), apart & (regime == "lazy")
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
            null=_of(np.median, test[lazy]) / float(here["zero_error"]),
            against="lazy cells",
        ),
        judge(
            "Lazy cells fail: smallest best test error over ⅓ min(‖A*‖², ‖E‖²)/d²",
            where="Theorem 2, Proposition D.1",
            values=_of(np.min, test[lazy]) / float(here["lazy_floor"]),
            relation=">=",
            threshold=1.0,
            null=_of(np.min, test[active]) / float(here["lazy_floor"]),
            against="active cells",
        ),
        *_rank_claims(ranks[active], ranks[lazy], float(here["true_rank"]), judge),
        judge(
            "Gradient descent stays close to the self-consistent dynamics where the theory applies: "
            "largest mean square difference at the best test error, over d/w",
            values=_of(np.max, distance[active | lazy]),
            relation="<=",
            threshold=1.0,
            null=_of(np.max, (float(here["zero_error"]) * dim ** (w - 1))[active | lazy]),
            against="a theory that says A = 0, against A*",
        ),
        judge(
            "Training is longer deeper in the active regime: "
            "rank correlation of steps with the distance to the transition",
            values=rank_correlation((1 - w - v)[active], steps[active]),
            relation=">=",
            threshold=0.9,
            null=rank_correlation((1 - w - v)[active], np.random.default_rng(0).permutation(steps[active])),
            against="steps in random order",
        ),
        *_narrow(trajectory, judge),
    ]


def _rank_claims(active: np.ndarray, lazy: np.ndarray, rank: float, judge: Callable[..., Claim]) -> list[Claim]:
    """What the stable ranks of the two regimes' cells say."""
    mixed = np.random.default_rng(0).permutation(active)
    return [
        judge(
            "Active cells have about the rank of A*: distance of their median stable rank from that of A*, relative",
            values=abs(_of(np.median, active) / rank - 1),
            relation="<=",
            threshold=0.2,
            null=abs(_of(np.median, lazy) / rank - 1),
            against="lazy cells",
        ),
        judge(
            "Lazy cells overestimate the rank: their median stable rank over the active median",
            values=_of(np.median, lazy) / _of(np.median, active),
            relation=">=",
            threshold=1.2,
            null=_of(np.median, mixed[: len(mixed) // 2]) / _of(np.median, mixed[len(mixed) // 2 :]),
            against="two halves of the active cells",
        ),
    ]


def _narrow(trajectory: Trajectory, judge: Callable[..., Claim]) -> list[Claim]:
    """What the caption says of cells for which there is no theory."""
    here = trajectory.isel(time=0).transpose("gamma_w", "gamma_variance")
    w, v = np.meshgrid(here["gamma_w"].values, here["gamma_variance"].values, indexing="ij")
    dim, zero = float(trajectory.attrs["dim"]), float(here["zero_error"])
    test, distance = here["best_test_error"].values / zero, here["distance_most"].values / zero
    calm = 2 * v + w < -MARGIN
    widths = np.array([[width(int(dim), one)] for one in here["gamma_w"].values])
    fits = widths >= int(trajectory.attrs["rank"])
    medians = [_of(np.median, test[i][calm[i]]) for i in np.flatnonzero(fits[:, 0] & (widths[:, 0] < dim))]
    outside = (widths < dim) | (2 * v + w > 0)
    return [
        judge(
            "Cells of every width from K to d recover A*: largest over widths of the median best test error over that "
            "of A = 0",
            values=_of(np.max, np.array(medians)),
            relation="<=",
            threshold=0.2,
            null=_of(np.median, test[~fits & calm]),
            against="cells of widths below K",
        ),
        judge(
            "The distance is small almost everywhere outside the theory's region: share of cells with at most a tenth "
            "of the mean square of A*",
            values=_of(np.mean, distance[outside] <= 0.1),
            relation=">=",
            threshold=0.9,
            null=0.0,
            against="a theory that says A = 0, against A*",
        ),
    ]


def _of(measure: Callable[[np.ndarray], float], values: np.ndarray) -> float:
    """A number over cells; NaN where the grid has none of them."""
    return float(measure(values)) if values.size else float("nan")


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.figure_2(trajectory)


EXPERIMENT = Experiment(
    "linear/figure-2",
    "The phase diagram: test error, stable rank, training time and distance to the theory",
    PAPER,
    sizes={
        "tiny": Size(4, Settings(dim=30, rank=3, points=7, limit=2000)),
        "laptop": Size(11, Settings(dim=100, points=22, limit=3000)),
        "gpu": Size(10, Settings(dim=200, points=35, limit=5000)),
        "paper": Size(240, Settings(dim=200, points=35, limit=5000)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
