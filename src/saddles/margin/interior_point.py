"""Solvers of the ecosystem for small problems: HiGHS for linear programs, Clarabel through cvxpy for the others."""

import time

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, Multipliers, certify, refuse_infeasible
from saddles.margin.task import Tokens

LINPROG_OPTIMAL, LINPROG_INFEASIBLE = 0, 2
"""Codes of `scipy.optimize.linprog`'s `status`."""


def columns(task: Tokens, diagonal: bool) -> Float[np.ndarray, "constraint unknown"]:
    """The constraints as rows on vec(W) (row by row) or β."""
    if diagonal:
        return task.diagonal
    return np.einsum("kd,ke->kde", task.left, task.right).reshape(len(task.left), -1)


def normalised(task: Tokens, diagonal: bool) -> tuple[Float[np.ndarray, "constraint unknown"], Multipliers]:
    """The same of length 1, and right-hand sides of at most 1, for solvers whose tolerances are absolute.

    A constraint row·w ≥ 1 of length ℓ becomes (row/ℓ)·w' ≥ ℓ_least/ℓ, with w' = ℓ_least w: the size of the data is
    gone. `certify` scales the solution back to margin 1; a multiplier of row k is that of the scaled row divided by ℓ.
    """
    rows = columns(task, diagonal)
    lengths = np.linalg.norm(rows, axis=1)
    if not lengths.all():
        refuse_infeasible(task, diagonal)  # 0·w ≥ 1
    return rows / lengths[:, None], lengths.min() / lengths


def linear_program(task: Tokens, diagonal: bool) -> Certified:
    """min Σ|w| s.t. rows·w ≥ 1 by HiGHS, w = w₊ − w₋."""
    began, (rows, bound) = time.perf_counter(), normalised(task, diagonal)
    # With w₊, w₋ ≥ 0 the objective Σ(w₊ + w₋) is linear. At an optimum at most one of each pair is positive, for
    # lowering both by the same amount changes no constraint; so the objective there is Σ|w|.
    both = hstack([csr_array(-rows), csr_array(rows)]).tocsr()
    result = linprog(np.ones(2 * rows.shape[1]), A_ub=both, b_ub=-bound, bounds=(0, None), method="highs")
    if result.status == LINPROG_INFEASIBLE:
        refuse_infeasible(task, diagonal)
    if result.status != LINPROG_OPTIMAL:
        raise _no_optimum("HiGHS", result.message)
    positive, negative = result.x.reshape(2, -1)
    weights = positive - negative
    # SciPy's marginals are the objective's derivatives by b_ub, which are −λ for constraints written as ≤.
    return certify(
        task, "l1", weights if diagonal else weights.reshape(task.shape[2], -1), -result.ineqlin.marginals * bound,
        solver="HiGHS", iterations=int(result.nit), wall_time=time.perf_counter() - began,
    )  # fmt: skip


def interior_point(task: Tokens, problem: str, diagonal: bool) -> Certified:
    """min ‖W‖_* or ‖W‖_F with vectorised constraints by Clarabel."""
    import cvxpy  # two seconds to import, and only needed here

    began, dim = time.perf_counter(), task.shape[2]
    rows, bound = normalised(task, diagonal)
    weights = cvxpy.Variable(dim if diagonal else (dim, dim))
    seen = rows @ (weights if diagonal else cvxpy.vec(weights, order="C"))
    size = cvxpy.normNuc(weights) if problem == "nuclear" else cvxpy.norm(weights, 2 if diagonal else "fro")
    question = cvxpy.Problem(cvxpy.Minimize(size), [seen >= bound])
    question.solve(solver=cvxpy.CLARABEL)
    if question.status in (cvxpy.INFEASIBLE, cvxpy.INFEASIBLE_INACCURATE):
        refuse_infeasible(task, diagonal)
    # An inaccurate solution has values as well: its certificate states how good it is.
    if weights.value is None:
        raise _no_optimum("Clarabel", str(question.status))
    dual = np.asarray(question.constraints[0].dual_value) * bound
    return certify(
        task, problem, np.asarray(weights.value), dual, solver="Clarabel",
        iterations=int(question.solver_stats.num_iters or 0), wall_time=time.perf_counter() - began,
    )  # fmt: skip


def _no_optimum(solver: str, message: str) -> SaddlesError:
    return SaddlesError(f"{solver} found no optimum; it ended with {message!r}. Try method='primal_dual'.")
