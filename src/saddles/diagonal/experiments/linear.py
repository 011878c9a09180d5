"""The linear diagonal network: Algorithm 1 against an independent solution, exits from the support included.

Claims and their thresholds: both are exact up to their solvers, so coordinate, sign and support size must be equal
at every stage, and times agree to 1e-6, the accuracy at which rests are found (forces zero to 1e-9 of the first)
times the number of stages over which it adds up. Correlated inputs are used because they make coordinates leave the
support: at least one must, over all seeds, or the comparison would not test it.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import diagonal, figures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.diagonal.experiments.agreement import PAPER, log_alpha, stairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """Settings of linear."""

    dim: Annotated[int, "inputs, and coordinates of the network"]
    samples: Annotated[int, "rows of the data"]
    factors: Annotated[int, "common factors of the inputs, which correlate them"]
    decades: Annotated[int, "initial scale of the flow that is drawn, α = 10^−decades"]
    points: Annotated[int, "instants of that flow"]
    seeds: Annotated[int, "designs that are compared"]


def design(dim: int, samples: int, factors: int, seed: int) -> "diagonal.Supervised":
    """Inputs with a few common factors, x = F z + 0.3 noise, and targets from a dense Gaussian teacher."""
    draw = np.random.default_rng([seed, 38])
    inputs = draw.normal(size=(samples, factors)) @ draw.normal(size=(factors, dim))
    inputs += 0.3 * draw.normal(size=(samples, dim))
    return diagonal.Supervised(inputs, inputs @ draw.normal(size=dim))


def run(settings: Settings, context: Context) -> Trajectory:
    """Both roads for several designs, and the flow of the first."""
    seeds = context.seeds(settings.seeds)
    model = diagonal.LinearDiagonal(settings.dim, log_alpha=log_alpha(settings.decades))
    tasks = [design(settings.dim, settings.samples, settings.factors, seed) for seed in seeds]
    # Each design has the next one for its null.
    facts = [_facts(model, task, other) for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True)]
    predicted = predict(model, tasks[0], diagonal.Incremental())
    first, last = (float(predicted["stage_time"][i]) for i in (0, -1))
    clock = np.concatenate([[0.0], np.geomspace(0.5 * first, 1.3 * last, settings.points)])
    flow = simulate(model, tasks[0], diagonal.Flow(), times=clock, seed=seeds[0])
    other = diagonal.saddle_path(np.asarray(tasks[0].inputs), np.asarray(tasks[0].targets))
    edges = np.concatenate([[0.0], other["stage_time"].values])
    rows = np.concatenate([np.zeros((1, settings.dim)), other["stage_beta"].values])
    variables: dict[str, Variable] = {
        "beta": (("time", "coordinate"), flow["beta"].values),
        "loss": (("time",), flow["loss"].values),
        "predicted_beta": (("time", "coordinate"), stairs(predicted, clock)["beta"].values),
        "independent_beta": (("time", "coordinate"), rows[np.searchsorted(edges, clock, side="right") - 1]),
        "stage_time": (("stage",), predicted["stage_time"].values),
    }
    variables |= {name: (("seed",), [fact[name] for fact in facts]) for name in facts[0]}
    return make_trajectory(
        variables, clock, unit="rescaled time, t / log(1/α)", coords={"seed": seeds}, lab="diagonal", model=model,
        kind="simulated and predicted", status=flow.attrs["status"], decades=settings.decades,
    )  # fmt: skip


def _facts(
    model: "diagonal.LinearDiagonal", task: "diagonal.Supervised", elsewhere: "diagonal.Supervised"
) -> dict[str, float]:
    """How the two roads differ on one design, and at the first stages from the road of another design."""
    mine = predict(model, task, diagonal.Incremental(200))
    other, foreign = (
        diagonal.saddle_path(np.asarray(one.inputs), np.asarray(one.targets), 200) for one in (task, elsewhere)
    )
    equal = mine.sizes["stage"] == other.sizes["stage"]
    names = ("stage_coordinate", "stage_sign", "support_size")
    same = equal and all((mine[name].values == other[name].values).all() for name in names)
    gaps = _gaps(mine, other) if same else (np.inf, np.inf)
    count = min(mine.sizes["stage"], foreign.sizes["stage"])
    null = [one.isel(stage=slice(count)) for one in (mine, foreign)]
    null_same = all((null[0][name].values == null[1][name].values).all() for name in names)
    null_gaps = _gaps(*null)
    again = other.sizes["stage"] - len(np.unique(other["stage_coordinate"].values))
    return {
        "same": float(same),
        "time_gap": gaps[0],
        "beta_gap": gaps[1],
        "null_same": float(null_same),
        "null_time_gap": null_gaps[0],
        "null_beta_gap": null_gaps[1],
        "exits": float(mine["stage_left"].sum()),
        "returns": float(again),
        "stages": float(other.sizes["stage"]),
    }


def _gaps(mine: xr.Dataset, other: xr.Dataset) -> tuple[float, float]:
    """Largest relative difference of stage times, and of weights over the largest."""
    times, betas = other["stage_time"].values, other["stage_beta"].values
    return (
        float(np.abs(mine["stage_time"].values / times - 1).max()),
        float(np.abs(mine["stage_beta"].values - betas).max() / np.abs(betas).max()),
    )


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge equality of the two roads."""
    judge = partial(
        check, paper=PAPER, where="Algorithm 1 and footnote 2", size=size, sizes=("tiny", "laptop", "gpu", "paper")
    )
    stages, exits = int(trajectory["stages"].sum()), int(trajectory["exits"].sum())
    returns = int(trajectory["returns"].sum())
    return [
        judge(
            "Algorithm 1 and the constrained least-squares path have the same coordinates, signs and support sizes "
            f"({stages} stages, {exits} exits, {returns} returns): 1 where all are equal",
            values=trajectory["same"].values,
            relation=">=",
            threshold=1.0,
            null=trajectory["null_same"].values,
            against="the path of another design",
        ),
        judge(
            "Their stage times are equal: largest relative difference",
            values=trajectory["time_gap"].values,
            relation="<=",
            threshold=1e-6,
            null=trajectory["null_time_gap"].values,
            against="the path of another design",
        ),
        judge(
            "Their weights are equal at every stage: largest difference over the largest weight",
            values=trajectory["beta_gap"].values,
            relation="<=",
            threshold=1e-6,
            null=trajectory["null_beta_gap"].values,
            against="the path of another design",
        ),
        judge(
            "Coordinates leave the support (the comparison covers it): exits over all seeds",
            values=float(exits),
            relation=">=",
            threshold=1.0,
            against="it counts what the comparison covers",
        ),
    ]


def figure(trajectory: Trajectory) -> "Figure":
    """Weights by three roads, and the loss."""
    return figures.diagonal.linear(trajectory)


_PAPER = Settings(dim=40, samples=80, factors=8, decades=1000, points=2001, seeds=20)

LINEAR = Experiment(
    name="diagonal/linear",
    title="The linear diagonal network: Algorithm 1 equals the constrained least-squares path",
    paper=PAPER,
    sizes={
        "tiny": Size(4, Settings(dim=8, samples=16, factors=3, decades=100, points=201, seeds=2)),
        "laptop": Size(5, Settings(dim=20, samples=40, factors=5, decades=300, points=1201, seeds=10)),
        "gpu": Size(90, _PAPER),
        "paper": Size(120, _PAPER),
    },
    run=run,
    claims=claims,
    figure=figure,
)
