"""Figure 7: the loss at every combination of concepts keeps their order.

The loss is averaged over coordinates, as in the authors' code: under the text's loss everything is learned
before the first of the printed epochs, 1, 3 and 5.

Claims and their thresholds, both the paper's words:

- The order "strictly follows" u ≤ v ⇒ ℓ(x̂(u)) ≤ ℓ(x̂(v)): all pairs, at epoch 1 and at epochs 3 and 5.
- A point is "only learned after all of its predecessors are all learned": all pairs. Learned is read as a
  loss that stays below 0.1, a tenth of the figure's scale.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.concepts.experiments import PAPER
from saddles.concepts.experiments.grids import train_grid
from saddles.concepts.model import MLP
from saddles.concepts.sgd import SGD
from saddles.concepts.task import Identity
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.concepts import hierarchy as figure
from saddles.measures.concept_space import order_homomorphism

__all__ = ["claims", "figure", "run"]

MU = (1.0, 2.0, 3.0, 4.0)
EPOCHS = (1, 3, 5)


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """A two-layer ReLU network, the losses of all 16 test points over time."""
    seeds = context.seeds(settings["seeds"])
    dim = settings["dim"]
    tasks = [Identity(MU, 0.5, dim=dim, samples=settings["samples"], rotate=True, seed=seed) for seed in seeds]
    each = len(MU) * settings["samples"] // settings["batch"]
    method = SGD(settings["rate"], settings["batch"], max(EPOCHS), settings["loss"], max(1, each // 12))
    whole = train_grid(MLP((dim,), "relu"), [tasks], seeds, method, ["μ = (1, 2, 3, 4), σ = ½"], keep=("hierarchy",))
    whole = whole.isel(setting=0, drop=True)
    whole["order_kept"] = order_homomorphism(whole["point_loss"])
    whole.attrs["epochs"] = list(EPOCHS)
    return whole


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the order at the three epochs, and the order of learning."""
    rows = [int(np.argmin(np.abs(trajectory["epoch"].values - epoch))) for epoch in EPOCHS]
    kept = trajectory["order_kept"].isel(time=rows).transpose("time", "seed").values
    judge = partial(check, paper=PAPER, size=size, relation=">=", threshold=1.0)
    return [
        judge(
            "The loss is an order homomorphism at epoch 1: fraction of pairs in order",
            where="Figure 7, equation B.2",
            values=list(kept[0]),
        ),
        judge(
            "The loss is an order homomorphism at epochs 3 and 5: fraction of pairs in order",
            where="Figure 7, equation B.2",
            values=list(kept[1:].ravel()),
        ),
        judge(
            "A point is learned only after all of its predecessors: fraction of pairs",
            where="Appendix B",
            values=list(_learned_in_order(trajectory)),
        ),
    ]


def _learned_in_order(trajectory: Trajectory) -> np.ndarray:
    """The fraction of pairs u ≤ v with u learned no later than v, a seed."""
    loss = trajectory["point_loss"].transpose("time", ..., "point")
    late = loss.values >= 0.1
    last = np.where(late.any(axis=0), len(late) - np.argmax(late[::-1], axis=0), 0)
    return order_homomorphism(loss.isel(time=0).copy(data=last)).values
