"""Many symmetric two-layer flows as one system: tiny states, side by side in one program."""

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from saddles.core.status import Status
from saddles.errors import SaddlesError
from saddles.runtime.precision import in_double_precision
from saddles.runtime.progress import bar
from saddles.solvers.ode import solve

OBSERVABLE = ("output", "major", "jacobian")

NO_FLOOR = 1e-300
"""Absolute error: none, as entries of 1e-40 grow to 1."""

ROOM = 4
"""Tasks up to this size are padded to it, so that they share one compiled program."""

BLOCKS = (64, 1024)
"""Runs go through the solver in blocks of one of these sizes, the last one padded with copies."""


@in_double_precision
def flow_many(
    factors: np.ndarray,
    strengths: npt.ArrayLike,
    targets: npt.ArrayLike,
    times: np.ndarray,
    *,
    observe: tuple[str, ...] = ("output", "major"),
    rtol: float = 1e-7,
) -> tuple[dict[str, np.ndarray], Status]:
    """Gradient flow of f = UUᵀx from many starts, side by side in one adaptive integration.

        U' = 2AU − (WA + AW) U,   W = UUᵀ, A = diag(a).

    The step is chosen for a block of runs together, with the error measured relative to each entry.

    Args:
        factors: U(0), shape (run, d, hidden).
        strengths: a, shape (run, d) or (d,).
        targets: x̂, shape (run, d) or (d,).
        times: save times from 0, shape (time,).
        observe: of `output` (time, run, d) at x̂, `major` (time, run, d) the diagonal of W, and
            `jacobian` (time, run, d, d).
        rtol: relative error per step.

    Returns the observed arrays, and how the blocks ended.
    """
    for name in observe:
        if name not in OBSERVABLE:
            raise SaddlesError.must_be("observe", f"names out of {', '.join(OBSERVABLE)}", name)
    start = np.asarray(factors, dtype=float)
    runs, size, hidden = start.shape
    a, goal = (np.broadcast_to(np.asarray(v, dtype=float), (runs, size)) for v in (strengths, targets))
    block = BLOCKS[0] if runs <= BLOCKS[0] else BLOCKS[1]
    room = (max(size, ROOM), max(hidden, ROOM))
    parts, statuses = [], []
    with bar(f"{runs} flows", runs) as progress:
        for first in range(0, runs, block):
            rows = np.minimum(np.arange(first, first + block), runs - 1)
            args = (_padded(a[rows], room[:1]), _padded(goal[rows], room[:1]))
            flow = solve(
                _slope, _padded(start[rows], room), times, args=args, observe=_observe, rtol=rtol, atol=NO_FLOOR
            )
            real = min(block, runs - first)
            parts.append({name: _trimmed(flow.saved[name], size, real) for name in observe})
            statuses.append(flow.status)
            progress.advance(float(real))
    shortest = min(len(part[observe[0]]) for part in parts)
    saved = {name: np.concatenate([part[name][:shortest] for part in parts], axis=1) for name in observe}
    return saved, Status.all_of(statuses)


def _padded(values: np.ndarray, room: tuple[int, ...]) -> Array:
    """Zeros behind every axis but the first, which goes last."""
    grown = np.zeros((len(values), *room))
    grown[tuple(slice(0, n) for n in values.shape)] = values
    return jnp.asarray(np.moveaxis(grown, 0, -1))


def _trimmed(values: np.ndarray, size: int, runs: int) -> np.ndarray:
    inner = (slice(0, size),) * (values.ndim - 2)
    return np.moveaxis(values[(slice(None), *inner, slice(0, runs))], -1, 1)


# Runs are the last axis and sums over the others are written out: matrix products of 4 × 4 entries side by side would
# be a loop over runs, sums are one pass over long rows. A test holds these flows against the single ones.

Factors = Float[Array, "d hidden run"]
Args = tuple[Float[Array, "d run"], Float[Array, "d run"]]
"""Strengths and targets."""


def _product(factor: Factors) -> Float[Array, "d d run"]:
    return jnp.sum(factor[:, None] * factor[None, :], axis=2)


def _slope(t: Array, factor: Factors, args: Args) -> Factors:
    a = args[0]
    pull = _product(factor) * (a[:, None] + a[None, :])
    return 2 * a[:, None] * factor - jnp.sum(pull[:, :, None] * factor[None], axis=1)


def _observe(t: Array, factor: Factors, args: Args) -> dict[str, Array]:
    return {
        "output": jnp.sum(factor * jnp.sum(factor * args[1][:, None], axis=0)[None], axis=1),
        "major": jnp.sum(factor**2, axis=1),
        "jacobian": _product(factor),
    }
