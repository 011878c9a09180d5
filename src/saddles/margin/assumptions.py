"""Assumptions 1 to 4 of the paper as numbers, on generated and on users' own data."""

from typing import Any

import numpy as np
import xarray as xr

from saddles.margin.generate import separation
from saddles.runtime.threads import one_thread

EXACT = 1e-8
"""Equalities hold to this, relative to the size of what is compared."""

CONDITIONS = {
    "1 unique optimal token": "least (γ_opt − second best score) / largest |score|; positive",
    "1 separable": "largest margin of a W with ‖W‖_F = 1; positive",
    "2 equal other scores": "largest spread of the other scores / gap to the optimal one; 0",
    "3 initial loss": "(bound − loss at W = 0) / bound; not negative",
    "4i optimal tokens orthogonal": "largest |cos| between optimal tokens of two sequences; 0",
    "4i queries orthogonal": "largest |cos| between two queries; 0",
    "4ii parallel to the query": "1 − least |cos| of optimal token and query; 0",
    "4iii paired": "worst |x + x' − 2c x_opt| / |x_opt| of the best pairing (∞ for even length); 0",
    "4iii c below 1": "1 − largest c; positive",
    "4iii c at least -1": "least c + 1; not negative",
    "diagonal separable": "largest margin of a diagonal W with |β| = 1; positive; no assumption grants it",
}
"""Condition -> what its number is and when it holds."""


def check(task: Any) -> xr.Dataset:
    """Check every condition of Assumptions 1 to 4, and separability by a diagonal W, with numbers.

    Returns:
        `value` and `verdict` ("holds" or "fails") over `condition`, `meaning` beside them. An assumption holds where
        all conditions that begin with its number do.
    """
    with one_thread():
        values = np.array([_values(task)[name] for name in CONDITIONS])
    verdicts = [_holds(name, value) for name, value in zip(CONDITIONS, values, strict=True)]
    return xr.Dataset(
        {
            "value": ("condition", values),
            "verdict": ("condition", np.where(verdicts, "holds", "fails")),
            "meaning": ("condition", list(CONDITIONS.values())),
        },
        coords={"condition": list(CONDITIONS)},
    )


def holds(checked: xr.Dataset, assumption: int) -> bool:
    """Whether all conditions of an assumption hold in what `check` gave."""
    names = [str(name) for name in checked["condition"].values]
    return all(
        str(verdict) == "holds"
        for name, verdict in zip(names, checked["verdict"].values, strict=True)
        if name.startswith(str(assumption))
    )


def _holds(name: str, value: float) -> bool:
    meaning = CONDITIONS[name]
    if meaning.endswith("; 0"):
        return bool(value <= EXACT)
    if meaning.endswith("not negative"):
        return bool(value >= -EXACT)
    return bool(value > 0)


def _values(task: Any) -> dict[str, float]:
    length = task.shape[1]
    ordered = np.sort(task.scores, axis=1)
    gap = task.optimal_scores - task.other_scores.mean(axis=1)
    spread = np.ptp(task.other_scores, axis=1)
    r, s = np.linalg.norm(task.optimal_tokens, axis=1), np.linalg.norm(task.z, axis=1)
    errors, c = pairing(task)
    return {
        "1 unique optimal token": float(((ordered[:, -1] - ordered[:, -2]) / np.abs(task.scores).max(axis=1)).min()),
        "1 separable": separation(task, diagonal=False),
        "2 equal other scores": float((spread / gap).max()),
        "3 initial loss": _initial_loss(task),
        "4i optimal tokens orthogonal": _overlap(task.optimal_tokens),
        "4i queries orthogonal": _overlap(task.z),
        "4ii parallel to the query": float(1 - (np.abs((task.optimal_tokens * task.z).sum(axis=1)) / (r * s)).min()),
        "4iii paired": float(errors.max()) if length % 2 else np.inf,
        "4iii c below 1": float(1 - c.max()),
        "4iii c at least -1": float(c.min() + 1),
        "diagonal separable": separation(task, diagonal=True),
    }


def _overlap(rows: np.ndarray) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0.0)
    return float(cosines.max())


def _initial_loss(task: Any) -> float:
    """Assumption 3 at W = 0, with the largest other score in the place of the common one."""
    loss = np.exp(-task.scores.mean(axis=1)).mean()
    best, other = np.exp(-task.optimal_scores), np.exp(-task.other_scores.max(axis=1))
    bound = (best.sum() + (other - best).min()) / len(best)
    return float((bound - loss) / bound)


def pairing(task: Any) -> tuple[np.ndarray, np.ndarray]:
    """Error of the best pairing of each sequence's other tokens, (sequence,), and their c, (sequence, length − 1).

    The partner of x = c x_opt + e is c x_opt − e. Tokens are paired greedily by how close they are to the partner that
    the other one asks for, which is exact where an exact pairing exists.
    """
    n, length, dim = task.shape
    others = task.optimal_tokens[:, None] - task.left.reshape(n, length - 1, dim)
    sizes = np.linalg.norm(task.optimal_tokens, axis=1)
    c = np.einsum("nld,nd->nl", others, task.optimal_tokens) / sizes[:, None] ** 2
    errors = np.zeros(n)
    for i in range(n):
        wanted = 2 * c[i][:, None] * task.optimal_tokens[i] - others[i]
        distance = np.linalg.norm(wanted[:, None] - others[i][None], axis=2) / sizes[i]
        distance = np.maximum(distance, distance.T)
        np.fill_diagonal(distance, np.inf)
        for _ in range((length - 1) // 2):
            a, b = np.unravel_index(np.argmin(distance), distance.shape)
            errors[i] = max(errors[i], distance[a, b])
            distance[[a, b]] = np.inf
            distance[:, [a, b]] = np.inf
    return errors, c
