"""A ViT on CIFAR-10 with SGD: Figure 12 of the paper.

Thresholds are explained in `verdicts`.
"""

from typing import Any

from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.transformers import growth as figure
from saddles.transformers.experiments.common import prepare_images, run_all
from saddles.transformers.experiments.verdicts import growth_claims

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once a seed."""
    return run_all("transformers/vit-cifar10-sgd", settings, context, prepare_images(settings, "sgd"))


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge rank, growth and learning."""
    return growth_claims(trajectory, size, "Figure 12")
