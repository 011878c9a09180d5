"""Assumptions 1 to 4 of the paper as numbers, on generated and on users' own data."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from saddles.core.assumptions import Assumption, Assumptions
from saddles.margin.separation import separation
from saddles.margin.task import PerSequence, Tokens, check_task
from saddles.runtime.threads import one_thread

EXACT = 1e-8
"""Equalities hold to this, relative to the size of what is compared."""


def _zero(value: float) -> bool:
    return bool(value <= EXACT)


def _positive(value: float) -> bool:
    return bool(value > 0)


def _not_negative(value: float) -> bool:
    return bool(value >= -EXACT)


CONDITIONS: dict[str, tuple[Callable[[float], bool], str]] = {
    "1 unique optimal token": (_positive, "least (γ_opt − second best score) / largest |score|; positive"),
    "1 separable": (_positive, "largest margin of a W with ‖W‖_F = 1; positive"),
    "2 equal other scores": (_zero, "largest spread of the other scores / gap to the optimal one; 0"),
    "3 initial loss": (_not_negative, "(bound − loss at W = 0) / bound; not negative"),
    "4i optimal tokens orthogonal": (_zero, "largest |cos| between optimal tokens of two sequences; 0"),
    "4i queries orthogonal": (_zero, "largest |cos| between two queries; 0"),
    "4ii parallel to the query": (_zero, "1 − least |cos| of optimal token and query; 0"),
    "4iii paired": (_zero, "worst |x + x' − 2c x_opt| / |x_opt| of the best pairing (∞ for even length); 0"),
    "4iii c below 1": (_positive, "1 − largest c; positive"),
    "4iii c at least -1": (_not_negative, "least c + 1; not negative"),
    "diagonal separable": (
        _positive, "largest margin of a diagonal W with |β| = 1; positive; no assumption guarantees it"
    ),
}  # fmt: skip
"""Condition -> when it holds, and what its number is."""


def check_assumptions(task: Tokens) -> Assumptions:
    """Check every condition of Assumptions 1 to 4, and separability by a diagonal W, with numbers.

    An assumption holds where all conditions that begin with its number do: `check_assumptions(task).about("3").hold`.
    """
    check_task(task)
    with one_thread():
        values = _values(task)
    return Assumptions(
        tuple(
            Assumption(name, holds(values[name]), values[name], meaning)
            for name, (holds, meaning) in CONDITIONS.items()
        )
    )


def _values(task: Tokens) -> dict[str, float]:
    length = task.shape[1]
    ordered = np.sort(task.scores, axis=1)
    gap = task.optimal_scores - task.other_scores.mean(axis=1)
    spread = np.ptp(task.other_scores, axis=1)
    r, s = np.linalg.norm(task.optimal_tokens, axis=1), np.linalg.norm(task.z, axis=1)
    errors, c = pairing(task)
    return {
        "1 unique optimal token": float(((ordered[:, -1] - ordered[:, -2]) / np.abs(task.scores).max(axis=1)).min()),
        "1 separable": separation(task.left, task.right, diagonal=False),
        "2 equal other scores": float((spread / gap).max()),
        "3 initial loss": _initial_loss(task),
        "4i optimal tokens orthogonal": _overlap(task.optimal_tokens),
        "4i queries orthogonal": _overlap(task.z),
        "4ii parallel to the query": float(1 - (np.abs((task.optimal_tokens * task.z).sum(axis=1)) / (r * s)).min()),
        "4iii paired": float(errors.max()) if length % 2 else np.inf,
        "4iii c below 1": float(1 - c.max()),
        "4iii c at least -1": float(c.min() + 1),
        "diagonal separable": separation(task.left, task.right, diagonal=True),
    }


def _overlap(rows: Float[np.ndarray, "sequence coordinate"]) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0.0)
    return float(cosines.max())


def _initial_loss(task: Tokens) -> float:
    """Assumption 3 at W = 0, with the largest other score in the place of the common one."""
    loss = np.exp(-task.scores.mean(axis=1)).mean()
    best, other = np.exp(-task.optimal_scores), np.exp(-task.other_scores.max(axis=1))
    bound = (best.sum() + (other - best).min()) / len(best)
    return float((bound - loss) / bound)


def pairing(task: Tokens) -> tuple[PerSequence, Float[np.ndarray, "sequence other"]]:
    """Error of the best pairing of each sequence's other tokens, and their c.

    The partner of x = c x_opt + e is c x_opt − e. Tokens are paired greedily by how close each is to the partner that
    the other one needs, which is exact where an exact pairing exists.
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
            distance[[a, b]] = np.inf  # both are taken
            distance[:, [a, b]] = np.inf
    return errors, c
