"""Figures 8 and 9: the weights of the same runs, one panel an α.

Claim: as α → 0 the trajectories tend to the limiting one. The mean distance of the weights to Algorithm 1's must
fall with log(1/α) at least half as steeply as the 1/log(1/α) of shifted jumps, from α = 1e-4 on: slope ≤ −1/2.
"""

from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.diagonal.experiments.figure_2 import PAPER, curves
from saddles.figures.diagonal import figure_8_9 as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """The curves of Figure 2."""
    return curves(settings, context, context.seeds(1)[0])


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence of both families of weights."""
    decades = trajectory["decade"].values.astype(float)
    small = decades >= 4
    gap = abs(trajectory["beta"] - trajectory["predicted_beta"]).mean("time")
    found = []
    for family in ("key_query", "value_output"):
        chosen = gap.isel(coordinate=np.flatnonzero(trajectory["family"].values == family)).sum("coordinate").values
        found.append(float(np.polyfit(np.log(decades[small]), np.log(chosen[small]), 1)[0]))
    return [
        check(
            f"Weights of {words} tend to the predicted trajectory: log-log slope of their distance against log(1/α)",
            paper=PAPER,
            where=where,
            values=slope,
            relation="<=",
            threshold=-0.5,
            size=size,
        )
        for slope, words, where in zip(found, ("W_K W_Qᵀ", "W_V W_Oᵀ"), ("Figure 8", "Figure 9"), strict=True)
    ]
