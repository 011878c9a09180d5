"""Order of learning under varied signal and diversity: shared by figures 2a, 2b, 11 and 12.

Claims and their thresholds:

- *Order.* The concept with the larger a_p = σ_p² + μ_p²/s reaches 90 % first: the ratio of the two times
  is at most 1. Settings with a tie in a are left out.
- *Reversal.* Along the list of σ_1 concept 1 goes from last to first.
- *Slowing down.* Between 5 and 10 times the slowest 1/a the output moves at less than a tenth of its top
  speed (section 3.2). For one layer it slows exponentially: log |dC/dt| against time is a straight line
  with R² ≥ 0.9 there, and its slope is −min a, asked for within 20 %, twice the relative error of the
  discrete clock at rate × a = 0.1.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.concepts.experiments import PAPER
from saddles.concepts.experiments.grids import grid_batch, lay_out, pair
from saddles.concepts.model import MLP, OneLayer
from saddles.concepts.sgd import SGD, Batch, train_together
from saddles.concepts.task import Identity
from saddles.concepts.theory import OneLayerTheory
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.measures.concept_space import learning_times, slow_down, speed

SIGNAL = [("signal", (m, 2.0), (0.05, 0.05)) for m in (1.0, 2.0, 3.0)]
"""(what is varied, μ, σ) of figure 2a; the list is that of the authors' code."""

DIVERSITY = [("diversity", (1.0, 2.0), (s, 0.05)) for s in (0.05, 0.1, 0.5, 1.0, 2.0)]
"""(what is varied, μ, σ) of figure 2b; the list is that of the authors' code."""


def run_orders(
    settings: dict[str, Any], context: Context, cases: Sequence[Any], activation: str, hidden: bool
) -> Trajectory:
    """Train on every case and seed; one layer also gets Theorem 4.1 as `predicted`."""
    return run_many_orders([settings], [context], cases, activation, hidden)[0]


def run_many_orders(
    settings: Sequence[dict[str, Any]], contexts: Sequence[Context], cases: Sequence[Any], activation: str, hidden: bool
) -> list[Trajectory]:
    """Several of `run_orders` in one program; they may differ in rate and seed."""
    cells = []
    for one, context in zip(settings, contexts, strict=True):
        seeds, dim = context.seeds(one["seeds"]), one["dim"]
        tasks = [
            [Identity(mu, sigma, dim=dim, samples=one["samples"], rotate=True, seed=seed) for seed in seeds]
            for _, mu, sigma in cases
        ]
        model = MLP((dim,), activation) if hidden else OneLayer()
        method = SGD(one["rate"], one["batch"], one["epochs"], one["loss"], one["save_every"])
        cells.append((grid_batch(model, tasks, seeds, method), tasks, seeds))
    made = train_together([batch for batch, _, _ in cells])
    return [
        _ordered(found, batch, tasks, seeds, cases) for found, (batch, tasks, seeds) in zip(made, cells, strict=True)
    ]


def _ordered(found: Trajectory, batch: Batch, tasks: Any, seeds: Sequence[int], cases: Sequence[Any]) -> Trajectory:
    labels = [f"μ = {pair(mu)}, σ = {pair(sigma)}" for _, mu, sigma in cases]
    whole = lay_out(found, batch, tasks, seeds, labels)
    whole = whole.assign_coords(varied=("setting", [case[0] for case in cases]))
    model = batch.models[0]
    if isinstance(model, OneLayer):
        whole["predicted"] = _theory(model, tasks, seeds, whole["time"].values, whole["output"])
    return whole


def _theory(model: OneLayer, tasks: Any, seeds: Sequence[int], times: np.ndarray, like: xr.DataArray) -> xr.DataArray:
    rows = [
        [
            predict(model, task, OneLayerTheory(), times=times, seed=seed, keep=())["output"].values[:, : task.concepts]
            for task, seed in zip(row, seeds, strict=True)
        ]
        for row in tasks
    ]
    return like.copy(data=np.moveaxis(np.asarray(rows), 2, 0))


def order_claims(trajectory: Trajectory, size: str, where: str, one_layer: bool) -> list[Claim]:
    """Judge order, reversal and slowing down over all settings and seeds."""
    when = learning_times(trajectory["output"], trajectory["target"])["learned_at"].transpose("setting", "seed", ...)
    a = trajectory["strength"].transpose("setting", "seed", "coordinate").values
    times = when.values
    strong, weak = np.argmax(a, axis=-1)[..., None], np.argmin(a, axis=-1)[..., None]
    late = np.where(np.isnan(times), np.inf, times)
    ours, theirs = (np.take_along_axis(late, which, -1)[..., 0] for which in (strong, weak))
    ratio = np.where(np.isfinite(ours), ours, 1e6) / np.where(np.isfinite(theirs), theirs, 1e6)
    ratio = np.where(np.isfinite(ours), ratio, np.inf)
    untied = np.abs(a[..., 0] - a[..., 1]) > 1e-9
    judge = partial(check, paper=PAPER, size=size, sizes=("tiny", "laptop", "gpu", "paper"))
    found = [
        judge(
            "The concept with the larger σ² + μ²/s is learned first: its time of 90 % over the other's",
            where=where,
            values=list(ratio[untied]),
            relation="<=",
            threshold=1.0,
        )
    ]
    diverse = np.flatnonzero(trajectory["varied"].values == "diversity")
    if len(diverse) > 1:
        first, last = late[diverse[0]], late[diverse[-1]]
        found.append(
            judge(
                "Diversity reverses the order, concept 1 from last to first: fraction of seeds",
                where=where,
                values=float(((first[:, 0] > first[:, 1]) & (last[:, 0] < last[:, 1])).mean()),
                relation=">=",
                threshold=1.0,
            )
        )
    fits, rates, slowed = _tails(trajectory)
    found.append(
        judge(
            "Learning slows down at the end: speed between 5/a and 10/a over the top speed",
            where="Section 3.2",
            values=slowed,
            relation="<=",
            threshold=0.1,
        )
    )
    return [*found, *(_one_layer_claims(trajectory, judge, fits, rates) if one_layer else [])]


def _one_layer_claims(trajectory: Trajectory, judge: Any, fits: list[float], rates: list[float]) -> list[Claim]:
    """Sentences that Theorem 4.1 makes exact."""
    return [
        judge(
            "It slows down exponentially: R² of log speed against time",
            where="Theorem 4.1",
            values=fits,
            relation=">=",
            threshold=0.9,
        ),
        judge(
            "The rate of the tail is the smallest a: relative error",
            where="Theorem 4.1",
            values=rates,
            relation="<=",
            threshold=0.2,
        ),
        judge(
            "SGD follows Theorem 4.1: largest |C − theory| / |x̂|, in units of rate × largest a",
            where="Theorem 4.1",
            values=_distance(trajectory),
            relation="<=",
            threshold=1.0,
        ),
    ]


def _tails(trajectory: Trajectory) -> tuple[list[float], list[float], list[float]]:
    fits, errors, slowed = [], [], []
    for k in range(trajectory.sizes["setting"]):
        for n in range(trajectory.sizes["seed"]):
            one = trajectory.isel(setting=k, seed=n)
            slowest = float(one["strength"].min())
            shown = one["output"].where(one["time"] <= 10 / slowest, drop=True)
            tail = slow_down(shown)
            fits.append(float(tail["fit"]))
            errors.append(abs(float(tail["rate"]) / slowest - 1))
            pace = speed(shown)
            slowed.append(float(pace.where(pace["time"] >= 5 / slowest).mean() / pace.max()))
    return fits, errors, slowed


def _distance(trajectory: Trajectory) -> list[float]:
    away = (trajectory["output"] - trajectory["predicted"]) ** 2
    gap = away.sum("coordinate").max("time") ** 0.5
    reach = (trajectory["target"] ** 2).sum("coordinate") ** 0.5
    step = float(trajectory["time"][1]) / float(trajectory["step"][1])
    return list((gap / reach / (step * trajectory["strength"].max("coordinate"))).values.ravel())
