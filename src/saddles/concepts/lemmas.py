"""Appendix D as numbers: assumptions D.1 to D.5 with margins, lemmas D.1 to D.8 as curves.

All of appendix D is read with a *ascending*: D.5 as printed (i > j, a_i ≥ 3a_j) contradicts the
descending order of the main text. The paper's clock is used throughout: ηt there is `paper_time`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from saddles.concepts.model import SymmetricTwoLayer
from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory

K_LEAST = 20.0
KAPPA_LEAST = 1.1 + 1e-9
P_LEAST = 2.0
KAPPAS = (KAPPA_LEAST, *np.geomspace(1.12, 30, 24).tolist())
"""Values of κ that are tried; at the scales where the assumptions hold the least one is the best."""


@dataclass(frozen=True)
class Constants:
    """The constants of section D.1: α, γ of a; ω, β of |W(0)|; P, κ, K, C free."""

    alpha: float
    gamma: float
    omega: float
    beta: float
    size: int
    P: float
    kappa: float
    K: float
    C: float


@dataclass(frozen=True)
class Assumption:
    """One assumption and by how much it holds.

    `margin` is the log of allowed over needed, positive where it holds, −infinity where it
    cannot; `text` the inequality with its numbers.
    """

    name: str
    holds: bool
    margin: float
    text: str


@dataclass(frozen=True)
class Assumptions:
    """All five, with the constants that were found best for them."""

    constants: Constants
    checks: tuple[Assumption, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of those that do not hold."""
        return tuple(check.name for check in self.checks if not check.holds)

    @property
    def reason(self) -> str:
        """One sentence for a verdict."""
        if not self.broken:
            return "assumptions D.1 to D.5 hold"
        return "; ".join(f"{check.name} is broken: {check.text}" for check in self.checks if not check.holds)


def assumptions(
    model: SymmetricTwoLayer, task: Identity, rate: float | None = None, corrected: bool = False
) -> Assumptions:
    """Check D.1 to D.5 for a start and a task, with the most favourable P, κ, K and C.

    C is the least that D.5 allows and K the least that D.2 and κ ≤ 1 + K/(2C) allow; for each κ of a
    grid the largest P that D.3 and D.4 allow makes D.5 easiest; the κ with the largest margin wins.

    Args:
        rate: step size η of descent in the paper's clock; None is the flow, for which D.2 holds.
        corrected: Corollary D.1 bounds a sum of products of two entries of the initial phase, each at
            most Pβω, but prints P where P² is due. With P² in D.4 no start qualifies at all.
    """
    weights = np.abs(task.to_concepts(model.product(task.size)))
    return check_all(weights, np.sort(task.strengths), rate, corrected)


def check_all(
    weights: np.ndarray,
    ascending: np.ndarray,
    rate: float | None = None,
    corrected: bool = False,
    kappas: Sequence[float] = KAPPAS,
) -> Assumptions:
    """The same from |W(0)| and a in ascending order, with κ from a list."""
    omega, top = float(weights.min()), float(weights.max())
    alpha = float(ascending[0])
    beta = top / omega if omega > 0 else math.inf
    gamma = float(ascending[-1]) / alpha if alpha > 0 else math.inf
    gap = min((high - 3 * low for low, high in pairwise(ascending.tolist())), default=math.inf)
    C = max(1.0 + 1e-9, alpha / gap) if gap > 0 else math.inf
    best: Assumptions | None = None
    for kappa in kappas:
        K = max(K_LEAST, 2 * C * (kappa - 1)) if math.isfinite(C) else K_LEAST
        constants = _with_largest_p(alpha, gamma, omega, beta, len(ascending), float(kappa), K, C, corrected)
        found = _judge(constants, ascending, gap, rate, corrected)
        if best is None or _worst(found) > _worst(best):
            best = found
    assert best is not None
    return best


def _worst(found: Assumptions) -> float:
    return min(check.margin for check in found.checks)


def _with_largest_p(
    alpha: float, gamma: float, omega: float, beta: float, size: int, kappa: float, K: float, C: float,
    corrected: bool,
) -> Constants:  # fmt: skip
    P = P_LEAST
    if omega > 0 and math.isfinite(gamma):
        room = min(kappa - 1, 1 - kappa**-0.5) / (K * gamma * size * beta**2 * omega)
        P = max(P_LEAST, min(0.4 / (omega * beta), room**0.5 if corrected else room))
    return Constants(alpha, gamma, omega, beta, size, P, kappa, K, C)


def _judge(c: Constants, ascending: np.ndarray, gap: float, rate: float | None, corrected: bool) -> Assumptions:
    bounded = c.omega > 0 and c.alpha > 0
    zero = "some a is 0, so d = s is needed" if c.alpha <= 0 else "some entry of W(0) is 0"
    checks = [
        Assumption("D.1", bounded, 0.0 if bounded else -math.inf,
                   f"α = {c.alpha:.3g}, γ = {c.gamma:.3g}, ω = {c.omega:.3g}, β = {c.beta:.3g}" if bounded else zero),
        _step(c, rate),
    ]  # fmt: skip
    if not bounded:
        checks += [Assumption(name, False, -math.inf, zero) for name in ("D.3", "D.4", "D.5")]
        return Assumptions(c, tuple(checks))
    initial = c.P * c.omega * c.beta
    noise = (c.P**2 if corrected else c.P) * c.K * c.gamma * c.size * c.beta**2
    room = min(min(c.kappa - 1, 1 - c.kappa**-0.5) / noise, 1 / math.sqrt(2 * c.beta))
    margins = {"D.3": math.log(0.4 / initial), "D.4": math.log(room / c.omega)}
    checks += [
        Assumption("D.3", margins["D.3"] >= -1e-12, margins["D.3"], f"Pωβ = {initial:.3g} ≤ 0.4"),
        Assumption("D.4", margins["D.4"] >= -1e-12, margins["D.4"], f"ω = {c.omega:.3g} ≤ {room:.3g}"),
        _separation(c, ascending, gap),
    ]
    return Assumptions(c, tuple(checks))


def _step(c: Constants, rate: float | None) -> Assumption:
    if rate is None:
        return Assumption("D.2", True, math.inf, "gradient flow has no step size")
    allowed = 1 / (9 * c.K * c.gamma * c.alpha) if c.alpha > 0 else 0.0
    margin = math.log(allowed / rate) if allowed > 0 else -math.inf
    return Assumption("D.2", margin >= 0, margin, f"η = {rate:.3g} ≤ 1/(9Kγα) = {allowed:.3g}")


def _closest(ascending: np.ndarray) -> float:
    """The largest (a_i + a_j) / 2a_i over pairs: it grows with a_j and falls with a_i, so neighbours decide."""
    return max(((high + low) / (2 * high) for low, high in pairwise(ascending.tolist())), default=0.0)


def _separation(c: Constants, ascending: np.ndarray, gap: float) -> Assumption:
    if not math.isfinite(c.C):
        return Assumption("D.5", False, -math.inf, f"a_i − 3a_j = {gap:.3g} for neighbours, not positive")
    need = _closest(ascending)
    log_P, log_room = math.log(c.P), math.log(1 / (c.P * c.beta * c.omega))
    have = log_P / (10 * c.kappa**2 * log_room + log_P + math.log(c.beta))
    margin = math.log(have / need) if need > 0 and have > 0 else math.inf if need == 0 else -math.inf
    return Assumption("D.5", margin >= 0, margin, f"max (a_i+a_j)/2a_i = {need:.3g} ≤ {have:.3g}")


def lemma_curves(trajectory: Trajectory, c: Constants, start: float = 0.8, cap: float = 0.85) -> xr.Dataset:
    """The bounds of lemmas D.1 to D.8 along a run, NaN where a lemma does not speak.

    Args:
        trajectory: a run with `jacobian` and `paper_time`; concepts in any order of a.
        c: the constants.
        start: the level of w_ii after which D.7 speaks; `cap`: λ of lemma D.4.

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
        _after_initial(lower["D.4"], own, clock, a[i], i, c, cap)
        late = np.flatnonzero(own >= 1 - 2 / c.K)
        if len(late):
            lower["D.6"][late[0] :, i, i] = 1 - 2 / c.K
        grown = np.flatnonzero(own > start)
        if len(grown):
            weaker = np.flatnonzero(a < a[i])
            level = np.maximum(size[grown[0], i, weaker], c.omega)
            upper["D.7"][grown[0] :, i, weaker] = level
            upper["D.7"][grown[0] :, weaker, i] = level
    names = ("D.1", "D.2", "D.3", "D.4", "D.5", "D.6", "D.7", "D.8")
    dims = ("lemma", "time", "row", "column")
    return xr.Dataset(
        {
            "upper": (dims, np.stack([upper.get(name, blank) for name in names])),
            "lower": (dims, np.stack([lower.get(name, blank) for name in names])),
        },
        coords={"lemma": list(names), "time": trajectory["time"], "paper_time": ("time", clock)},
    )


def _after_initial(
    lower: np.ndarray, own: np.ndarray, clock: np.ndarray, a: float, i: int, c: Constants, cap: float
) -> None:
    left = np.flatnonzero(own >= c.P * c.beta * c.omega)
    if not len(left):
        return
    above = np.flatnonzero(own >= cap)
    end = above[0] if len(above) else len(own)
    span = slice(left[0], max(end, left[0]))
    lower[span, i, i] = own[left[0]] * np.exp(2 * a * (clock[span] - clock[left[0]]) * (1 - cap) / c.kappa)


def lemma_margins(trajectory: Trajectory, curves: xr.Dataset) -> xr.DataArray:
    """How far each lemma holds along the run: the least log(upper/|w|) or log(|w|/lower); negative is broken.

    An entry below 1e-13 √(w_ii w_jj) is rounding of u_i · u_j and counts as 0.
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
    return np.where(size < 1e-13 * own[..., :, None] * own[..., None, :], 0.0, size)


def least_constants(trajectory: Trajectory, cap: float = 0.85) -> dict[str, Any]:
    """The smallest constants with which each bound holds along a run, at whatever scale it is.

    κ of D.1 (growth never faster than κ times linear), κ of D.2 (no entry slower than 1/κ until the
    first leaves 0.4), κ of D.3 (the same for each diagonal entry until it reaches 0.4), κ of D.4 (from
    0.4 to λ = cap), the top of w_ii (D.5: K ≥ 2/(top − 1)), the ratio by which minor entries exceed
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
    early = own[1:].max(axis=1) < 0.4
    d3 = [slow[own[1:, i] < 0.4, i, i].max(initial=1.0) for i in range(d)]
    d4, d7 = [1.0], [0.0]
    for i in range(d):
        left, high = np.flatnonzero(own[:, i] >= 0.4), np.flatnonzero(own[:, i] >= cap)
        if len(left) and len(high) and high[0] > left[0] + 1:
            span = slice(left[0] + 1, high[0])
            rise = np.log(own[span, i] / own[left[0], i])
            d4.append(float((2 * a[i] * (1 - cap) * (clock[span] - clock[left[0]]) / rise).max()))
        grown = np.flatnonzero(own[:, i] > 0.8)
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
