"""The certified nuclear-norm solver against cvxpy with SCS, and what the flows cost.

    python -m benchmarks margin [--full]      --full: SCS on all ten instances (many minutes), one of them otherwise

Asked for: n = 64, L = 16, d = 64 to a gap of 1e-4 at least 40 times faster than cvxpy with SCS and vectorised
constraints, on ten instances with steps that balance themselves; d = 128 in under 15 s. Both sides run on one thread
(set OPENBLAS_NUM_THREADS=1), each instance first by one, then by the other; processor seconds are counted beside the
clock.
"""

import time
from typing import Any

import cvxpy
import numpy as np

from saddles import simulate
from saddles.margin import DiagonalAttention, FactoredAttention, JointAttention, MarginFlow, Tokens, max_margin
from saddles.margin.certificate import Certified, certify
from saddles.margin.interior_point import columns
from saddles.runtime.threads import one_thread

N, LENGTH, DIM, GAP, INSTANCES = 64, 16, 64, 1e-4, 10
SCS_EPS = 2e-5
"""SCS's tolerance: at 1e-4 its certified gap is 6e-4, at cvxpy's default of 1e-5 it is below 2e-5."""


def gaussian(n: int, length: int, dim: int, seed: int) -> Tokens:
    draw = np.random.default_rng([seed, 70])
    return Tokens(
        draw.normal(size=(n, length, dim)),
        draw.normal(size=(n, dim)),
        draw.choice([-1.0, 1.0], n),
        draw.normal(size=dim),
    )


def by_scs(task: Tokens, tolerance: float) -> Certified:
    dim = task.shape[2]
    rows = columns(task, False)
    weights = cvxpy.Variable((dim, dim))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(weights)), [rows @ cvxpy.vec(weights, order="C") >= 1])
    problem.solve(solver=cvxpy.SCS, eps_abs=tolerance, eps_rel=tolerance)
    duals: Any = problem.constraints[0].dual_value
    return certify(task, "nuclear", np.asarray(weights.value), np.asarray(duals), solver="SCS")


def timed(work: Any) -> tuple[Any, float, float]:
    wall, spent = time.perf_counter(), time.process_time()
    made = work()
    return made, time.perf_counter() - wall, time.process_time() - spent


def floor(n: int, length: int, dim: int) -> float:
    """Operations an iteration cannot do without: A twice, Aᵀ once, MᵀM, its eigenvectors (9 d³), two products."""
    return 3 * (2 * n * dim**2 + 2 * n * (length - 1) * dim) + 2 * dim**3 + 9 * dim**3 + 4 * dim**3


def solvers(full: bool) -> None:
    ratios = []
    for seed in range(INSTANCES):
        task = gaussian(N, LENGTH, DIM, seed)
        mine, wall, spent = timed(lambda task=task: max_margin(task, "nuclear", method="primal_dual", tolerance=GAP))
        rate = floor(N, LENGTH, DIM) * mine.iterations / spent / 1e9
        line = f"instance {seed}: {mine.iterations} iterations, gap {mine.gap:.1e}, {wall:.2f} s"
        line += f" ({spent:.2f} s of processor, {rate:.1f} Gflop/s)"
        if full or seed == 0:
            with one_thread():
                theirs, their_wall, their_spent = timed(lambda task=task: by_scs(task, SCS_EPS))
            ratios.append(their_spent / spent)
            line += f"; SCS {their_wall:.1f} s ({their_spent:.1f} s), gap {theirs.gap:.1e}: {ratios[-1]:.0f} times"
        print(line, flush=True)
    print(f"least ratio of processor seconds: {min(ratios):.0f} (≥ 40), over {len(ratios)} instances")
    for dim in (128,):
        task = gaussian(N, LENGTH, dim, 0)
        found, wall, spent = timed(lambda task=task: max_margin(task, "nuclear", method="primal_dual", tolerance=GAP))
        print(f"d = {dim}: {found.iterations} iterations, gap {found.gap:.1e}, {wall:.2f} s ({spent:.2f} s; < 15)")


def flows() -> None:
    for model, sizes, until in (
        (DiagonalAttention(0.3), (6, 5, 20), 1e5),
        (DiagonalAttention(0.3), (6, 5, 20), 1e7),
        (JointAttention(), (8, 6, 16), 3e3),
        (FactoredAttention(), (8, 6, 16), 3e3),
        (FactoredAttention(), (16, 8, 32), 3e2),
    ):
        task = Tokens.random(*sizes, 3, 0, diagonal=isinstance(model, DiagonalAttention))
        run, wall, spent = timed(lambda m=model, t=task, u=until: simulate(m, t, MarginFlow(u)))
        print(
            f"{type(model).__name__} {sizes} to norm {until:.0e}: {run.attrs['solver_steps']} steps, "
            f"{run.attrs['gradient_evaluations']} gradients, {wall:.2f} s ({spent:.2f} s of processor)", flush=True,
        )  # fmt: skip


def main(full: bool = False) -> None:
    flows()
    solvers(full)
