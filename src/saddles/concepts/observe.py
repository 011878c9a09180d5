"""What is measured along a run of the lab, and how it is labelled.

Measurement only, in the frame of the concepts: simulation and theory bring their own dynamics.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError

PAPER_CLOCK = 2.0
"""Paper time a unit of gradient time: the paper's two-layer field (4.3) is half of the gradient flow."""

KEEPABLE = ("jacobian", "terms")
"""Large variables that are kept on request, and by default where they are small."""

KEPT_NUMBERS = 2_000_000


def terms(weights: Any, strengths: Any) -> dict[str, np.ndarray]:
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
    hollow = W * off
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


def train_loss(weights: Any, moment: Any) -> np.ndarray:
    """½ tr (W − I) A (W − I)ᵀ, equation 4.1, for W of shape (..., d, d) and A on the first s coordinates."""
    s = len(moment)
    gap = np.asarray(weights)[..., :, :s] - np.eye(np.shape(weights)[-1], s)
    return 0.5 * np.einsum("...ij,jk,...ik->...", gap, moment, gap)


def test_loss(output: Any, target: Any) -> np.ndarray:
    """½‖f(x̂) − x̂‖², shape without the last axis of `output`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * np.sum((np.asarray(output) - np.asarray(target)) ** 2, axis=-1)


def to_trajectory(
    task: Identity,
    times: Any,
    *,
    jacobian: np.ndarray,
    strengths: np.ndarray | None = None,
    keep: Sequence[str] | None = None,
    extra: Mapping[str, tuple[tuple[str, ...], Any]] | None = None,
    **facts: Any,
) -> Trajectory:
    """A trajectory of a linear network from its Jacobian W(t) in the concepts' frame, shape (time, d, d).

    Args:
        strengths: a, where the run is a symmetric two-layer one on a diagonal second moment: then
            the terms of equation 4.3 and the paper's clock are added.
        keep: names of `KEEPABLE`; None keeps what has at most `KEPT_NUMBERS` numbers.
        extra: further variables.
    """
    chosen = _chosen(keep, jacobian.size)
    output = jacobian @ task.target
    variables: dict[str, Any] = {
        "output": (("time", "coordinate"), output),
        "loss": (("time",), train_loss(jacobian, task.moment)),
        "test_loss": (("time",), test_loss(output, task.target)),
    }
    coords: dict[str, Any] = coordinates(task)
    if "jacobian" in chosen:
        variables["jacobian"] = (("time", "row", "column"), jacobian)
        coords["kind"] = (("row", "column"), kinds(task.size, task.concepts))
    if strengths is not None:
        coords["paper_time"] = ("time", PAPER_CLOCK * np.asarray(times))
        if "terms" in chosen:
            found = terms(jacobian, strengths)
            variables |= {name: (("time", "row", "column"), values) for name, values in found.items()}
    variables |= dict(extra or {}) | constants(task)
    if "step" in facts:
        coords["step"] = ("time", np.asarray(facts.pop("step")))
    return make_trajectory(variables, times, unit="gradient time", coords=coords, lab="concepts", task=task, **facts)


def constants(task: Identity) -> dict[str, tuple[tuple[str, ...], Any]]:
    """What a figure or a measure needs to know of the task: the target and the strengths."""
    return {"target": (("coordinate",), task.target), "strength": (("coordinate",), task.strengths)}


def coordinates(task: Identity) -> dict[str, Any]:
    """Names of the concept axes, counted from 1 as in the paper."""
    return {"coordinate": 1 + np.arange(task.size)}


def _chosen(keep: Sequence[str] | None, numbers: int) -> Sequence[str]:
    if keep is None:
        return KEEPABLE if numbers <= KEPT_NUMBERS else ()
    unknown = [name for name in keep if name not in KEEPABLE]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(KEEPABLE)} can be kept", "use those names")
    return keep
