"""Figure 11: Assumption 4.5. Weights perturbed as a coordinate becomes active end at the same point.

Claim and threshold: noise of standard deviation 1e-2 on weights of order 1 moves β by about 2 %; the same endpoint
means a relative distance of at most 1 %, half of the perturbation itself, on the plateaus of the second 500 of
1,000 epochs.
"""

from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.diagonal.experiments.perturb import distances, run_seeds
from saddles.figures.diagonal import perturbation as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Perturb where a coordinate has just exceeded 1e-5."""
    return run_seeds(settings, context, 0.01, at_activation=True)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the endpoints."""
    last = distances(trajectory)[1]
    return [
        check(
            "Weights perturbed at the start of a stage end where they would have: "
            "relative distance on the plateaus of the second 500 epochs",
            paper="boix2023rank",
            where="Figure 11, Assumption 4.5",
            values=last[np.isfinite(last)],
            relation="<=",
            threshold=0.01,
            size=size,
        )
    ]
