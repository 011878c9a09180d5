"""JAX in double precision, for as long as saddles computes.

Plateaus are exponentially close to saddles, and float32 loses them. JAX's own default (float32) is left as it is for
the rest of the user's program: the switch is on inside the models and theories of the labs, experiments and the
solvers, in the thread that computes, and off again afterwards; a model of the user's own turns it on by the decorator.
`precision="float32"` asks for single precision.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def double_precision() -> AbstractContextManager[None]:
    """Inside this block JAX computes in float64."""
    if hasattr(jax, "enable_x64"):  # JAX 0.8 and later
        return jax.enable_x64(True)
    return jax.experimental.enable_x64()  # type: ignore[attr-defined]


def in_double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute in float64, wherever it is called from."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with double_precision():
            return function(*args, **kwargs)

    return wrapped
