"""Figure 7: the loss at every combination of concepts keeps their order.

The loss is averaged over coordinates, as in the authors' code: under the text's loss everything is learned
before the first of the printed epochs, 1, 3 and 5.

Claims and their thresholds, both the paper's words:

- The order "strictly follows" u ≤ v ⇒ ℓ(x̂(u)) ≤ ℓ(x̂(v)): all pairs, at epoch 1 and at epochs 3 and 5, of losses cut
  at 1 as the figure's caption says.
- A point is "only learned after all of its predecessors are all learned": all pairs. Learned is read as a
  loss that stays below 0.1, a tenth of the figure's scale.

Their null is the same with the names of the test points in random order.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import concepts, figures
from saddles.concepts.experiments.grids import lay_out
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.measures.concept_space import order_homomorphism

MU = (1.0, 2.0, 3.0, 4.0)
EPOCHS = (1, 3, 5)

LEARNED = 0.1
"""A point counts as learned once its loss stays below this."""

CUT = 1.0
"""The caption of the figure cuts losses here."""

SAVES_PER_EPOCH = 12


@dataclass(frozen=True)
class Settings:
    """The network, its data, and the training."""

    dim: Annotated[int, "dimension d, and the width of the hidden layer"] = 64
    samples: Annotated[int, "points per cluster"] = 5000
    batch: Annotated[int, "points per step"] = 128
    rate: Annotated[float, "learning rate"] = 0.1
    loss: Annotated[str, "sum or mean over coordinates"] = "mean"
    seeds: Annotated[int, "networks"] = 6


def run(settings: Settings, context: Context) -> Trajectory:
    """A two-layer ReLU network, the losses of all 16 test points over time."""
    seeds = context.seeds(settings.seeds)
    dim = settings.dim
    tasks = [concepts.Identity(MU, 0.5, dim=dim, samples=settings.samples, rotate=True, seed=seed) for seed in seeds]
    per_epoch = len(MU) * settings.samples // settings.batch
    method = concepts.SGD(
        settings.rate, settings.batch, max(EPOCHS), settings.loss, max(1, per_epoch // SAVES_PER_EPOCH)
    )
    batch = concepts.Batch.grid(concepts.MLP((dim,), "relu"), [tasks], seeds, method)
    trained = concepts.train(batch, observe=("hierarchy",))
    whole = lay_out(trained, [tasks], seeds, ["μ = (1, 2, 3, 4), σ = ½"], batch.title)
    whole = whole.isel(setting=0, drop=True)
    whole["order_kept"] = order_homomorphism(whole["point_loss"].clip(max=CUT))
    whole.attrs["epochs"] = list(EPOCHS)
    return whole


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the order at the three epochs, and the order of learning."""
    rows = [int(np.argmin(np.abs(trajectory["epoch"].values - epoch))) for epoch in EPOCHS]
    loss = trajectory["point_loss"]
    names = np.random.default_rng(0).permutation(loss["point"].values)
    kept, null = (
        order_homomorphism(one.isel(time=rows).clip(max=CUT)).transpose("time", "seed").values
        for one in (loss, loss.assign_coords(point=names))
    )
    judge, mixed = partial(check, paper=PAPER, size=size, relation=">=", threshold=1.0), "points in random order"
    return [
        judge("The loss is an order homomorphism at epoch 1: fraction of pairs in order",
              where="Figure 7, equation B.2", values=kept[0], null=null[0], against=mixed),
        judge("The loss is an order homomorphism at epochs 3 and 5: fraction of pairs in order",
              where="Figure 7, equation B.2", values=kept[1:], null=null[1:], against=mixed),
        judge("A point is learned only after all of its predecessors: fraction of pairs",
              where="Appendix B", values=_learned_in_order(loss),
              null=_learned_in_order(loss.assign_coords(point=names)), against=mixed),
    ]  # fmt: skip


def _learned_in_order(point_loss: xr.DataArray) -> np.ndarray:
    """The fraction of pairs u ≤ v with u learned no later than v, one per seed."""
    loss = point_loss.transpose("time", ..., "point")
    # The instant after the last one at which the loss was too large: from there on it is learned for good.
    late = loss.values >= LEARNED
    last = np.where(late.any(axis=0), len(late) - np.argmax(late[::-1], axis=0), 0)
    return order_homomorphism(loss.isel(time=0).copy(data=last)).values


def figure(trajectory: Trajectory) -> Drawing:
    """The cube of test points at three epochs."""
    return figures.concepts.hierarchy(trajectory)


EXPERIMENT = Experiment(
    "concepts/figure-7",
    "The loss keeps the order of the hierarchy of concepts: two-layer ReLU",
    PAPER,
    sizes=sizes(
        Size(3, Settings(dim=16, samples=1000, batch=64, seeds=2)),
        Size(3, Settings()),
        Size(60, Settings(seeds=30)),
        gpu_seconds=5,
    ),
    run=run,
    claims=claims,
    figure=figure,
)
