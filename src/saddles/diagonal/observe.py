"""How a run of the diagonal lab is labelled; simulation and theory bring their own dynamics to it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.diagonal.risk import ProductNetwork

UNIT = "rescaled time, t / log(1/α)"
"""One unit of `time` in this lab. Results of version 0.1 may hold it as the coordinate `rescaled_time` instead."""


def to_trajectory(
    variables: Mapping[str, Variable],
    times: np.ndarray,
    model: object,
    task: object,
    *,
    coords: Mapping[str, object],
    **facts: Any,  # further keywords of `make_trajectory`
) -> Trajectory:
    """Give arrays their names, the rescaled clock and their provenance.

    Args:
        variables: as `saddles.trajectory` takes them.
        times: t / log(1/α), shape (time,).
        model: its `coordinates` and `families` become axes, where it has them.
        coords: further coordinates.
        facts: status, costs and further attributes.
    """
    own: dict[str, object] = dict(coords)
    if isinstance(model, ProductNetwork):
        own["coordinate"] = np.arange(model.coordinates)
        own["family"] = ("coordinate", np.array(model.families))
    return make_trajectory(variables, times, unit=UNIT, coords=own, lab="diagonal", model=model, task=task, **facts)
