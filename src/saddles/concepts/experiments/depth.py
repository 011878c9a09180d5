"""Section F.2: "models with more layers and fewer input dimensions are easier to have Transient Memorization".

Linear networks of one to four layers, hidden width d, in low and in higher dimension, on the data of figure 13 (s = 2,
μ = (1, 2), σ = 0.05, not rotated); everything else is the same, the clock too (the loss is summed over coordinates).
Transient memorisation is, as in figures 3 and 14, a rise of the test loss by more than 1 % of its first value between
two descents.

Claims and their thresholds: of the runs with four layers a larger share has it than of those with one layer, in low
dimension; and of those with three or four layers a larger share in low dimension than in the higher one. With 48 runs
each, two shares differ by chance by up to 0.2 (two standard deviations of a difference, 2√(½/48)); that much is
required. The null is what runs with their labels exchanged at random reach, the luckiest 5 %.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import concepts, figures
from saddles.concepts.experiments.memorisation import RISE
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.loss_curves import descents

LUCK, ORDERS = 0.05, 1000
"""Share of random exchanges that the null keeps, its luckiest, and how many are drawn."""


@dataclass(frozen=True)
class Settings:
    """The networks that are compared, and their training."""

    layers: Annotated[tuple[int, ...], "numbers of layers"] = (1, 2, 3, 4)
    dims: Annotated[tuple[int, ...], "dimensions d, the lowest first"] = (3, 12)
    samples: Annotated[int, "points per cluster"] = 500
    batch: Annotated[int, "points per step"] = 64
    rate: Annotated[float, "learning rate"] = 0.03
    epochs: Annotated[int, "passes over the data"] = 60
    save_every: Annotated[int, "steps between saved instants"] = 6
    seeds: Annotated[int, "networks of each kind"] = 48


def run(settings: Settings, context: Context) -> Trajectory:
    """Test loss of every network, and the depth of its transient memorisation."""
    seeds = context.seeds(settings.seeds)
    method = concepts.SGD(settings.rate, settings.batch, settings.epochs, "sum", settings.save_every)
    losses, times = [], np.zeros(0)
    for layers in settings.layers:
        for dim in settings.dims:
            make = partial(_train, layers, dim, settings, seeds, method)
            part = context.part(f"layers-{layers}-dim-{dim}", make)
            losses.append(part["test_loss"].values)
            times = part["time"].values
    shape = (len(times), len(settings.layers), len(settings.dims), len(seeds))
    whole = make_trajectory(
        {"test_loss": (("time", "layers", "dim", "seed"), np.stack(losses, axis=1).reshape(shape))},
        times,
        unit="gradient time",
        lab="concepts",
        kind="simulated",
        method=method,
        coords={"layers": list(settings.layers), "dim": list(settings.dims), "seed": seeds},
    )
    whole["depth"] = descents(whole["test_loss"])["depth"]
    return whole


def _train(layers: int, dim: int, settings: Settings, seeds: list[int], method: "concepts.SGD") -> Trajectory:
    """All seeds of one kind, in one program."""
    tasks = [concepts.Identity((1.0, 2.0), 0.05, dim=dim, samples=settings.samples, seed=seed) for seed in seeds]
    batch = concepts.Batch.grid(concepts.MLP((dim,) * (layers - 1)), [tasks], seeds, method)
    trained = concepts.train(batch)
    return make_trajectory(
        {"test_loss": (("time", "run"), trained["test_loss"].transpose("time", "run").values)},
        trained["time"].values, unit="gradient time",
    )  # fmt: skip


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge both comparisons."""
    risen = (trajectory["depth"] > RISE).transpose("layers", "dim", "seed").values
    deep, flat = risen[-1, 0], risen[0, 0]
    low, high = risen[-2:, 0].ravel(), risen[-2:, -1].ravel()
    judge = partial(check, paper=PAPER, where="Section F.2", size=size, relation=">=", threshold=0.2)
    exchanged = "labels exchanged at random, luckiest 5 %"
    few, many = (int(trajectory["dim"][k]) for k in (0, -1))
    return [
        judge(f"More layers, more transient memorisation: share of runs with {int(trajectory['layers'][-1])} layers "
              f"minus that with {int(trajectory['layers'][0])}, d = {few}",
              values=deep.mean() - flat.mean(), null=_by_chance(deep, flat), against=exchanged),
        judge(f"Fewer dimensions, more transient memorisation: share of runs with d = {few} minus that with "
              f"d = {many}, the two deepest",
              values=low.mean() - high.mean(), null=_by_chance(low, high), against=exchanged),
    ]  # fmt: skip


def _by_chance(one: np.ndarray, other: np.ndarray) -> float:
    """What LUCK of all exchanges of labels reach."""
    both, draw = np.concatenate([one, other]).astype(float), np.random.default_rng(0)
    mixed = draw.permuted(np.tile(both, (ORDERS, 1)), axis=1)
    return float(np.quantile(mixed[:, : len(one)].mean(1) - mixed[:, len(one) :].mean(1), 1 - LUCK))


def figure(trajectory: Trajectory) -> Drawing:
    """Share of runs with transient memorisation against the layers, and test losses."""
    return figures.concepts.depth(trajectory)


EXPERIMENT = Experiment(
    "concepts/depth",
    "Transient memorisation with more layers and fewer dimensions",
    PAPER,
    sizes=sizes(
        Size(5, Settings(layers=(1, 2, 3), dims=(3, 6), samples=100, batch=50, epochs=200, seeds=8)),
        Size(7, Settings()),
        Size(200, Settings(dims=(3, 12, 48), samples=5000, batch=128, rate=0.01, epochs=80, seeds=200)),
        gpu_seconds=60,
    ),
    run=run,
    claims=claims,
    figure=figure,
)
