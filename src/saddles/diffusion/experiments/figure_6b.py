"""Transient memorisation in a diffusion model: Figure 6b of the paper.

Thresholds are explained in `verdicts`.
"""

from typing import Any

from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.diffusion.experiments.common import run_all
from saddles.diffusion.experiments.verdicts import memorisation_claims
from saddles.figures.diffusion import memorisation as figure

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once for every separation and seed."""
    return run_all("diffusion/figure-6b", settings, context)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the trajectory."""
    return memorisation_claims(trajectory, size)
