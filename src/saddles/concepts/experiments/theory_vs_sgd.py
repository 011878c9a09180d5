"""Theorem 4.1 against training: how the error falls with the learning rate.

One layer, the same samples for both. Full batch is Euler's method, first order: slope 1 ± 0.1. Mini-batches
add noise of variance rate × time: slope between 0.5 (noise alone) and 1.

The slope is that of the mean over seeds of log sup-norm error at x̂ against log rate.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.concepts.experiments import PAPER
from saddles.concepts.model import OneLayer
from saddles.concepts.sgd import SGD, train
from saddles.concepts.task import Identity
from saddles.concepts.theory import OneLayerTheory
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.concepts import slopes as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Sup-norm errors over rates, seeds and both methods, and the curves of the largest rate."""
    seeds, rates = context.seeds(settings["seeds"]), settings["rates"]
    tasks = [
        Identity((1.0, 2.0), 0.5, dim=settings["dim"], samples=settings["samples"], rotate=True, seed=seed)
        for seed in seeds
    ]
    model = OneLayer()
    errors = np.zeros((len(rates), 2, len(seeds)))
    shown: dict[str, Any] = {}
    for i, rate in enumerate(rates):
        for j, batch in enumerate((None, settings["batch"])):
            found = _run(model, tasks, seeds, rate, batch, settings)
            times = found["time"].values
            for k, (task, seed) in enumerate(zip(tasks, seeds, strict=True)):
                exact = predict(model, task, OneLayerTheory(), times=times, seed=seed, keep=())["output"].values
                gap = found["output"].isel(run=k).values - exact
                errors[i, j, k] = np.linalg.norm(gap, axis=1).max()
                if i == 0 and k == 0:
                    shown[("full", "sgd")[j]] = found["output"].isel(run=k).values[:, :2]
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
        coords={"rate": rates, "method": ["full batch", f"batches of {settings['batch']}"], "seed": seeds},
    )


def _run(
    model: OneLayer, tasks: Any, seeds: Any, rate: float, batch: int | None, settings: dict[str, Any]
) -> Trajectory:
    """A hundred instants until the same time; the same program for every rate."""
    longest = round(settings["until"] / min(settings["rates"]))
    each = 1 if batch is None else len(tasks[0].latent) // batch
    stride = round(settings["until"] / rate / 100)
    method = SGD(rate, batch, int(np.ceil(longest / each)), save_every=stride, steps=100 * stride)
    return train([model] * len(tasks), tasks, seeds, method)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the two slopes."""
    logs = np.log(trajectory["error"].transpose("rate", "method", "seed").values).mean(axis=2)
    full, noisy = (float(np.polyfit(np.log(trajectory["rate"].values), logs[:, j], 1)[0]) for j in (0, 1))
    judge = partial(check, paper=PAPER, where="Theorem 4.1", size=size)
    return [
        judge(
            "Full batch: the error falls with the rate to the first power, |slope − 1|",
            values=abs(full - 1),
            relation="<=",
            threshold=0.1,
        ),
        judge("Mini-batches: the slope is at least ½", values=noisy, relation=">=", threshold=0.5),
        judge("Mini-batches: the slope is at most 1", values=noisy, relation="<=", threshold=1.0),
    ]
