"""Order of learning under varied signal and diversity: shared by figures 2a, 2b, 11 and 12.

Claims and their thresholds:

- *Order.* The concept with the larger a_p = σ_p² + μ_p²/s reaches 90 % first: the ratio of the two times
  is at most 1. One that is not learned within the run counts with the run's end, the least that its time can be; where
  neither is, there is no order to see and the claim fails. Settings with a tie in a are left out.
- *Reversal.* Along the list of σ_1 concept 1 goes from last to first.
- *Slowing down.* Between 5 and 10 times the slowest 1/a the output moves at less than a tenth of its top
  speed (section 3.2). For one layer it slows exponentially: log |dC/dt| against time is a straight line
  with R² ≥ 0.9 there, and its slope is −min a, required within 20 %, twice the relative error of the
  discrete clock at rate × a = 0.1. A run that ends before 10/a has no such tail, and these claims do not apply.

Nulls: the strengths of the settings in reverse order; the two smallest spreads; the time before 5/a; speeds of the tail
in random order; the largest a; Theorem 4.1 for the setting before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import concepts, figures
from saddles.concepts.experiments.grids import lay_out, pair
from saddles.concepts.experiments.paper import EVERY_SIZE, PAPER, sizes
from saddles.concepts.task import Identity
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.measures.concept_space import learning_times, slow_down, speed

Case = tuple[str, tuple[float, float], tuple[float, float]]
"""What is varied, μ and σ."""

SIGNAL: list[Case] = [("signal", (m, 2.0), (0.05, 0.05)) for m in (1.0, 2.0, 3.0)]
"""Those of figure 2a; the list is that of the authors' code."""

DIVERSITY: list[Case] = [("diversity", (1.0, 2.0), (s, 0.05)) for s in (0.05, 0.1, 0.5, 1.0, 2.0)]
"""Those of figure 2b; the list is that of the authors' code."""

TAILS = ("fit", "rate", "slowed", "mixed", "fast", "before")
"""What is read off the tail of a run: R², rate and speed, and the same of their nulls."""

TIE = 1e-9
"""Strengths closer than this are equal: which of their concepts comes first is left to the start."""


@dataclass(frozen=True)
class Settings:
    """The data and the training."""

    samples: Annotated[int, "points per cluster"] = 5000
    batch: Annotated[int, "points per step"] = 128
    rate: Annotated[float, "learning rate"] = 0.1
    epochs: Annotated[int, "passes over the data"] = 40
    loss: Annotated[str, "sum or mean over coordinates"] = "sum"
    save_every: Annotated[int, "steps between saved instants"] = 2
    dim: Annotated[int, "dimension d, and the width of a hidden layer"] = 64
    seeds: Annotated[int, "networks for each setting of the task"] = 5


def run_orders(settings: Settings, context: Context, cases: Sequence[Case], activation: str | None) -> Trajectory:
    """Train on every case and seed; one layer also gets Theorem 4.1 as `predicted`.

    Args:
        activation: that of the hidden layer; None is one layer, without any.
    """
    return run_many_orders([settings], [context], cases, activation)[0]


def run_many_orders(
    settings: Sequence[Settings], contexts: Sequence[Context], cases: Sequence[Case], activation: str | None
) -> list[Trajectory]:
    """Several of `run_orders` in one program; they may differ in rate and seed."""
    cells = []
    for one, context in zip(settings, contexts, strict=True):
        seeds, dim = context.seeds(one.seeds), one.dim
        tasks = [
            [concepts.Identity(mu, sigma, dim=dim, samples=one.samples, rotate=True, seed=seed) for seed in seeds]
            for _, mu, sigma in cases
        ]
        model = concepts.OneLayer() if activation is None else concepts.MLP((dim,), activation)
        method = concepts.SGD(one.rate, one.batch, one.epochs, one.loss, one.save_every)
        cells.append((concepts.Batch.grid(model, tasks, seeds, method), tasks, seeds))
    runs = concepts.train_together([batch for batch, _, _ in cells])
    labels = [f"μ = {pair(mu)}, σ = {pair(sigma)}" for _, mu, sigma in cases]
    results = []
    for trained, (batch, tasks, seeds) in zip(runs, cells, strict=True):
        whole = lay_out(trained, tasks, seeds, labels, batch.title)
        whole = whole.assign_coords(varied=("setting", [case[0] for case in cases]))
        if activation is None:
            whole["predicted"] = _theory(tasks, seeds, whole["time"].values, whole["output"])
        results.append(whole)
    return results


def _theory(
    tasks: Sequence[Sequence[Identity]], seeds: Sequence[int], times: np.ndarray, like: xr.DataArray
) -> xr.DataArray:
    model, theory = concepts.OneLayer(), concepts.OneLayerTheory()
    rows = [
        [
            predict(model, task, theory, times=times, seed=seed, keep=())["output"].values[:, : task.concepts]
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
    late, end = np.where(np.isnan(times), np.inf, times), float(trajectory["time"][-1])
    judge = partial(check, paper=PAPER, size=size, sizes=EVERY_SIZE)
    results = [
        judge("The concept with the larger σ² + μ²/s is learned first: its time of 90 % over the other's",
              where=where, values=_ratios(late, a, end), relation="<=", threshold=1.0, null=_ratios(late, a[::-1], end),
              against="strengths of the settings in reverse order")
    ]  # fmt: skip
    diverse = np.flatnonzero(trajectory["varied"].values == "diversity")
    if len(diverse) > 1:
        reverses = [
            float(((late[diverse[0], :, 0] > late[diverse[0], :, 1]) & (late[k, :, 0] < late[k, :, 1])).mean())
            for k in (diverse[-1], diverse[1])
        ]
        results.append(
            judge(
                "Diversity reverses the order, concept 1 from last to first: fraction of seeds",
                where=where,
                values=reverses[0],
                relation=">=",
                threshold=1.0,
                null=reverses[1],
                against="the two smallest spreads",
            )
        )
    slowest = float(trajectory["strength"].min())
    short = f"the run ends at time {end:.3g}, before 10/a = {10 / slowest:.3g}" if end < 10 / slowest else ""
    tails = _tails(trajectory) if not short else {name: [] for name in TAILS}
    results.append(
        judge("Learning slows down at the end: speed between 5/a and 10/a over the top speed",
              where="Section 3.2", values=tails["slowed"], relation="<=", threshold=0.1, null=tails["before"] or None,
              against="before 5/a", not_applicable=short)
    )  # fmt: skip
    return [*results, *(_one_layer_claims(trajectory, judge, tails, short) if one_layer else [])]


def _ratios(late: np.ndarray, a: np.ndarray, end: float) -> list[float]:
    """Time of the stronger concept over that of the weaker, where they differ; late and a are (setting, seed, 2).

    A concept that is not learned counts with the run's end; where neither is, the ratio is infinite.
    """
    strong, weak = np.argmax(a, axis=-1)[..., None], np.argmin(a, axis=-1)[..., None]
    ours, theirs = (np.take_along_axis(np.minimum(late, end), which, -1)[..., 0] for which in (strong, weak))
    ratio = np.where(np.isfinite(late).any(axis=-1), ours / theirs, np.inf)
    return list(ratio[np.abs(a[..., 0] - a[..., 1]) > TIE])


def _one_layer_claims(
    trajectory: Trajectory, judge: Callable[..., Claim], tails: dict[str, list[float]], short: str
) -> list[Claim]:
    """Sentences that Theorem 4.1 makes exact."""
    return [
        judge("It slows down exponentially: R² of log speed against time",
              where="Theorem 4.1", values=tails["fit"], relation=">=", threshold=0.9, null=tails["mixed"] or None,
              against="speeds in random order", not_applicable=short),
        judge("The rate of the tail is the smallest a: relative error",
              where="Theorem 4.1", values=tails["rate"], relation="<=", threshold=0.2, null=tails["fast"] or None,
              against="the largest a", not_applicable=short),
        judge("SGD follows Theorem 4.1: largest |C − theory| / |x̂|, in units of rate × largest a",
              where="Theorem 4.1", values=_distance(trajectory, trajectory["predicted"]), relation="<=", threshold=1.0,
              null=_distance(trajectory, trajectory["predicted"].roll(setting=1, roll_coords=False)),
              against="the theorem for another setting"),
    ]  # fmt: skip


def _tails(trajectory: Trajectory) -> dict[str, list[float]]:
    """Of every run: R² and rate of the tail, its speed, and the same three of the nulls."""
    rows: dict[str, list[float]] = {name: [] for name in TAILS}
    draw = np.random.default_rng(0)
    for k in range(trajectory.sizes["setting"]):
        for n in range(trajectory.sizes["seed"]):
            one = trajectory.isel(setting=k, seed=n)
            slowest, fastest = float(one["strength"].min()), float(one["strength"].max())
            shown = one["output"].where(one["time"] <= 10 / slowest, drop=True)
            tail = slow_down(shown)
            pace = speed(shown)
            late = pace["time"] >= 5 / slowest
            logs = np.log(np.maximum(pace.values[late.values], np.finfo(float).tiny))
            line = np.corrcoef(draw.permutation(logs), pace["time"].values[late.values])[0, 1]
            rows["fit"].append(float(tail["fit"]))
            rows["mixed"].append(float(line**2))
            rows["rate"].append(abs(float(tail["rate"]) / slowest - 1))
            rows["fast"].append(abs(float(tail["rate"]) / fastest - 1))
            rows["slowed"].append(float(pace.where(late).mean() / pace.max()))
            rows["before"].append(float(pace.where(~late).mean() / pace.max()))
    return rows


def _distance(trajectory: Trajectory, predicted: xr.DataArray) -> list[float]:
    away = (trajectory["output"] - predicted) ** 2
    gap = away.sum("coordinate").max("time") ** 0.5
    reach = (trajectory["target"] ** 2).sum("coordinate") ** 0.5
    step = float(trajectory["time"][1]) / float(trajectory["step"][1])
    return list((gap / reach / (step * trajectory["strength"].max("coordinate"))).values.ravel())


def figure(trajectory: Trajectory) -> Drawing:
    """Outputs at the test point in the plane of the two concepts."""
    return figures.concepts.orders(trajectory)


def _experiment(
    number: str, title: str, cases: Sequence[Case], activation: str | None, seconds: tuple[int, int, int], seeds: int
) -> Experiment[Settings]:
    """One of the four figures; `seconds` at sizes tiny, laptop and gpu."""
    tiny, laptop, gpu = seconds
    return Experiment(
        f"concepts/figure-{number}",
        title,
        PAPER,
        sizes=sizes(
            Size(tiny, Settings(samples=400, batch=32, rate=0.05, epochs=30, dim=16, seeds=2)),
            Size(laptop, Settings(seeds=seeds)),
            Size(laptop * 3, Settings(seeds=3 * seeds)),
            gpu_seconds=gpu,
        ),
        together=("rate", "seed"),
        run=partial(run_orders, cases=cases, activation=activation),
        run_many=partial(run_many_orders, cases=cases, activation=activation),
        claims=partial(order_claims, where=f"Figure {number}", one_layer=activation is None),
        figure=figure,
    )


FIGURE_2A = _experiment(
    "2a", "A larger signal is learned first: one layer, three signals", SIGNAL, None, (2, 4, 20), seeds=5
)
FIGURE_2B = _experiment(
    "2b", "More diversity is learned first and reverses the order: one layer, five spreads", DIVERSITY, None,
    (2, 5, 30), seeds=5,
)  # fmt: skip
FIGURE_11 = _experiment(
    "11", "The orders of figure 2 in a two-layer linear network", [*SIGNAL, *DIVERSITY], "linear", (3, 5, 15), seeds=2
)
FIGURE_12 = _experiment(
    "12", "The orders of figure 2 in a two-layer ReLU network", [*SIGNAL, *DIVERSITY], "relu", (3, 8, 30), seeds=2
)
