"""How a run of this lab is labelled; simulation and theory bring their own dynamics to it."""

import numpy as np

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.incontext.task import Regression
from saddles.solvers.dynamics import Path

KEEPABLE = ("weights",)
"""Kept on request."""

_DIMS = {
    "loss": ("time",),
    "matrix": ("time", "row", "column"),
    "head_norm": ("time", "head"),
    "value": ("time", "head"),
    "key": ("time", "head", "row", "rank"),
    "query": ("time", "head", "column", "rank"),
    "key_query": ("time", "head", "row", "column"),
    "crossing": ("crossing", "edge"),
}


def to_trajectory(path: Path, model: object, task: Regression, **facts: object) -> Trajectory:
    """Give saved observations their names and provenance; `strength` are the uᵀMu of the eigenvectors u of Λ."""
    variables = {name: (_DIMS[name], values) for name, values in path.saved.items()}
    values, vectors = task.frame
    variables["strength"] = (("time", "direction"), np.einsum("di,tde,ei->ti", vectors, path.saved["matrix"], vectors))
    coords: dict[str, object] = {**path.coords, "eigenvalue": ("direction", values)}
    return make_trajectory(
        variables, path.times, coords=coords, lab="incontext", model=model, task=task, **facts, **path.facts
    )
