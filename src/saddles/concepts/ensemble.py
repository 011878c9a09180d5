"""Many symmetric two-layer flows as one system: tiny states, side by side in one program."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.trajectory import FINISHED
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar
from saddles.solvers.ode import solve

OBSERVED = ("output", "major", "jacobian")

ROOM = 4
"""Tasks up to this size are padded to it, so that they share one compiled program."""

BLOCKS = (64, 1024)
"""Runs go through the solver in blocks of one of these sizes, the last one padded with copies."""


def flow_many(
    factors: Any,
    strengths: Any,
    targets: Any,
    times: Any,
    *,
    keep: tuple[str, ...] = ("output", "major"),
    rtol: float = 1e-7,
) -> tuple[dict[str, np.ndarray], str]:
    """Gradient flow of f = UUᵀx from many starts, side by side in one adaptive integration.

        U' = 2AU − (WA + AW) U,   W = UUᵀ, A = diag(a).

    The step is chosen for a block of runs together, with the error measured relative to each entry.

    Args:
        factors: U(0), shape (run, d, hidden).
        strengths: a, shape (run, d) or (d,).
        targets: x̂, shape (run, d) or (d,).
        times: save times from 0, shape (time,).
        keep: of `output` (time, run, d) at x̂, `major` (time, run, d) the diagonal of W, and
            `jacobian` (time, run, d, d).

    Returns the kept arrays, and how it ended: "finished" or the reason of the first block that was not.
    """
    unknown = [name for name in keep if name not in OBSERVED]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(OBSERVED)} can be kept", "use those names")
    start = np.asarray(factors, dtype=float)
    runs, size, hidden = start.shape
    a, goal = (np.broadcast_to(np.asarray(v, dtype=float), (runs, size)) for v in (strengths, targets))
    block = BLOCKS[0] if runs <= BLOCKS[0] else BLOCKS[1]
    room = (max(size, ROOM), max(hidden, ROOM))
    parts, status = [], FINISHED
    with bar(f"{runs} flows", runs) as progress:
        for first in range(0, runs, block):
            rows = np.minimum(np.arange(first, first + block), runs - 1)
            args = (_padded(a[rows], room[:1]), _padded(goal[rows], room[:1]))
            found = solve(_slope, _padded(start[rows], room), times, args=args, observe=_see, rtol=rtol, atol=1e-300)
            real = min(block, runs - first)
            parts.append({name: _trimmed(found.saved[name], size, real) for name in keep})
            status = found.status if status == FINISHED else status
            progress.advance(float(real))
    shortest = min(len(part[keep[0]]) for part in parts)
    return {name: np.concatenate([part[name][:shortest] for part in parts], axis=1) for name in keep}, status


def _padded(values: np.ndarray, room: tuple[int, ...]) -> Array:
    """Zeros behind every axis but the first, which goes last."""
    grown = np.zeros((len(values), *room))
    grown[tuple(slice(0, n) for n in values.shape)] = values
    return jnp.asarray(np.moveaxis(grown, 0, -1))


def _trimmed(values: np.ndarray, size: int, runs: int) -> np.ndarray:
    inner = (slice(0, size),) * (values.ndim - 2)
    return np.moveaxis(values[(slice(None), *inner, slice(0, runs))], -1, 1)


def _product(factor: Array) -> Array:
    return jnp.sum(factor[:, None] * factor[None, :], axis=2)


def _slope(t: Any, factor: Array, args: tuple[Array, Array]) -> Array:
    a = args[0]
    pull = _product(factor) * (a[:, None] + a[None, :])
    return 2 * a[:, None] * factor - jnp.sum(pull[:, :, None] * factor[None], axis=1)


def _see(t: Any, factor: Array, args: tuple[Array, Array]) -> dict[str, Array]:
    return {
        "output": jnp.sum(factor * jnp.sum(factor * args[1][:, None], axis=0)[None], axis=1),
        "major": jnp.sum(factor**2, axis=1),
        "jacobian": _product(factor),
    }
