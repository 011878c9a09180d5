"""Theorem 4.1 against training: how the error falls with the learning rate.

One layer, the same samples for both. Full batch is Euler's method, first order: slope 1 ± 0.1. Mini-batches
add noise of variance rate × time: slope between 0.5 (noise alone) and 1.

The slope is that of the mean over seeds of log sup-norm error at x̂ against log rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import concepts, figures
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.concepts.task import Identity
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError

SAVES = 100
"""Instants of every run, whatever its rate."""


@dataclass(frozen=True)
class Settings:
    """The data, the rates that are compared, and how long each run lasts."""

    dim: Annotated[int, "dimension d"] = 64
    samples: Annotated[int, "points per cluster"] = 2000
    batch: Annotated[int, "points per step of the mini-batches"] = 64
    rates: Annotated[tuple[float, ...], "learning rates, descending"] = (0.05, 0.025, 0.0125, 0.00625)
    until: Annotated[float, "gradient time"] = 5.0
    seeds: Annotated[int, "data sets and starts"] = 12


def run(settings: Settings, context: Context) -> Trajectory:
    """Sup-norm errors over rates, seeds and both methods, and the curves of the largest rate."""
    seeds, rates = context.seeds(settings.seeds), settings.rates
    largest = settings.until / SAVES
    if len(set(rates)) < 2 or max(rates) > largest:
        raise SaddlesError.must_be("rates", f"two or more, at most {largest:g}: a slope over {SAVES} instants", rates)
    tasks = [
        concepts.Identity((1.0, 2.0), 0.5, dim=settings.dim, samples=settings.samples, rotate=True, seed=seed)
        for seed in seeds
    ]
    model, theory = concepts.OneLayer(), concepts.OneLayerTheory()
    errors = np.zeros((len(rates), 2, len(seeds)))
    shown: dict[str, np.ndarray] = {}
    for i, rate in enumerate(rates):
        for j, batch in enumerate((None, settings.batch)):
            trained = _run(tasks, seeds, rate, batch, settings)
            times = trained["time"].values
            for k, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
                exact = predict(model, task, theory, times=times, seed=seed, keep=())["output"].values
                gap = trained["output"].isel(run=k).values - exact
                errors[i, j, k] = np.linalg.norm(gap, axis=1).max()
                if i == 0 and k == 0:
                    shown[("full", "sgd")[j]] = trained["output"].isel(run=k).values[:, :2]
                    shown["theory"] = exact[:, :2]
                    shown["times"] = times
    return make_trajectory(
        {
            "error": (("rate", "method", "seed"), errors),
            "output": (("time", "method", "coordinate"), np.stack([shown["full"], shown["sgd"]], axis=1)),
            "predicted": (("time", "coordinate"), shown["theory"]),
            "target": (("coordinate",), tasks[0].target[:2]),
        },
        shown["times"],
        unit="gradient time",
        lab="concepts",
        kind="simulated and predicted",
        model=model,
        task=tasks[0],
        coords={"rate": list(rates), "method": ["full batch", f"batches of {settings.batch}"], "seed": seeds},
    )


def _run(
    tasks: Sequence[Identity], seeds: Sequence[int], rate: float, batch: int | None, settings: Settings
) -> Trajectory:
    """A hundred instants until the same time; the same program for every rate."""
    longest = round(settings.until / min(settings.rates))
    per_epoch = 1 if batch is None else len(tasks[0].latent) // batch
    if not per_epoch:
        raise SaddlesError.must_be("samples", f"so many that all clusters fill a batch of {batch}", settings.samples)
    stride = round(settings.until / rate / SAVES)
    method = concepts.SGD(rate, batch, int(np.ceil(longest / per_epoch)), save_every=stride, steps=SAVES * stride)
    return concepts.train(concepts.Batch.grid(concepts.OneLayer(), [tasks], seeds, method))


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the two slopes."""
    logs = np.log(trajectory["error"].transpose("rate", "method", "seed").values).mean(axis=2)
    rates = np.log(trajectory["rate"].values)
    full, noisy = (float(np.polyfit(rates, logs[:, j], 1)[0]) for j in (0, 1))
    mixed = np.roll(rates, 1)
    full_null, noisy_null = (float(np.polyfit(mixed, logs[:, j], 1)[0]) for j in (0, 1))
    shift = "every error at the next rate"
    judge = partial(check, paper=PAPER, where="Theorem 4.1", size=size)
    return [
        judge("Full batch: the error falls with the rate to the first power, |slope − 1|",
              values=abs(full - 1), relation="<=", threshold=0.1, null=abs(full_null - 1), against=shift),
        judge("Mini-batches: the slope is at least ½", values=noisy, relation=">=", threshold=0.5,
              null=noisy_null, against=shift),
        judge("Mini-batches: the slope is at most 1", values=noisy, relation="<=", threshold=1.0,
              against="the other side of the same interval"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """The error against the learning rate."""
    return figures.concepts.slopes(trajectory)


EXPERIMENT = Experiment(
    "concepts/theory-vs-sgd",
    "Theorem 4.1 against training: the error falls with the learning rate",
    PAPER,
    sizes=sizes(
        Size(4, Settings(dim=8, samples=200, batch=20, rates=(0.05, 0.025, 0.0125), seeds=4)),
        Size(5, Settings()),
        Size(120, Settings(samples=5000, batch=128, until=8.0, seeds=30)),
        gpu_seconds=15,
    ),
    run=run,
    claims=claims,
    figure=figure,
)
