"""Many symmetric two-layer flows as one system: tiny states, side by side in one program."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.errors import SaddlesError
from saddles.core.solve import Solution, solve

OBSERVED = ("output", "major", "jacobian")


def flow_many(
    factors: Any,
    strengths: Any,
    targets: Any,
    times: Any,
    *,
    keep: tuple[str, ...] = ("output", "major"),
    rtol: float = 1e-7,
) -> tuple[dict[str, np.ndarray], Solution]:
    """Gradient flow of f = UUᵀx from many starts, all in one adaptive integration.

        U' = 2AU − (WA + AW) U,   W = UUᵀ, A = diag(a).

    The step is chosen for all runs together, with the error measured relative to each entry.

    Args:
        factors: U(0), shape (run, d, hidden).
        strengths: a, shape (run, d) or (d,).
        targets: x̂, shape (run, d) or (d,).
        times: save times from 0, shape (time,).
        keep: of `output` (time, run, d) at x̂, `major` (time, run, d) the diagonal of W, and
            `jacobian` (time, run, d, d).

    Returns the kept arrays and the solver's report.
    """
    unknown = [name for name in keep if name not in OBSERVED]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(OBSERVED)} can be kept", "use those names")
    start = np.moveaxis(np.asarray(factors, dtype=float), 0, -1)
    size, _, runs = start.shape
    a = jnp.asarray(np.broadcast_to(strengths, (runs, size)).T)
    goal = jnp.asarray(np.broadcast_to(targets, (runs, size)).T)
    see = _SEEN[tuple(name in keep for name in OBSERVED)]
    found = solve(_slope, start, times, args=(a, goal), observe=see, rtol=rtol, atol=1e-300, title=f"{runs} flows")
    return {name: np.moveaxis(values, -1, 1) for name, values in found.saved.items()}, found


def _product(factor: Array) -> Array:
    return jnp.sum(factor[:, None] * factor[None, :], axis=2)


def _slope(t: Any, factor: Array, args: tuple[Array, Array]) -> Array:
    a = args[0]
    pull = _product(factor) * (a[:, None] + a[None, :])
    return 2 * a[:, None] * factor - jnp.sum(pull[:, :, None] * factor[None], axis=1)


def _see(which: tuple[bool, ...], factor: Array, goal: Array) -> dict[str, Array]:
    found = {}
    if which[0]:
        found["output"] = jnp.sum(factor * jnp.sum(factor * goal[:, None], axis=0)[None], axis=1)
    if which[1]:
        found["major"] = jnp.sum(factor**2, axis=1)
    if which[2]:
        found["jacobian"] = _product(factor)
    return found


def _seer(which: tuple[bool, ...]) -> Any:
    return lambda t, factor, args: _see(which, factor, args[1])


_SEEN = {(x, y, z): _seer((x, y, z)) for x in (False, True) for y in (False, True) for z in (False, True)}
"""One function for each choice, made once: a new one would compile anew."""
