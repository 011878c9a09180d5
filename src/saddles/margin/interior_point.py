"""Solvers of the ecosystem for small problems: HiGHS for linear programs, Clarabel through cvxpy for the others."""

import time
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from saddles.errors import SaddlesError
from saddles.margin.certificate import Certified, certify, refuse_infeasible

LARGEST = 16
"""Coordinates up to which a full W goes to the interior-point solver."""


def columns(task: Any, diagonal: bool) -> np.ndarray:
    """The constraints as rows on vec(W) (row by row) or β, shape (constraint, unknown)."""
    if diagonal:
        return task.diagonal
    return np.einsum("kd,ke->kde", task.left, task.right).reshape(len(task.left), -1)


def linear_program(task: Any, diagonal: bool) -> Certified:
    """min Σ|w| s.t. rows·w ≥ 1 by HiGHS, w = w₊ − w₋."""
    began, rows = time.perf_counter(), columns(task, diagonal)
    both = hstack([csr_array(-rows), csr_array(rows)]).tocsr()
    found = linprog(np.ones(2 * rows.shape[1]), A_ub=both, b_ub=-np.ones(len(rows)), bounds=(0, None), method="highs")
    if found.status == 2:
        refuse_infeasible(task, diagonal)
    if found.status != 0:
        raise SaddlesError.about(f"HiGHS ended with {found.message!r}", "an optimum is needed", "try method='large'")
    positive, negative = found.x.reshape(2, -1)
    return certify(
        task, "l1", _shaped(positive - negative, task, diagonal), -found.ineqlin.marginals, solver="HiGHS",
        iterations=int(found.nit), wall_time=time.perf_counter() - began,
    )  # fmt: skip


def interior_point(task: Any, problem: str, diagonal: bool) -> Certified:
    """min ‖W‖_* or ‖W‖_F with vectorised constraints by Clarabel."""
    import cvxpy  # two seconds to import, and only needed here

    began, dim = time.perf_counter(), task.shape[2]
    rows = columns(task, diagonal)
    unit = np.linalg.norm(rows, axis=1).max()
    weights = cvxpy.Variable(dim if diagonal else (dim, dim))
    seen = rows / unit @ (weights if diagonal else cvxpy.vec(weights, order="C"))
    size = cvxpy.normNuc(weights) if problem == "nuclear" else cvxpy.norm(weights, 2 if diagonal else "fro")
    question = cvxpy.Problem(cvxpy.Minimize(size), [seen >= 1])
    question.solve(solver=cvxpy.CLARABEL)
    if question.status in ("infeasible", "infeasible_inaccurate"):
        refuse_infeasible(task, diagonal)
    if weights.value is None:
        raise SaddlesError.about(
            f"Clarabel ended with {question.status!r}", "an optimum is needed", "try method='large'"
        )
    return certify(
        task, problem, np.asarray(weights.value), np.asarray(question.constraints[0].dual_value), solver="Clarabel",
        iterations=int(question.solver_stats.num_iters or 0), wall_time=time.perf_counter() - began,
    )  # fmt: skip


def _shaped(vector: np.ndarray, task: Any, diagonal: bool) -> np.ndarray:
    return vector if diagonal else vector.reshape(task.shape[2], task.shape[2])
