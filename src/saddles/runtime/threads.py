"""One thread for many small products.

A BLAS that spreads a product of 64 × 64 over two cores gains nothing on an idle machine, and loses a factor of
ten and more on a busy one, where its threads wait for each other.
"""

import functools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import scipy.linalg  # noqa: F401  (its BLAS must be loaded before it is counted)
from threadpoolctl import ThreadpoolController

SMALL = 256
"""Matrices up to this size are multiplied on one thread."""


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_thread(size: int = 0) -> Iterator[None]:
    """Inside this block NumPy's and SciPy's products use one thread, if matrices have at most `SMALL` rows."""
    if size > SMALL:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def torch_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool whose threads each use one core for torch, while all other threads keep the number they had.

    Small factorisations gain nothing from several cores each; two teams of threads on the same cores wait for each
    other and were seen to be 30 times slower.
    """
    import torch

    before = torch.get_num_threads()
    ready = threading.Barrier(workers + 1)

    def use_one_core() -> None:
        torch.get_num_threads()  # a thread takes the default over on its first call, so that must come before
        torch.set_num_threads(1)

    with ThreadPoolExecutor(workers, "saddles", use_one_core) as pool:
        # set_num_threads also changes the default of threads to come, so all of the pool start now, and then the
        # default is put back.
        waiting = [pool.submit(ready.wait) for _ in range(workers)]
        ready.wait()
        torch.set_num_threads(before)
        for future in waiting:
            future.result()
        yield pool


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spare_cores() -> int:
    """How many threads measure beside a training loop: half of the cores, at most eight."""
    return max(1, min(8, cores() // 2))
