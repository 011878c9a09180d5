"""Threads that leave the training loop its processors."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def calm_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads each use one core for torch, while all other threads keep what they had.

    Small factorisations gain nothing from several cores each; two teams of threads on the same cores
    wait for each other and were seen to be 30 times slower. Torch keeps the number per thread, and a
    default for threads to come, which is put back here.
    """
    import torch

    before = torch.get_num_threads()
    ready = threading.Barrier(workers + 1)

    def calm() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)

    with ThreadPoolExecutor(workers, "saddles", calm) as pool:
        waiting = [pool.submit(ready.wait) for _ in range(workers)]
        ready.wait()
        torch.set_num_threads(before)
        for future in waiting:
            future.result()
        yield pool


def spare_cores() -> int:
    """How many threads measure at a time: half of the cores, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores // 2))
