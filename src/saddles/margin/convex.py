"""One door to the max-margin problems: choose the solver, get a certified solution."""

import warnings
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, certify, refuse_infeasible
from saddles.margin.interior_point import interior_point, linear_program
from saddles.margin.primal_dual import first_order
from saddles.margin.task import Tokens

PROBLEMS = ("l1", "nuclear", "frobenius", "aligned")
METHODS = ("auto", "interior_point", "primal_dual")

RENAMED = {"small": "interior_point", "large": "primal_dual"}
"""Names of methods in version 0.1, understood for one release."""

LARGEST_INTERIOR = 16
"""Coordinates d up to which "auto" sends a full W to Clarabel.

The nuclear norm is a semidefinite program in a matrix of size 2d with d² unknowns: time grows as d⁶. Up to 16 it takes
less than a second and gives nine digits, where the primal-dual iteration gives six.
"""

TIED = 1e-9
"""Tokens whose coefficient is this close to the largest, relative, are equally hard to separate: round-off of the inner
products along x_opt is far below, real differences are far above."""


def max_margin(
    task: Tokens,
    problem: str,
    *,
    diagonal: bool | None = None,
    method: str = "auto",
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
) -> Certified:
    """Solve min ‖W‖ s.t. (x_i,opt − x_il)ᵀ W z_i ≥ 1 for all i and l ≠ opt(i), with a certificate.

    Args:
        problem: "l1" (Σ|entries|), "nuclear", "frobenius", or "aligned" (the closed form under Assumption 4).
        diagonal: only diagonal W, whose diagonal β is returned; default True for l1, False otherwise.
        method: "interior_point" (HiGHS for linear programs, Clarabel otherwise), "primal_dual" (first order), or
            "auto": interior_point for diagonal W and up to 16 coordinates.
        tolerance: largest relative gap of the certificate. The primal-dual solver stops there; the others solve to
            their own, which is smaller.
        max_iterations: of the primal-dual solver.

    Tokens and queries of any size: s times the data have 1/s² times the solution, found by the same steps.

    Fails with `InfeasibleError`, which carries its certificate, where no W separates, and where the certified gap is
    above the tolerance.
    """
    if problem not in PROBLEMS:
        raise SaddlesError.unknown("problem", problem, PROBLEMS)
    if method in RENAMED:
        _warn(f"method={method!r}", f"method={RENAMED[method]!r}")
        method = RENAMED[method]
    if method not in METHODS:
        raise SaddlesError.unknown("method", method, METHODS)
    found = _solve(task, problem, diagonal, method, tolerance, max_iterations)
    if not found.gap <= tolerance:
        advice = {
            "primal-dual": "Raise max_iterations, or use method='interior_point'",
            "closed form": "The closed form needs Assumption 4: see check_assumptions(task), or use 'nuclear'",
        }.get(found.solver, "Raise the tolerance, or use method='primal_dual'")
        raise SaddlesError(
            f"The certified gap must be at most {tolerance:.3g}; {found.solver} ended with {found.gap:.3g} after "
            f"{found.iterations} iterations. {advice}."
        )
    return found


def _solve(
    task: Tokens, problem: str, diagonal: bool | None, method: str, tolerance: float, max_iterations: int
) -> Certified:
    if problem == "aligned":
        return aligned(task)
    flat = problem == "l1" if diagonal is None else diagonal
    if method == "auto":
        method = "interior_point" if flat or task.shape[2] <= LARGEST_INTERIOR else "primal_dual"
    if method == "primal_dual":
        return first_order(task, problem, flat, tolerance, max_iterations)
    # The nuclear norm of a diagonal matrix is the l1 norm of its diagonal, so that problem is a linear program too.
    if problem == "l1" or (flat and problem == "nuclear"):
        return linear_program(task, flat)
    # HiGHS recognises infeasible data reliably; Clarabel may stop without a verdict, so they are looked for first.
    refuse_infeasible(task, flat)
    return interior_point(task, problem, flat)


def solve(task: Tokens, problem: str, **options: Any) -> Certified:
    """Deprecated: use `max_margin`, which takes the same arguments."""
    _warn("saddles.margin.solve", "saddles.margin.max_margin")
    return max_margin(task, problem, **options)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}; the next release removes the old name.", DeprecationWarning, stacklevel=3)


def aligned(task: Tokens) -> Certified:
    """The optimum of (9) and of `nuclear` under Assumption 4: W = Σ_i x̂_i ẑ_iᵀ / ((1 − c_i) r_i s_i).

    r_i = |x_i,opt|, s_i = |z_i|, and c_i is the largest coefficient of the tokens of sequence i along x_i,opt: the pair
    that is hardest to separate from the optimal token. Multipliers: 1/((1 − c_i) r_i s_i), shared by the tokens of that
    pair.

    The certificate is computed like any other; where Assumption 4 fails it shows a gap, which `max_margin` refuses, or
    there is none.
    """
    n, length, _ = task.shape
    best, r, s = task.optimal_tokens, np.linalg.norm(task.optimal_tokens, axis=1), np.linalg.norm(task.z, axis=1)
    along = 1 - np.einsum("nld,nd->nl", task.left.reshape(n, length - 1, -1), best) / r[:, None] ** 2
    c = along.max(axis=1)
    if not (c < 1).all():
        raise SaddlesError(
            f"Assumption 4 (iii) needs tokens whose coefficient c along the optimal token is below 1; got "
            f"c = {c.max():.4g}. See check_assumptions(task)."
        )
    size = 1 / ((1 - c) * r * s)
    weights = (best / r[:, None] * size[:, None]).T @ (task.z / s[:, None])
    # Dual optimum: the constraints of the hardest pair are tight together. In equal shares their parts across x_opt,
    # which have opposite signs, cancel and the push lies along x̂ ẑᵀ, as stationarity of the nuclear norm demands.
    hard = along >= c[:, None] - TIED * np.maximum(1.0, np.abs(c[:, None]))
    shares = hard / hard.sum(axis=1, keepdims=True) * size[:, None]
    return certify(task, "nuclear", weights, shares.ravel(), solver="closed form")
