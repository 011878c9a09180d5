"""How a run of the diagonal lab is labelled; simulation and theory bring their own dynamics to it."""

from typing import Any

import numpy as np

from saddles.core.trajectory import Trajectory, make_trajectory

KEEPABLE = ("weights", "crossings")
"""Variables that are kept on request."""


def to_trajectory(
    variables: dict[str, Any], rescaled: np.ndarray, model: Any, task: Any, *, log_alpha: float | None, **facts: Any
) -> Trajectory:
    """Give arrays their names, both clocks and their provenance.

    Args:
        rescaled: t / log(1/α), shape (time,).
        log_alpha: turns it into gradient time; None (the limit α → 0) leaves the rescaled clock alone.
    """
    scale = 1.0 if log_alpha is None else -log_alpha
    coords: dict[str, Any] = {"rescaled_time": ("time", rescaled), **facts.pop("coords", {})}
    if hasattr(model, "coordinates"):
        coords["coordinate"] = np.arange(model.coordinates)
        coords["family"] = ("coordinate", np.array(model.families))
    return make_trajectory(
        variables,
        rescaled * scale,
        unit="rescaled time" if log_alpha is None else "gradient time",
        coords=coords,
        lab="diagonal",
        model=model,
        task=task,
        log_alpha=log_alpha,
        clock="rescaled_time",
        **facts,
    )
