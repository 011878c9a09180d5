"""Figure 2a: a larger signal is learned first (one layer).

Claims and thresholds are those of `saddles.concepts.experiments.orders`.
"""

from typing import Any

from saddles.concepts.experiments.orders import SIGNAL, order_claims, run_many_orders, run_orders
from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.concepts import orders as figure

__all__ = ["claims", "figure", "run", "run_many"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """All settings and seeds."""
    return run_orders(settings, context, SIGNAL, "linear", hidden=False)


def run_many(settings: list[dict[str, Any]], contexts: list[Context]) -> list[Trajectory]:
    """Several cells of a sweep in one program."""
    return run_many_orders(settings, contexts, SIGNAL, "linear", hidden=False)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the order of learning."""
    return order_claims(trajectory, size, "Figure 2a", one_layer=True)
