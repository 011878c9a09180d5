"""Figure 8: three descents of the test loss, found by search.

Claims and thresholds are those of `saddles.concepts.experiments.searches`.
"""

from typing import Any

from saddles.concepts.experiments.searches import run_search, search_claims
from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.concepts import search as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Follow many starts and keep the best example."""
    return run_search(settings, context, (1.0, 1.5, 2.2), (0.05, 0.05, 0.05), wanted=3)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge whether three descents exist."""
    return search_claims(trajectory, size, "Figure 8")
