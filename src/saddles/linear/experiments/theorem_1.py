"""Theorem 1: how far W1ᵀW1 and W2W2ᵀ are from √(AᵀA+σ⁴w²I) and √(AAᵀ+σ⁴w²I), as w grows at fixed σ²w.

Claims and their thresholds:

- *Bounded ratio.* error / min{σ²w, √(d/w)‖C‖} must not grow with w: the log-log slope of its
  maximum over time is at most 0.05 (a factor 1.5 over the seven decades of width).
- *Proposition B.1.* error ≤ (1+ε)σ²w for all time, with the finite-w form of its (1+ε):
  (1+√(d/w))², the edge of W1W1ᵀ at the start.
- *Every cost.* The theorem and Proposition B.1 hold for every cost: the same two numbers, with the same thresholds,
  for matrix completion (half of the entries) and the convex cost log cosh, which is not quadratic, at fewer widths
  and in the second half of the run, for at the start the error does not know the cost.
- *Concentration.* At t = 0 the relative error falls like w^{−1/2} for w/d ≥ 500: slope within
  0.05 of −1/2, the next order being √(d/w).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.linear.experiments.scaling import PAPER
from saddles.measures.modes import gram_error
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from jax import Array

    from saddles.linear.task import LowRank
    from saddles.solvers.two_layer import Cost, Matrix

WIDE = 500
"""Widths w from this times d on are wide enough to show how the error at the start falls with w."""
BOUNDS = ("bounded", "steeper", "weakly", "nothing")
"""What `_over_bounds` measures."""


@dataclass(frozen=True)
class Settings:
    """A scan of widths at fixed σ²w = √d."""

    dim: Annotated[int, "rows and columns of the matrix, d"]
    rank: Annotated[int, "rank of the truth A*"]
    decades: Annotated[int, "widths from d to d · 10^decades"]
    points: Annotated[int, "widths in the scan", Within(3, LARGEST)]
    times: Annotated[int, "saved instants"]
    seeds: Annotated[int, "independent tasks and initial weights"]
    costs_dim: Annotated[int, "rows and columns of the matrix for the other costs"] = 20
    costs_points: Annotated[int, "widths in their scan", Within(3, LARGEST)] = 5


def run(settings: Settings, context: Context) -> Trajectory:
    """Flows from many widths, with both Gram matrices kept."""
    seeds = context.seeds(settings.seeds)
    dim = settings.dim
    widths = _scan(settings)
    if (widths >= WIDE * dim).sum() < 2:
        raise SaddlesError(
            f"Two of the widths must be at least {WIDE} d, or the start has no slope; {(widths >= WIDE * dim).sum()} "
            f"of {len(widths)} is, and the largest is {widths[-1] / dim:.3g} d. Give more decades, or more points."
        )
    clock = np.linspace(0.0, 1.0, settings.times)
    with bar("linear/theorem-1", len(seeds) * len(widths)) as progress:
        make = partial(_widths, settings, widths=widths, clock=clock, tick=progress.advance)
        parts = [context.part(f"seed-{seed}", partial(make, seed)) for seed in seeds]
    names = [str(name) for name in parts[0].data_vars]
    variables = {
        name: (("time", "seed", "width", "side"), np.stack([p[name].values for p in parts], axis=1)) for name in names
    }
    whole = make_trajectory(
        variables,
        clock,
        unit="2.5 d log d / (4 a)",
        coords={"seed": seeds, "width": widths, "side": ["in", "out"]},
        lab="linear",
        kind="simulated",
        method=linear.GradientFlow(),
    )
    whole.attrs |= {"dim": dim, "rank": settings.rank, "costs_dim": settings.costs_dim}
    small = dataclasses.replace(settings, dim=settings.costs_dim, points=settings.costs_points)
    others = [context.part(f"costs-{seed}", partial(_other_costs, small, seed, clock)) for seed in seeds[:2]]
    for name in BOUNDS:
        whole[f"costs_{name}"] = (("cost_seed", "cost", "cost_width"), np.stack([o[name].values[0] for o in others]))
    return whole.assign_coords(cost=list(COSTS), cost_width=others[0]["width"].values)


@dataclass(frozen=True)
class _Task:
    """A task of one's own: observed entries under another cost."""

    shape: tuple[int, int]
    cost: "Cost"
    target: None = None


@cache
def _log_cosh() -> "type[Cost]":
    import jax.numpy as jnp  # loads JAX

    from saddles.solvers.two_layer import Cost

    class LogCosh(Cost):
        """C(A) = mean of log cosh(A − observed); the matrix is data, so that all seeds share a compiled program."""

        observed: "np.ndarray"

        def __call__(self, matrix: "Matrix") -> "Array":
            return jnp.mean(jnp.log(jnp.cosh(matrix - self.observed)))

    return LogCosh


COSTS: "dict[str, Callable[[LowRank], LowRank | _Task]]" = {
    "completion": lambda task: linear.Completion(task.dim, task.rank, seed=task.seed),
    "log cosh": lambda task: _Task(task.shape, _log_cosh()(task.observed)),  # type: ignore[call-arg]
}


def _other_costs(settings: Settings, seed: int, clock: np.ndarray) -> Trajectory:
    """For each cost and width the largest late error, over the bounds that claims judge."""
    dim = settings.dim
    widths = _scan(settings)[1:]  # all above 2d: one shape, one program
    times = clock * 2.5 * dim * np.log(dim)
    rows: dict[str, list[list[float]]] = {name: [] for name in BOUNDS}
    for make in COSTS.values():
        task = make(linear.Denoising(dim, settings.rank, seed=seed))
        parts = []
        for width in widths:
            model = linear.TwoLayer(int(width), np.sqrt(dim) / float(width))
            flow = simulate(model, task, linear.GradientFlow(rtol=1e-7), times=times, seed=seed,
                            keep=("matrix", "gram"), skip=("singular_value",))  # fmt: skip
            parts.append(_over_bounds(gram_error(flow), dim, float(width)))
        for name, row in rows.items():
            row.append([part[name] for part in parts])
    axes = ("time", "cost", "width")
    return make_trajectory(
        {name: (axes, np.array(row)[None]) for name, row in rows.items()}, [0.0], unit="all times",
        coords={"cost": list(COSTS), "width": widths},
    )  # fmt: skip


def _over_bounds(errors: xr.Dataset, dim: int, width: float) -> dict[str, float]:
    """The largest error in the second half of a run, over the theorem's bound and the wrong one, and over σ²w.

    Its first half is left out because the error is that of the start there, whatever the cost.
    """
    errors = errors.isel(time=slice(errors.sizes["time"] // 2, None))
    error, weak, strong = errors["error"], errors["weak"], errors["strong"]
    return {
        "bounded": float(errors["ratio"].max()),
        "steeper": float((error / np.minimum(weak, strong * np.sqrt(dim / width))).max()),
        "weakly": float((error / weak).max()),
        "nothing": float((errors["norm"] / weak).max()),
    }


def _scan(settings: Settings) -> np.ndarray:
    """Widths from d to d · 10^decades."""
    steps = 10 ** np.linspace(0, settings.decades, settings.points)
    return np.unique(np.rint(settings.dim * steps)).astype(np.int64)


def _widths(
    settings: Settings, seed: int, widths: np.ndarray, clock: np.ndarray, tick: Callable[[], None]
) -> Trajectory:
    dim = settings.dim
    task = linear.Denoising(dim, settings.rank, seed=seed)
    weakest = np.linalg.svd(task.target, compute_uv=False)[settings.rank - 1] / dim
    times = clock * 2.5 * dim * np.log(dim) / (4 * weakest)
    errors = []
    for width in widths:
        model = linear.TwoLayer(int(width), np.sqrt(dim) / float(width))
        flow = simulate(model, task, linear.GradientFlow(rtol=1e-7), times=times, seed=seed, keep=("matrix", "gram"))
        errors.append(gram_error(flow))
        tick()
    names = ("error", "norm", "weak", "strong", "ratio")
    variables = {
        name: (("time", "width", "side"), np.stack([e[name].values for e in errors], axis=1)) for name in names
    }
    return make_trajectory(
        variables, clock, unit="2.5 d log d / (4 a)", coords={"width": widths, "side": ["in", "out"]}
    )


def slopes(widths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Log-log slope against width for each row of `values` (seed, width)."""
    return np.polyfit(np.log(widths), np.log(values.T), 1)[0]


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge Theorem 1, Proposition B.1 and the concentration at the start."""
    widths = trajectory["width"].values.astype(float)
    dim = int(trajectory.attrs["dim"])
    worst = trajectory["ratio"].max(["time", "side"]).transpose("seed", "width").values
    weak = (trajectory["error"] / trajectory["weak"]).max(["time", "side"]).transpose("seed", "width").values
    start = (trajectory["error"] / trajectory["norm"]).isel(time=0).max("side").transpose("seed", "width").values
    narrow = trajectory["strong"] * np.sqrt(dim / trajectory["width"])
    wrong = (trajectory["error"] / np.minimum(trajectory["weak"], narrow)).max(["time", "side"])
    wrong = wrong.transpose("seed", "width").values
    nothing = (trajectory["norm"] / trajectory["weak"]).max(["time", "side"]).transpose("seed", "width").values
    wide = widths >= WIDE * dim
    mixed = np.random.default_rng(0).permutation(widths[wide])
    edge = (1 + np.sqrt(dim / widths)) ** 2
    judge = partial(check, paper=PAPER, where="Theorem 1", size=size, relation="<=")
    return [
        judge(
            "‖C−Ĉ‖_op stays within a constant of min{σ²w, √(d/w)‖C‖_op} for all time: "
            "log-log slope of the largest ratio against w",
            values=slopes(widths, worst),
            threshold=0.05,
            null=slopes(widths, wrong),
            against="a bound with d/w for √(d/w)",
        ),
        judge(
            "‖C−Ĉ‖_op ≤ (1+ε)σ²w for all time: largest error over (1+√(d/w))²σ²w",
            where="Proposition B.1",
            values=(weak / edge).max(axis=1),
            threshold=1.0,
            null=(nothing / edge).max(axis=1),
            against="the prediction Ĉ = 0",
        ),
        judge(
            "At the start ‖C−Ĉ‖/‖C‖ falls like w^(−1/2) for w/d ≥ 500: distance of the slope from −1/2",
            values=np.abs(slopes(widths[wide], start[:, wide]) + 0.5),
            threshold=0.05,
            null=np.abs(slopes(mixed, start[:, wide]) + 0.5),
            against="widths in random order",
        ),
        *_every_cost(trajectory, judge),
    ]


def _every_cost(trajectory: Trajectory, judge: Callable[..., Claim]) -> list[Claim]:
    widths = trajectory["cost_width"].values.astype(float)
    edge = (1 + np.sqrt(int(trajectory.attrs["costs_dim"]) / widths)) ** 2
    axes = ("cost_seed", "cost", "cost_width")
    rows = {name: trajectory[f"costs_{name}"].transpose(*axes).values.reshape(-1, len(widths)) for name in BOUNDS}
    costs = ", ".join(str(name) for name in trajectory["cost"].values)
    return [
        judge(
            f"The same for other costs ({costs}), late in the run: log-log slope of the largest ratio against w",
            values=slopes(widths, rows["bounded"]),
            threshold=0.05,
            null=slopes(widths, rows["steeper"]),
            against="a bound with d/w for √(d/w)",
        ),
        judge(
            f"‖C−Ĉ‖_op ≤ (1+ε)σ²w for other costs ({costs}), late in the run: largest error over (1+√(d/w))²σ²w",
            where="Proposition B.1",
            values=(rows["weakly"] / edge).max(axis=1),
            threshold=1.0,
            null=(rows["nothing"] / edge).max(axis=1),
            against="the prediction Ĉ = 0",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.theorem_1(trajectory)


EXPERIMENT = Experiment(
    "linear/theorem-1",
    "The error of the predicted Gram matrices against its bound, as the width grows",
    PAPER,
    sizes={
        "tiny": Size(3, Settings(dim=12, rank=2, decades=6, points=5, times=9, seeds=2, costs_dim=8, costs_points=3)),
        "laptop": Size(10, Settings(dim=40, rank=3, decades=7, points=15, times=17, seeds=4)),
        "gpu": Size(60, Settings(dim=100, rank=5, decades=8, points=17, times=17, seeds=6)),
        "paper": Size(120, Settings(dim=100, rank=5, decades=8, points=17, times=17, seeds=6)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
