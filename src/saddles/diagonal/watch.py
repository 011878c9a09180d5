"""How a run of the diagonal lab is labelled; simulation and theory bring their own dynamics to it."""

from typing import Any

import numpy as np

from saddles.core.errors import SaddlesError
from saddles.core.trajectory import Trajectory, make_trajectory

KEEPABLE = ("weights", "crossings")
"""Variables that are kept on request."""


def check_keep(keep: Any) -> tuple[str, ...]:
    """Refuse names that cannot be kept."""
    unknown = [name for name in keep or () if name not in KEEPABLE]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(KEEPABLE)} can be kept", "use those names")
    return tuple(keep or ())


def check_times(times: Any) -> np.ndarray | None:
    """Increasing rescaled times of at least 0, or None."""
    if times is None:
        return None
    asked = np.asarray(times, dtype=float)
    if asked.ndim != 1 or not len(asked) or not np.isfinite(asked).all() or asked[0] < 0 or (np.diff(asked) <= 0).any():
        raise SaddlesError.about(
            f"times {times!r:.60} came", "increasing rescaled times of at least 0 are needed", "use numpy.linspace"
        )
    return asked


def label(
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
