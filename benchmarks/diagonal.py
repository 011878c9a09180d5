"""What the plateau-crossing flow costs on the toy head, in gradients and Hessian-vector products.

    python -m benchmarks diagonal [--full]      --full: 1,000 samples, and the explicit solver at 1e-32 (long)

Counts do not depend on the machine; times do. Targets: at α = 1e-32 four times fewer than a plain adaptive
explicit solver; growth ≤ 3 from 1e-16 to 1e-128 and ≤ 1.3 from 1e-128 to 1e-1000; ≤ 100 per stage.
"""

import time
from dataclasses import replace

import numpy as np
from scipy.integrate import solve_ivp

from saddles.core.dispatch import simulate
from saddles.diagonal import AttentionHead, Flow, TeacherStudent
from saddles.diagonal.risk import risk_of
from saddles.measures import stages
from saddles.solvers.log_scale import LogScale

DECADES = (16, 32, 128, 1000)
DIM, UNTIL = 50, 1500.0


def operations(samples: int, tokens: int, dim: int) -> float:
    """Multiplications and additions that a gradient of the head needs: five products of n×n×d per sample."""
    return 5 * 2.0 * samples * tokens**2 * dim


def one_gradient(model: AttentionHead, task: TeacherStudent) -> float:
    risk = risk_of(model, task)
    risk.force(task.truth)
    began = time.perf_counter()
    for _ in range(20):
        risk.force(task.truth)
    return (time.perf_counter() - began) / 20


def explicit(
    model: AttentionHead, task: TeacherStudent, decades: int, until: float, rtol: float
) -> tuple[int, np.ndarray]:
    """Gradients of an explicit adaptive solver (Dormand–Prince 5) in the same coordinates, and its last β."""
    risk, scale = risk_of(model, task), decades * np.log(10)
    coords = LogScale.from_weights(*model.start(task), -scale)
    with np.errstate(all="ignore"):
        solution = solve_ivp(
            lambda t, s: risk.force(np.clip(coords.beta(s), -1e30, 1e30)), (0, until * scale), np.zeros(coords.size),
            rtol=1e-13, atol=rtol, method="RK45",
        )  # fmt: skip
    return risk.counts.gradients, coords.beta(solution.y[:, -1])


def main(full: bool = False) -> None:
    samples = 1000 if full else 100
    model = AttentionHead(DIM)
    task = TeacherStudent(model, samples, 10, seed=0)
    spent = one_gradient(model, task)
    work = operations(samples, 10, DIM)
    print(f"one gradient: {1e3 * spent:.2f} ms, {work / 1e6:.0f} Mflop needed, {work / spent / 1e9:.2f} Gflop/s")
    totals = {}
    for decades in DECADES:
        flow = simulate(replace(model, log_alpha=-decades * np.log(10)), task, Flow(until=UNTIL))
        count = stages(flow).sizes["stage"]
        total = totals[decades] = flow.attrs["gradient_evaluations"] + flow.attrs["hessian_products"]
        print(
            f"1e-{decades}: {flow.attrs['gradient_evaluations']} gradients, {flow.attrs['hessian_products']} products,"
            f" {count} stages, {total / max(count, 1):.0f} per stage, {flow.attrs['plateaus_crossed']} plateaus crossed,"
            f" {flow.attrs['wall_time_s']:.1f} s, {flow.attrs['status']}",
            flush=True,
        )
    print(f"growth 1e-16 to 1e-128: {totals[128] / totals[16]:.2f} (≤ 3)")
    print(f"growth 1e-128 to 1e-1000: {totals[1000] / totals[128]:.2f} (≤ 1.3)")
    if full:
        count, end = explicit(model, task, 32, UNTIL, 1e-5)
        small = replace(model, log_alpha=-32 * np.log(10))
        tight = simulate(small, task, Flow(tolerance=1e-8), times=[UNTIL])["beta"].values[-1]
        mine = simulate(small, task, Flow(), times=[UNTIL])["beta"].values[-1]
        print(f"explicit at 1e-32: {count} gradients, {count / totals[32]:.1f} times as many (≥ 4)")
        print(
            f"error of the last β: explicit {np.abs(end - tight).max():.2g}, crossing {np.abs(mine - tight).max():.2g}"
        )
