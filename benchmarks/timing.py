"""How the benchmarks measure: the best of several, after one that is not counted."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from saddles.core.provenance import machine, versions
from saddles.runtime.device import devices


def best_of(work: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several runs; the first, which may compile, is thrown away.

    Args:
        clock: time.process_time on a machine that others use, too.
    """
    work()
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def product_rate(size: int = 2000) -> float:
    """Operations a second of a large float64 matrix product here: the ceiling everything is held against."""
    matrix = np.random.default_rng(0).normal(size=(size, size))
    return 2 * size**3 / best_of(lambda: matrix @ matrix, 3)


def announce() -> None:
    """Print what was measured on."""
    facts = machine()
    print(f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB; {', '.join(devices())}")
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
