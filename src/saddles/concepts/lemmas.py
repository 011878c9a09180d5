"""Lemmas D.1 to D.8 of appendix D as curves along a run.

As in `saddles.concepts.assumptions`, a is read ascending and the paper's clock is used: ηt there is `paper_time`.
"""

import math

import numpy as np
import xarray as xr

from saddles.concepts.assumptions import INITIAL_PHASE, Constants
from saddles.core.trajectory import Trajectory

LEMMAS = ("D.1", "D.2", "D.3", "D.4", "D.5", "D.6", "D.7", "D.8")

GROWN = 0.8
"""The level of w_ii after which lemma D.7 applies."""

CAP = 0.85
"""λ of lemma D.4: up to this level of w_ii it bounds the growth from below."""

ROUNDING = 1e-13
"""Entries below this part of √(w_ii w_jj) are rounding of u_i · u_j and count as 0."""


def lemma_curves(trajectory: Trajectory, c: Constants) -> xr.Dataset:
    """The bounds of lemmas D.1 to D.8 along a run, NaN where a lemma does not apply.

    Args:
        trajectory: a run with `jacobian` and `paper_time`; concepts in any order of a.
        c: the constants.

    Returns `upper` and `lower` on |w_ij|, dims (lemma, time, row, column).
    """
    clock, a = trajectory["paper_time"].values, trajectory["strength"].values
    size = np.abs(trajectory["jacobian"].values)
    first, d = size[0], len(a)
    pair = a[:, None] + a[None, :]
    diagonal, off = np.eye(d, dtype=bool), ~np.eye(d, dtype=bool)
    blank = np.full(size.shape, np.nan)
    upper = {name: blank.copy() for name in ("D.1", "D.5", "D.7", "D.8")}
    lower = {name: blank.copy() for name in ("D.2", "D.3", "D.4", "D.6")}
    t = clock[:, None, None]
    with np.errstate(over="ignore"):
        upper["D.1"] = first * np.exp(t * pair * c.kappa)
        lower["D.2"] = np.where(
            t <= math.log(c.P) / (2 * c.gamma * c.alpha * c.kappa), first * np.exp(t * pair / c.kappa), np.nan
        )
        ends = np.log(c.P * c.beta * c.omega / np.diag(first)) / (2 * a * c.kappa)
        lower["D.3"] = np.where(diagonal & (t <= ends[None, :, None]), first * np.exp(t * pair / c.kappa), np.nan)
    upper["D.5"] = np.where(diagonal, 1 + 2 / c.K, np.nan) + 0 * t
    upper["D.8"] = np.where(off, c.P * c.beta * c.omega, np.nan) + 0 * t
    for i in range(d):
        own = size[:, i, i]
        _after_initial(lower["D.4"], own, clock, a[i], i, c)
        late = np.flatnonzero(own >= 1 - 2 / c.K)
        if len(late):
            lower["D.6"][late[0] :, i, i] = 1 - 2 / c.K
        grown = np.flatnonzero(own > GROWN)
        if len(grown):
            weaker = np.flatnonzero(a < a[i])
            level = np.maximum(size[grown[0], i, weaker], c.omega)
            upper["D.7"][grown[0] :, i, weaker] = level
            upper["D.7"][grown[0] :, weaker, i] = level
    dims = ("lemma", "time", "row", "column")
    return xr.Dataset(
        {
            "upper": (dims, np.stack([upper.get(name, blank) for name in LEMMAS])),
            "lower": (dims, np.stack([lower.get(name, blank) for name in LEMMAS])),
        },
        coords={"lemma": list(LEMMAS), "time": trajectory["time"], "paper_time": ("time", clock)},
    )


def _after_initial(lower: np.ndarray, own: np.ndarray, clock: np.ndarray, a: float, i: int, c: Constants) -> None:
    """Write the bound of D.4 on entry (i, i): from the end of its initial phase until it reaches λ."""
    left = np.flatnonzero(own >= c.P * c.beta * c.omega)
    if not len(left):
        return
    above = np.flatnonzero(own >= CAP)
    end = above[0] if len(above) else len(own)
    span = slice(left[0], max(end, left[0]))
    lower[span, i, i] = own[left[0]] * np.exp(2 * a * (clock[span] - clock[left[0]]) * (1 - CAP) / c.kappa)


def lemma_margins(trajectory: Trajectory, curves: xr.Dataset) -> xr.DataArray:
    """How far each lemma holds along the run: the least log(upper/|w|) or log(|w|/lower); negative is broken.

    Entries that are rounding of u_i · u_j count as 0.
    """
    size = _rounded(np.abs(trajectory["jacobian"].values))[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.log(curves["upper"].values) - np.log(size)
        below = np.log(size) - np.log(curves["lower"].values)
    both = np.concatenate([above.reshape(len(above), -1), below.reshape(len(below), -1)], axis=1)
    silent = np.isnan(both).all(axis=1)
    worst = np.where(silent, np.inf, np.min(np.where(np.isnan(both), np.inf, both), axis=1))
    return xr.DataArray(worst, dims="lemma", coords={"lemma": curves["lemma"]}, name="margin")


def _rounded(size: np.ndarray) -> np.ndarray:
    own = np.sqrt(np.diagonal(size, axis1=-2, axis2=-1))
    return np.where(size < ROUNDING * own[..., :, None] * own[..., None, :], 0.0, size)


def least_constants(trajectory: Trajectory) -> dict[str, float]:
    """The smallest constants with which each bound holds along a run, at whatever scale it is.

    κ of D.1 (growth never faster than κ times linear), κ of D.2 (no entry slower than 1/κ until the
    first leaves 0.4), κ of D.3 (the same for each diagonal entry until it reaches 0.4), κ of D.4 (from
    0.4 to λ = 0.85), the top of w_ii (D.5: K ≥ 2/(top − 1)), the ratio by which minor entries exceed
    max(|w_ij(t_0)|, ω) after w_ii > 0.8 (D.7: 1 is the lemma), and P of D.8. Infinity where no constant
    does it: an entry that changes sign or shrinks has no lower bound.
    """
    clock, a = trajectory["paper_time"].values, trajectory["strength"].values
    size = np.abs(trajectory["jacobian"].values)
    signed = trajectory["jacobian"].values
    d, first = len(a), np.abs(trajectory["jacobian"].values[0])
    pair = a[:, None] + a[None, :]
    omega, top = float(first.min()), float(first.max())
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.log(size[1:] / first) / (clock[1:, None, None] * pair)
        pace = np.where(signed[1:] * signed[0] > 0, pace, -np.inf)
        slow = np.where(pace > 0, 1 / pace, np.inf)
    own = np.diagonal(size, axis1=1, axis2=2)
    early = own[1:].max(axis=1) < INITIAL_PHASE
    d3 = [slow[own[1:, i] < INITIAL_PHASE, i, i].max(initial=1.0) for i in range(d)]
    d4, d7 = [1.0], [0.0]
    for i in range(d):
        left, high = np.flatnonzero(own[:, i] >= INITIAL_PHASE), np.flatnonzero(own[:, i] >= CAP)
        if len(left) and len(high) and high[0] > left[0] + 1:
            span = slice(left[0] + 1, high[0])
            rise = np.log(own[span, i] / own[left[0], i])
            d4.append(float((2 * a[i] * (1 - CAP) * (clock[span] - clock[left[0]]) / rise).max()))
        grown = np.flatnonzero(own[:, i] > GROWN)
        weaker = np.flatnonzero(a < a[i])
        if len(grown) and len(weaker):
            level = np.maximum(size[grown[0], i, weaker], omega)
            d7.append(float((size[grown[0] :, i, weaker] / level).max()))
    off = ~np.eye(d, dtype=bool)
    return {
        "D.1 κ": max(1.0, float(pace.max())), "D.2 κ": float(slow[early].max(initial=1.0)), "D.3 κ": float(max(d3)),
        "D.4 κ": max(d4), "D.5 top": float(own.max()), "D.7 ratio": max(d7),
        "D.8 P": float(size[:, off].max() / top) if d > 1 else 0.0, "omega": omega, "beta": top / omega,
    }  # fmt: skip
