"""One door to the max-margin problems: choose the solver, get a certified solution."""

from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, certify, refuse_infeasible
from saddles.margin.interior_point import LARGEST, interior_point, linear_program
from saddles.margin.primal_dual import first_order

PROBLEMS = ("l1", "nuclear", "frobenius", "aligned")


def solve(
    task: Any,
    problem: str,
    *,
    diagonal: bool | None = None,
    method: str = "auto",
    tolerance: float | None = None,
    max_iterations: int = 100_000,
) -> Certified:
    """Solve min ‖W‖ s.t. (x_i,opt − x_il)ᵀ W z_i ≥ 1 for all i and l ≠ opt(i), with a certificate.

    Args:
        problem: "l1" (Σ|entries|), "nuclear", "frobenius", or "aligned" (the closed form under Assumption 4).
        diagonal: only diagonal W, whose diagonal β is returned; default True for l1, False otherwise.
        method: "small" (HiGHS for l1, Clarabel otherwise), "large" (first order), or "auto": small for diagonal W
            and up to 16 coordinates.
        tolerance: relative gap at which the large solver stops; default 1e-6.

    Fails with `InfeasibleError`, which carries its certificate, where no W separates.
    """
    if problem not in PROBLEMS or method not in ("auto", "small", "large"):
        raise SaddlesError.about(
            f"problem={problem!r}, method={method!r} came",
            f"problems are {', '.join(PROBLEMS)}; methods auto, small, large", "use one of them",
        )  # fmt: skip
    if problem == "aligned":
        return aligned(task)
    flat = problem == "l1" if diagonal is None else bool(diagonal)
    if method == "auto":
        method = "small" if flat or task.shape[2] <= LARGEST else "large"
    if method == "large":
        return first_order(task, problem, flat, 1e-6 if tolerance is None else tolerance, max_iterations)
    if problem == "l1" or (flat and problem == "nuclear"):
        return linear_program(task, flat)
    refuse_infeasible(task, flat)
    return interior_point(task, problem, flat)


def aligned(task: Any) -> Certified:
    """The optimum of (9) and of `nuclear` under Assumption 4: W = Σ_i x̂_i ẑ_iᵀ / ((1 − c_i) r_i s_i).

    r_i = |x_i,opt|, s_i = |z_i|, and c_i the largest coefficient of the tokens of sequence i along x_i,opt: the pair
    that is hardest to tell from the optimal token. Multipliers: 1/((1 − c_i) r_i s_i), shared by the tokens of that
    pair.

    The certificate is computed like any other; where Assumption 4 fails it shows a gap, or there is none.
    """
    n, length, _ = task.shape
    best, r, s = task.optimal_tokens, np.linalg.norm(task.optimal_tokens, axis=1), np.linalg.norm(task.z, axis=1)
    along = 1 - np.einsum("nld,nd->nl", task.left.reshape(n, length - 1, -1), best) / r[:, None] ** 2
    c = along.max(axis=1)
    if not (c < 1).all():
        raise SaddlesError.about(
            f"a token with c = {c.max():.4g} times its optimal token came",
            "Assumption 4 (iii) needs c < 1",
            "see check(task)",
        )
    size = 1 / ((1 - c) * r * s)
    weights = (best / r[:, None] * size[:, None]).T @ (task.z / s[:, None])
    hard = along >= c[:, None] - 1e-9 * np.maximum(1.0, np.abs(c[:, None]))
    shares = hard / hard.sum(axis=1, keepdims=True) * size[:, None]
    return certify(task, "nuclear", weights, shares.ravel(), solver="closed form")
