"""Flows of separate heads: plateaus crossed and learned heads frozen, against stepping through everything.

    python -m benchmarks incontext [--full]      --full: 100 covariances instead of 10

Targets: 100 covariances with D = 8, 16 heads and a start of 1e-8 within a minute on two cores, so 1.2 processor seconds
each; a start of 1e-16 costs at most three times one of 1e-4. Slopes do not depend on the machine; seconds do. Plain is
the same solver (DOP853, rtol 1e-7) without crossing and freezing, where its plateaus are short enough to be stepped.
"""

import time

import numpy as np

from saddles import simulate
from saddles.core.trajectory import Trajectory
from saddles.incontext import GradientFlow, Regression, Separate
from saddles.incontext.experiments.staircase import spectrum

DIM, HEADS, PROMPT = 8, 16, 31


def flow(seed: int, scale: float, dim: int = DIM, cross: bool = True) -> Trajectory:
    task = Regression(spectrum(dim, 0.8, np.random.default_rng([seed, 60])), PROMPT)
    return simulate(Separate(2 * dim, 1, scale), task, GradientFlow(rtol=1e-7, cross=cross), seed=seed)


def slopes(run: Trajectory) -> int:
    return int(run.attrs["gradient_evaluations"])


def main(full: bool = False) -> None:
    flow(0, 1e-8)  # compiles
    count = 100 if full else 10
    began, clock = time.process_time(), time.perf_counter()
    runs = [flow(seed, 1e-8) for seed in range(count)]
    spent, waited = time.process_time() - began, time.perf_counter() - clock
    ended = sum(run.attrs["status"] == "converged" for run in runs)
    counts = [slopes(run) for run in runs]
    print(f"{count} covariances from 1e-8: {spent:.1f} processor seconds, {waited:.1f} s by the clock, on one core")
    print(
        f"each: {spent / count:.2f} s (≤ 1.2), {np.mean(counts):.0f} slopes, {max(counts)} at most; {ended} converged"
    )
    ratios = [slopes(flow(seed, 1e-16)) / slopes(flow(seed, 1e-4)) for seed in range(5)]
    print(f"slopes from 1e-16 over those from 1e-4: {min(ratios):.2f} to {max(ratios):.2f} (≤ 3)")
    for scale in (1e-2, 1e-3):
        plain, crossed = (flow(0, scale, 4, cross) for cross in (False, True))
        level = np.array([0.8, 0.5, 0.3]) * float(plain["loss"][0])
        when = [np.interp(-level, -np.minimum.accumulate(run["loss"].values), run["time"]) for run in (plain, crossed)]
        fewer, apart = slopes(plain) / slopes(crossed), np.abs(when[1] / when[0] - 1).max()
        print(f"D = 4 from {scale:g}: {slopes(plain)} slopes plain, {slopes(crossed)} crossed, {fewer:.1f} times fewer")
        print(f"  their times of three losses agree to {apart:.1g}")
