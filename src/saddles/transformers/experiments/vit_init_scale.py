"""A ViT on CIFAR-10 with Adam at several scales of the initialisation: Figures 6 and 7 of the paper.

The scale multiplies all initial weights but those of the token mapper and of normalisations. Thresholds are
explained in `verdicts`.
"""

from typing import Any

from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.transformers import by_scale as figure
from saddles.transformers.experiments.common import prepare_images, run_all
from saddles.transformers.experiments.verdicts import scale_claims

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once for every scale and seed."""
    return run_all("transformers/vit-init-scale", settings, context, prepare_images(settings, "adam"))


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge ranks against scales."""
    return scale_claims(trajectory, size, "Figures 6, 7")
