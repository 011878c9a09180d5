"""One thread for many small products.

A BLAS that spreads a product of 64 × 64 over two cores gains nothing on an idle machine, and loses a factor of
ten and more on a busy one, where its threads wait for each other.
"""

import functools
from collections.abc import Iterator
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
