"""Random data for each assumption of the paper.

Assumption 3 at W = 0 is reached with equal non-optimal scores (0 here) and a gap of at least L ln n: the mean score of
every sequence is then at least ln n. Scaling the head alone need not achieve it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls

from saddles.errors import SaddlesError

TRIES = 200
"""Draws before a generator gives up."""

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""X, z, y, head."""


def check_sizes(n: int, length: int, dim: int, assumption: int) -> None:
    """Refuse sizes that cannot be drawn."""
    if min(n, dim) < 1 or length < 2:
        raise SaddlesError.about(
            f"n={n}, length={length}, dim={dim} came",
            "sequences, coordinates ≥ 1 and tokens ≥ 2 are needed",
            "try 6, 5, 20",
        )
    if assumption == 4 and (length % 2 == 0 or n > dim - 2):
        raise SaddlesError.about(
            f"n={n}, length={length}, dim={dim} came for Assumption 4",
            "the length is odd (tokens are paired) and n ≤ dim − 2", "try 4, 5, 8",
        )  # fmt: skip


def plain(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Gaussian tokens, queries and head, fair labels."""
    return (
        draw.normal(size=(n, length, dim)),
        draw.normal(size=(n, dim)),
        draw.choice([-1.0, 1.0], size=n),
        draw.normal(size=dim),
    )


def rescored(parts: Parts, scores: np.ndarray) -> Parts:
    """Move every token along the head to the score it shall have."""
    X, z, y, head = parts
    missing = scores - y[:, None] * (X @ head)
    return X + missing[:, :, None] * y[:, None, None] * head / (head @ head), z, y, head


def equal(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumption 2: the tokens that are not optimal get their mean score."""
    parts = plain(n, length, dim, draw)
    scores = parts[2][:, None] * (parts[0] @ parts[3])
    best = scores.argmax(axis=1)[:, None] == np.arange(length)
    mean = np.where(best, 0.0, scores).sum(axis=1, keepdims=True) / (length - 1)
    return rescored(parts, np.where(best, scores, mean))


def confident(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumptions 2 and 3: scores 0 and L ln n (1 + u) + u', u and u' uniform in [0.1, 0.5].

    The head has ten times the norm of the largest gap, so that tokens of length √dim move by little more than a tenth
    to get their scores, and stay as good as Gaussian.
    """
    X, z, y, head = plain(n, length, dim, draw)
    gap = length * np.log(n) * (1 + draw.uniform(0.1, 0.5, size=n)) + draw.uniform(0.1, 0.5, size=n)
    head = head * (10 * gap.max() / np.linalg.norm(head))
    best = draw.integers(length, size=n)[:, None] == np.arange(length)
    return rescored((X, z, y, head), np.where(best, gap[:, None], 0.0))


def paired(n: int, length: int, dim: int, draw: np.random.Generator) -> Parts:
    """Assumptions 2, 3 and 4: x_opt = r u_i, z = ±s u_i, v = Σ y_i g_i u_i, the others c x_opt ± e, e ⊥ u_i and v.

    u_i are orthonormal and lie anywhere (a random rotation); c is common, and all optimal scores are g_i r_i = Γ with
    (1 − c)Γ > L ln n. The optimum of `nuclear` is Σ 1/((1 − c) r_i s_i).
    """
    frame = np.linalg.qr(draw.normal(size=(dim, dim)))[0].T[:n]
    r, s = draw.uniform(0.5, 2.0, size=(2, n))
    y, side = draw.choice([-1.0, 1.0], size=(2, n))
    c = draw.uniform(-0.5, 0.5)
    top = (1.2 * length * np.log(n) + 0.5) / (1 - c)
    head = (y * top / r) @ frame
    X = np.empty((n, length, dim))
    for i, u in enumerate(frame):
        noise = draw.normal(size=((length - 1) // 2, dim))
        basis = np.linalg.qr(np.stack([u, head], axis=1))[0] if n > 1 else u[:, None]
        noise -= (noise @ basis) @ basis.T
        order = draw.permutation(length)
        X[i, order[0]] = r[i] * u
        X[i, order[1:]] = c * r[i] * u + np.concatenate([noise, -noise])
    return X, (side * s)[:, None] * frame, y, head


def separable(
    make: Callable[[np.random.Generator], Any], seed: int, *, diagonal: bool, sizes: tuple[int, int, int]
) -> Any:
    """Draw until some W (or some diagonal W) separates."""
    for attempt in range(TRIES):
        task = make(np.random.default_rng([seed, 60, attempt]))
        if separation(task, diagonal) > 1e-9:
            return task
    kind = "diagonal W" if diagonal else "W"
    raise SaddlesError.about(
        f"n={sizes[0]}, length={sizes[1]}, dim={sizes[2]} came",
        f"none of {TRIES} draws is separated by a {kind}", "raise dim, or lower n or length",
    )  # fmt: skip


def separation(task: Any, diagonal: bool) -> float:
    """The largest margin of a W with ‖W‖_F = 1, 0 if none separates.

    It is the distance of 0 from the convex hull of the constraints, found by non-negative least squares:
    min |Aλ|² + (1 − Σλ)² over λ ≥ 0 leaves the squared distance as r/(1 − r).
    """
    return hull(factor(task, diagonal))[0]


def factor(task: Any, diagonal: bool) -> np.ndarray:
    """Columns with the inner products of the constraints, as few rows as possible, shape (row, constraint)."""
    if diagonal:
        return task.diagonal.T
    if task.shape[2] ** 2 <= len(task.left):
        return np.einsum("kd,ke->dek", task.left, task.right).reshape(-1, len(task.left))
    gram = (task.left @ task.left.T) * (task.right @ task.right.T)
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-14 * values[-1]
    return np.sqrt(values[kept])[:, None] * vectors[:, kept].T


def hull(columns: np.ndarray) -> tuple[float, np.ndarray]:
    """The distance of 0 from the convex hull of some columns, and the weights (sum 1) of the nearest point."""
    unit = np.linalg.norm(columns, axis=0).max()
    stacked = np.vstack([columns / unit, np.ones(columns.shape[1])])
    weights = nnls(stacked, np.append(np.zeros(len(columns)), 1.0), maxiter=50 * columns.shape[1])[0]
    weights = weights / weights.sum()
    nearest = columns @ weights
    distance = float(np.linalg.norm(nearest))
    least = float((nearest @ columns).min())
    return (distance if least > 0.5 * distance**2 and distance > 1e-9 * unit else 0.0), weights
