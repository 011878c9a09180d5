"""Figure 2c: in low dimension the output first heads for the test point, then for the strongest cluster.

Claims and thresholds are those of `saddles.concepts.experiments.memorisation`.
"""

from typing import Any

from saddles.concepts.experiments.memorisation import depth_claims, run_dimensions
from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.concepts import memorisation_paths as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """All settings and seeds."""
    return run_dimensions(settings, context)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge where transient memorisation is seen."""
    return depth_claims(trajectory, size, "Figure 2c")
