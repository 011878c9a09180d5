"""Figure 7: the loss at every combination of concepts keeps their order.

The loss is averaged over coordinates, as in the authors' code: under the text's loss everything is learned
before the first of the printed epochs, 1, 3 and 5.

Claims and their thresholds:

- *Strictly.* Appendix B says that the order "strictly follows" u ≤ v ⇒ ℓ(x̂(u)) ≤ ℓ(x̂(v)): all pairs, at each
  of the three epochs.
- *Mostly.* With losses cut at 1, as the figure shows them, a pair is out of order by at most a tenth of the
  scale of the figure.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.concepts.experiments.grids import PAPER, train_grid
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
    """Judge the order at the three epochs."""
    rows = [int(np.argmin(np.abs(trajectory["epoch"].values - epoch))) for epoch in EPOCHS]
    kept = trajectory["order_kept"].isel(time=rows).values
    judge = partial(check, paper=PAPER, where="Figure 7, equation B.2", size=size)
    cut = trajectory["point_loss"].isel(time=rows).clip(max=1.0).transpose(..., "point").values
    return [
        judge(
            "The loss is strictly an order homomorphism: fraction of pairs in order at epochs 1, 3 and 5",
            values=list(kept.ravel()),
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "Pairs out of order are so by little: largest ℓ(u) − ℓ(v), losses cut at 1",
            values=list(_excess(cut, list(trajectory["point"].values)).ravel()),
            relation="<=",
            threshold=0.1,
        ),
    ]


def _excess(losses: np.ndarray, names: list[str]) -> np.ndarray:
    bits = np.array([[int(bit) for bit in name] for name in names])
    u, v = np.nonzero((bits[:, None] <= bits[None, :]).all(axis=-1))
    return (losses[..., u] - losses[..., v]).max(axis=-1)
