"""Figure 2 of the paper (and a–c of its first version, Figure 3's views): curves converge to Algorithm 1's staircase.

Claims and their thresholds:

- *Convergence.* The mean distance between the loss curve and the staircase is a shift of its jumps, of
  order 1/log(1/α) (Theorem 4.1 promises convergence, the proof this order). Its log-log slope against log(1/α)
  from α = 1e-4 on must be at least half as steep: ≤ −1/2.
- *Order.* The start shifts log-scale weights by at most max|log p₀, q₀|/log(1/α). Where the two smallest Δ
  differ by more than twice that, relative to the stage's time, the flow must activate the predicted coordinate
  with the predicted sign: all such stages, no exception. (A stage is judged where the same coordinates were
  active before it.)
- *Times.* The error of the limit's stage times falls like 1/log(1/α): the median slope over the stages that
  agree at every α is within 0.1 of −1.
- *Log-scales.* The invariant of the proof, log_α of the weights at a stage tends to b^k ((19), (20)), has no rate
  in the text; the start shifts it by a constant over log(1/α). The largest error over coordinates must fall at least
  half as fast as that: median log-log slope over stages ≤ −1/2.
- *Finite form.* The first activation's time at the largest of these α, before any transition has acted: 1e-3.
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import FACTS, compare_stages, log_alpha
from saddles.diagonal.method import Flow
from saddles.diagonal.model import AttentionHead
from saddles.diagonal.task import TeacherStudent
from saddles.diagonal.theory import Incremental
from saddles.figures.diagonal import figure_2 as figure
from saddles.runtime.progress import bar

__all__ = ["claims", "curves", "figure", "run"]

PAPER = "boix2023rank"


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Curves of one teacher at all α, and stage tables of several teachers."""
    seeds = context.seeds(settings["seeds"])
    whole = curves(settings, context, seeds[0])
    model = AttentionHead(settings["order_dim"])
    parts = []
    with bar("diagonal/figure-2, teachers", len(seeds)) as progress:
        for seed in seeds:
            task = TeacherStudent(model, settings["order_samples"], settings["tokens"], seed)
            make = partial(compare_stages, model, task, seed, settings["order_stages"], settings["deep"])
            parts.append(context.part(f"order-{seed}", make))
            progress.advance()
    for name in FACTS:
        rows = np.stack([part[name].isel(time=0).values for part in parts])
        whole[name] = (("seed", "deep", "order_stage"), rows)
    return whole.assign_coords(seed=seeds, deep=settings["deep"])


def curves(settings: dict[str, Any], context: Context, seed: int) -> Trajectory:
    """Loss and weights against rescaled time for every α of one teacher, beside the prediction."""
    model = AttentionHead(settings["dim"])
    task = TeacherStudent(model, settings["samples"], settings["tokens"], seed)
    foreseen = context.part(
        "prediction",
        lambda: predict(model, task, Incremental(settings["stages"] + 1, until=settings["until"]), seed=seed),
    )
    end = min(settings["until"], 0.999 * float(foreseen["stage_time"][-1]))
    clock = np.linspace(0.0, end, settings["points"])
    flows = []
    with bar("diagonal/figure-2, flows", len(settings["decades"])) as progress:
        for decades in settings["decades"]:
            make = partial(simulate, model, task, Flow(log_alpha(decades)), times=clock, seed=seed)
            flows.append(context.part(f"flow-{decades}", make))
            progress.advance()
    where = np.searchsorted(foreseen["rescaled_time"].values, clock, side="right") - 1
    staircase = foreseen.isel(time=where)
    whole = make_trajectory(
        {
            "loss": (("time", "decade"), np.stack([f["loss"].values for f in flows], axis=1)),
            "beta": (("time", "decade", "coordinate"), np.stack([f["beta"].values for f in flows], axis=1)),
            "predicted_loss": (("time",), staircase["loss"].values),
            "predicted_beta": (("time", "coordinate"), staircase["beta"].values),
            "stage_time": (("stage",), foreseen["stage_time"].values),
            "stage_coordinate": (("stage",), foreseen["stage_coordinate"].values),
            "gradients": (("decade",), [f.attrs["gradient_evaluations"] for f in flows]),
            "products": (("decade",), [f.attrs["hessian_products"] for f in flows]),
        },
        clock,
        unit="rescaled time, t / log(1/α)",
        coords={"decade": settings["decades"], "family": ("coordinate", foreseen["family"].values)},
        lab="diagonal",
        kind="simulated and predicted",
        model=model,
        task=task,
    )
    whole.attrs["status"] = next((f.attrs["status"] for f in flows if f.attrs["status"] != "finished"), "finished")
    return whole


def distance(trajectory: xr.Dataset) -> np.ndarray:
    """Mean over time of |loss − staircase| over the first loss, for each α."""
    gap = abs(trajectory["loss"] - trajectory["predicted_loss"]).mean("time")
    return (gap / trajectory["predicted_loss"][0]).values


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence, order and times."""
    decades = trajectory["decade"].values.astype(float)
    small = decades >= 4
    slope = np.polyfit(np.log(decades[small]), np.log(distance(trajectory)[small]), 1)[0]
    agrees, comparable = trajectory["agrees"].values == 1, trajectory["same_before"].values == 1
    firm = comparable & (trajectory["margin"].values > 1)
    rates = [np.mean(agrees[i][firm[i]]) if firm[i].any() else np.nan for i in range(len(agrees))]
    total = f"{int((agrees & firm).sum())} of {int(firm.sum())} qualifying stages of {firm.size}"
    judge = partial(check, paper=PAPER, where="Theorem 4.1, Figure 2", size=size)
    return [
        judge(
            "Loss curves converge to the predicted staircase: log-log slope of their distance against log(1/α)",
            values=slope,
            relation="<=",
            threshold=-0.5,
        ),
        judge(
            f"Coordinate and sign of every stage whose margin exceeds 2 max|log p₀, q₀|/log(1/α) are as predicted "
            f"({total}): share",
            values=[rate for rate in rates if np.isfinite(rate)],
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "Errors of the predicted stage times fall like 1/log(1/α): distance of the median slope from −1",
            values=np.abs(_slopes(trajectory, "time_error") + 1),
            relation="<=",
            threshold=0.1,
        ),
        judge(
            "Log-scale weights at the stages tend to b: median log-log slope of the largest error against log(1/α)",
            where="(19), (20)",
            values=_slopes(trajectory, "scale_error"),
            relation="<=",
            threshold=-0.5,
        ),
        judge(
            "The finite-α form gives the time of the first activation: relative error at the largest of these α",
            where="(10), (7)",
            values=_first(trajectory),
            relation="<=",
            threshold=1e-3,
        ),
    ]


def _slopes(trajectory: xr.Dataset, name: str) -> np.ndarray:
    """Median over stages of the log-log slope of an error, one a seed, over stages that agree at every α."""
    clock = np.log(trajectory["deep"].values.astype(float))
    found = []
    for errors in trajectory[name].transpose("seed", "deep", "order_stage").values:
        whole = np.isfinite(errors).all(axis=0) & (errors > 0).all(axis=0)
        if whole.any():
            found.append(np.median(np.polyfit(clock, np.log(errors[:, whole]), 1)[0]))
    return np.array(found)


def _first(trajectory: xr.Dataset) -> np.ndarray:
    errors = trajectory["finite_error"].isel(deep=0, order_stage=0).values
    return errors[np.isfinite(errors)]
