"""What is measured along a run of the lab, and how it is labelled.

Measurement only, in the frame of the concepts: simulation and theory bring their own dynamics.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory, Variable, make_trajectory

PAPER_CLOCK = 2.0
"""Paper time per unit of gradient time: the paper's two-layer field (4.3) is half of the gradient flow."""

KEPT_NUMBERS = 2_000_000
"""Numbers up to which a large variable is small, and kept without being named: 16 MB in float64."""


def point_loss(output: Any, target: Any) -> Any:  # NumPy arrays or JAX arrays, and what comes back is the same
    """The loss ½‖f(x) − x‖² at each point: the last axis is summed over.

    The training loss is its mean over the data, the test loss its value at x̂.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * ((output - target) ** 2).sum(axis=-1)


def expected_loss(weights: Any, moment: Any) -> Any:  # NumPy arrays or JAX arrays, as above
    """The mean of `point_loss` over data with second moment A, for linear f = W x.

        ½ tr (W − I) A (W − I)ᵀ, equation 4.1.

    Args:
        weights: W, shape (..., d, at least s); columns beyond s do not matter, as the data are 0 there.
        moment: A on the concepts' coordinates, shape (s, s).
    """
    size, concepts = weights.shape[-2], moment.shape[0]
    gap = weights[..., :, :concepts] - np.eye(size, concepts, dtype=weights.dtype)
    return 0.5 * ((gap @ moment) * gap).sum(axis=(-2, -1))


def terms(weights: np.ndarray, strengths: np.ndarray) -> dict[str, np.ndarray]:
    """Growth, suppression and noise of every entry of W, in the paper's clock (equation 4.3).

        w'_ij = G_ij − S_ij − N_ij,
        G_ij = w_ij (a_i + a_j),
        S_ij = ½ w_ij [w_ii (3a_i + a_j) + 1{i≠j} w_jj (3a_j + a_i)],
        N_ij = ½ Σ_{k≠i,j} w_ki w_kj (a_i + a_j + 2a_k).

    Args:
        weights: W, symmetric, shape (..., d, d).
        strengths: a, shape (d,).
    """
    W, a = np.asarray(weights), np.asarray(strengths)
    row, column = a[:, None], a[None, :]
    diagonal = np.diagonal(W, axis1=-2, axis2=-1)
    off = 1 - np.eye(len(a))
    own = diagonal[..., :, None] * (3 * row + column)
    other = diagonal[..., None, :] * (3 * column + row) * off
    hollow = W * off  # with a zero diagonal the sum over k leaves out i and j by itself
    squares = hollow @ hollow
    weighted = (hollow * a) @ hollow
    return {
        "growth": W * (row + column),
        "suppression": W * (own + other) / 2,
        "noise_term": ((row + column) * squares + 2 * weighted) / 2,
    }


def kinds(size: int, concepts: int) -> np.ndarray:
    """Name every entry of the Jacobian: major, minor or irrelevant (section 4.2.1), shape (d, d)."""
    index = np.arange(size)
    inside = (index[:, None] < concepts) | (index[None, :] < concepts)
    names = np.where(inside, "minor", "irrelevant")
    names[index[:concepts], index[:concepts]] = "major"
    return names


def is_kept(name: str, keep: Sequence[str] | None, numbers: int) -> bool:
    """Whether a large variable is part of the result: it was named, or nothing was and it is small."""
    return numbers <= KEPT_NUMBERS if keep is None else name in keep


def to_trajectory(
    task: Identity,
    times: npt.ArrayLike,
    *,
    jacobian: np.ndarray,
    strengths: np.ndarray | None = None,
    keep: Sequence[str] | None = None,
    extra: Mapping[str, Variable] | None = None,
    coords: Mapping[str, object] | None = None,
    **facts: Any,  # status, wall_time, ... and provenance, as `make_trajectory` takes them
) -> Trajectory:
    """A trajectory of a linear network from its Jacobian W(t) in the concepts' frame, shape (time, d, d).

    Args:
        strengths: a, where the run is a symmetric two-layer one on a diagonal second moment: then
            the terms of equation 4.3 and the paper's clock are added.
        keep: those of `jacobian` and `terms` that are named; None keeps them where they are small.
        extra: further variables.
        coords: further coordinates.
    """
    output = jacobian @ task.target
    variables: dict[str, Variable] = {
        "output": (("time", "coordinate"), output),
        "loss": (("time",), expected_loss(jacobian, task.moment)),
        "test_loss": (("time",), point_loss(output, task.target)),
    }
    labels: dict[str, object] = {**coordinates(task), **(coords or {})}
    if is_kept("jacobian", keep, jacobian.size):
        variables["jacobian"] = (("time", "row", "column"), jacobian)
        labels["kind"] = (("row", "column"), kinds(task.size, task.concepts))
    if strengths is not None:
        labels["paper_time"] = ("time", PAPER_CLOCK * np.asarray(times))
        if is_kept("terms", keep, jacobian.size):
            parts = terms(jacobian, strengths)
            variables |= {name: (("time", "row", "column"), values) for name, values in parts.items()}
    variables |= dict(extra or {})
    variables |= {"target": (("coordinate",), task.target), "strength": (("coordinate",), task.strengths)}
    return make_trajectory(variables, times, unit="gradient time", coords=labels, lab="concepts", task=task, **facts)


def runs_to_trajectory(
    tasks: Sequence[Identity],
    times: npt.ArrayLike,
    saved: Mapping[str, np.ndarray],
    *,
    coords: Mapping[str, object] | None = None,
    **facts: Any,  # as in `to_trajectory`
) -> Trajectory:
    """A trajectory of several networks of any kind, along `run`, from what was observed of them.

    Args:
        tasks: one for each run.
        saved: `outputs` (time, run, point, d), the last point being x̂, `loss` (time, run), and where it was observed
            `jacobian` (time, run, d, d). With more than one point these are the points of the hierarchy.
        coords: further coordinates.
    """
    targets = np.stack([task.target for task in tasks])
    outputs = saved["outputs"].astype(float)
    variables: dict[str, Variable] = {
        "output": (("time", "run", "coordinate"), outputs[:, :, -1]),
        "loss": (("time", "run"), saved["loss"]),
        "test_loss": (("time", "run"), point_loss(outputs[:, :, -1], targets)),
        "target": (("run", "coordinate"), targets),
        "strength": (("run", "coordinate"), np.stack([task.strengths for task in tasks])),
    }
    labels: dict[str, object] = {**coordinates(tasks[0]), **(coords or {})}
    if outputs.shape[2] > 1:
        goals = np.stack([task.hierarchy()[1] for task in tasks])
        variables["point_loss"] = (("time", "run", "point"), point_loss(outputs, goals))
        labels["point"] = tasks[0].hierarchy()[0]
    if "jacobian" in saved:
        variables["jacobian"] = (("time", "run", "row", "column"), saved["jacobian"])
        labels["kind"] = (("row", "column"), kinds(tasks[0].size, tasks[0].concepts))
    described = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks like {tasks[0]}"
    return make_trajectory(
        variables, times, unit="gradient time", coords=labels, lab="concepts", task=described, **facts
    )


def coordinates(task: Identity) -> dict[str, object]:
    """Names of the concept axes, counted from 1 as in the paper."""
    return {"coordinate": 1 + np.arange(task.size)}
