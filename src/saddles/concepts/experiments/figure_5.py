"""Figure 5: every fall and rise of the test loss is a growth or a suppression in the Jacobian.

A symmetric pair, s = 2, μ = (1, 2), σ = 0.05, U(0) uniform on [0, 0.2] so that all of W(0) is positive.

Claims and their thresholds, over seeds:

- *Falls are growth, rises are suppression.* The change of the test loss over each segment is split exactly
  into what growing and what shrinking entries contribute; the named one makes more than half of it.
- *Order.* The predicted events come in the measured order, in every seed.
- *Times.* The pivot law is a small-W law: its relative error is of the order of W(0)'s largest entry over
  log(1/W(0)), below 10 % here.
- *Double descent.* It needs minor entries that overshoot, so it is asked of one seed in ten.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import concepts, figures
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.concepts.schedule import events, loss_accounts, predicted_events
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.measures.loss_curves import descents, turning_points


@dataclass(frozen=True)
class Settings:
    """The task, the start, and how long the flow is followed."""

    mu: Annotated[tuple[float, ...], "signals μ, one per concept"] = (1.0, 2.0)
    sigma: Annotated[float, "spread σ of every cluster"] = 0.05
    top: Annotated[float, "U(0) is uniform on [0, top]"] = 0.2
    until: Annotated[float, "gradient time"] = 12.0
    instants: Annotated[int, "saved instants"] = 801
    seeds: Annotated[int, "starts"] = 40


def run(settings: Settings, context: Context) -> Trajectory:
    """The flow from several starts, with its terms, accounts and events, predicted and seen."""
    task = concepts.Identity(settings.mu, settings.sigma)
    seeds = context.seeds(settings.seeds)
    times = np.linspace(0.0, settings.until, settings.instants)
    parts, model = [], concepts.SymmetricTwoLayer(top=settings.top)
    for seed in seeds:
        part = simulate(model, task, concepts.GradientFlow(), times=times, seed=seed, keep=("jacobian", "terms"))
        part = part.merge(loss_accounts(part), combine_attrs="override")
        part = part.merge(_laid_out(predicted_events(model, task, seed=seed), "predicted", task.concepts))
        parts.append(part.merge(_laid_out(events(part), "seen", task.concepts), combine_attrs="override"))
    whole = xr.concat(
        parts,
        xr.DataArray(seeds, dims="seed", name="seed"),
        data_vars="different",
        coords="minimal",
        compat="equals",
        combine_attrs="override",
    )
    whole.attrs.pop("seed", None)
    return whole.transpose("time", "seed", ...)


def _laid_out(table: xr.Dataset, name: str, concepts: int) -> xr.Dataset:
    """Times of growth (diagonal) and suppression (row the stronger concept), NaN where there is none."""
    grid = np.full((concepts, concepts), np.nan)
    for kind, row, column, at in zip(
        table["kind"].values, table["row"].values, table["column"].values, table["at"].values, strict=True
    ):
        if kind != "initial growth ends":
            grid[row - 1, column - 1] = at
    return xr.Dataset({f"event_{name}": (("row", "column"), grid)})


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the match between loss and Jacobian."""
    growth_share, suppression_share, order, error = [], [], [], []
    for seed in trajectory["seed"].values:
        one = trajectory.sel(seed=seed)
        segments = turning_points(one["test_loss"], 0.001)
        grown = (one["major_growth"] + one["minor_growth"]).values
        shrunk = one["suppressed"].values
        for first, last, kind in zip(
            segments["first"].values, segments["last"].values, segments["kind"].values, strict=True
        ):
            total = float(one["test_loss"][last] - one["test_loss"][first])
            if kind == "descent":
                growth_share.append(float(grown[last] - grown[first]) / total)
            else:
                suppression_share.append(float(shrunk[last] - shrunk[first]) / total)
        said, seen = one["event_predicted"].values.ravel(), one["event_seen"].values.ravel()
        both = np.isfinite(said) & np.isfinite(seen)
        order.append(float((np.argsort(said[both]) == np.argsort(seen[both])).all()))
        diagonal = np.diagonal(one["event_seen"].values)
        error.append(float(np.abs(np.diagonal(one["event_predicted"].values) / diagonal - 1).max()))
    twice = descents(trajectory["test_loss"])["count"].values >= 2
    judge = partial(check, paper=PAPER, size=size, where="Figure 5")
    return [
        judge(
            "Each descent of the test loss is made by growing entries: least share of its fall",
            values=growth_share,
            relation=">=",
            threshold=0.5,
        ),
        judge(
            "Each ascent of the test loss is made by suppressed entries: least share of its rise",
            values=suppression_share,
            relation=">=",
            threshold=0.5,
            not_applicable="" if suppression_share else "no test loss rises in these seeds",
        ),
        judge(
            "Growth and suppression come in the predicted order: fraction of seeds",
            where="Section 4.2.1",
            values=float(np.mean(order)),
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "The pivot law gives the time of growth: largest relative error",
            where="pivot law",
            values=error,
            relation="<=",
            threshold=0.1,
        ),
        judge(
            "The test loss descends twice: fraction of seeds (1 % prominence)",
            values=float(twice.mean()),
            relation=">=",
            threshold=0.1,
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Test loss and entries of W with the predicted events."""
    return figures.concepts.stage_plot(trajectory)


EXPERIMENT = Experiment(
    "concepts/figure-5",
    "Every fall and rise of the test loss is a growth or a suppression in the Jacobian",
    PAPER,
    sizes=sizes(
        Size(4, Settings(until=8.0, instants=401, seeds=8)),
        Size(10, Settings()),
        Size(60, Settings(seeds=300)),
        gpu_seconds=100,
    ),
    run=run,
    claims=claims,
    figure=figure,
)
