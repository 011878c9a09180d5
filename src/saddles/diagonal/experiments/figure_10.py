"""Figure 10: Assumption 4.4. Weights perturbed on a plateau return.

Claim and threshold: noise of standard deviation 0.05 on each weight moves β by about a tenth of itself; "return"
asks that on the plateaus of the second 500 of 1,000 epochs the relative distance has fallen to a tenth of what the
perturbation made it.
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
    """Perturb at random times."""
    return run_seeds(settings, context, 0.05, at_activation=False)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the return."""
    first, last = distances(trajectory)
    seen = np.isfinite(last)
    return [
        check(
            "Perturbed weights return to the unperturbed ones: "
            "distance on the plateaus of the second 500 epochs over the first",
            paper="boix2023rank",
            where="Figure 10, Assumption 4.4",
            values=last[seen] / first[seen],
            relation="<=",
            threshold=0.1,
            size=size,
        )
    ]
