"""Assumptions D.1 to D.5 of appendix D as checks with margins.

All of appendix D is read with a *ascending*: D.5 as printed (i > j, a_i ≥ 3a_j) contradicts the
descending order of the main text. The paper's clock is used throughout: ηt there is `paper_time`.
"""

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np

from saddles.concepts.task import Identity
from saddles.core.assumptions import Assumption, Assumptions
from saddles.errors import SaddlesError

JUST_ABOVE = 1e-9
"""How far a constant stays above a bound that the text wants exceeded."""

K_LEAST = 20.0
KAPPA_LEAST = 1.1 + JUST_ABOVE
P_LEAST = 2.0
"""The least K, κ and P that section D.1 allows."""

INITIAL_PHASE = 0.4
"""D.3: Pωβ, the level at which the initial phase of an entry ends, is at most this."""

KAPPAS = (KAPPA_LEAST, *np.geomspace(1.12, 30, 24).tolist())
"""Values of κ that are tried; at the scales where the assumptions hold the least one is the best."""

ROUNDING = 1e-12
"""A margin this far below 0 still holds: P is chosen so that D.3 or D.4 holds with equality."""


@runtime_checkable
class Pair(Protocol):
    """A symmetric two-layer model: what the checks, the pivot law and the theory ask of it."""

    def start(self, task: Identity, seed: int = 0) -> np.ndarray:
        """U(0), d × d' in the network's frame."""
        ...

    def product(self, task: Identity, seed: int = 0) -> np.ndarray:
        """W(0) = U(0) U(0)ᵀ in the network's frame."""
        ...


def check_pair(model: object, what: str) -> Pair:
    """Refuse a model that is not a symmetric pair; `what` is what it was given to."""
    if not isinstance(model, Pair):
        raise SaddlesError(
            f"{what} is for SymmetricTwoLayer, or a model whose `product(task, seed)` is W(0) = UUᵀ; "
            f"got {type(model).__name__}. For one layer see OneLayerTheory."
        )
    return model


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
class PairAssumptions(Assumptions):
    """All five, with the constants that were found best for them.

    The `value` of a check is its margin: the log of allowed over needed, positive where it holds, −infinity where it
    cannot.
    """

    constants: Constants

    @property
    def summary(self) -> str:
        """One sentence, also where all of them hold."""
        return self.reason or "assumptions D.1 to D.5 hold"

    @property
    def margin(self) -> float:
        """The least margin."""
        return min(check.value for check in self.checks)


def check_assumptions(
    model: object, task: Identity, *, seed: int = 0, rate: float | None = None, corrected: bool = False
) -> PairAssumptions:
    """Check D.1 to D.5 for a start and a task, with the most favourable P, κ, K and C.

    C is the least that D.5 allows and K the least that D.2 and κ ≤ 1 + K/(2C) allow; for each κ of a
    grid the largest P that D.3 and D.4 allow makes D.5 easiest; the κ with the largest margin wins.

    Args:
        model: a `SymmetricTwoLayer`, or another model with `product(task, seed)`.
        task: the task.
        seed: the run's, where the start is drawn.
        rate: step size η of descent in the paper's clock; None is the flow, for which D.2 holds.
        corrected: Corollary D.1 bounds a sum of products of two entries of the initial phase, each at
            most Pβω, but prints P where P² is due. With P² in D.4 no start qualifies at all.
    """
    pair = check_pair(model, "Appendix D")
    weights = np.abs(task.to_concepts(pair.product(task, seed)))
    return check_weights(weights, np.sort(task.strengths), rate, corrected)


def check_weights(
    weights: np.ndarray,
    ascending: np.ndarray,
    rate: float | None = None,
    corrected: bool = False,
    kappas: Sequence[float] = KAPPAS,
) -> PairAssumptions:
    """The same from |W(0)| and a in ascending order, with κ from a list."""
    omega, top = float(weights.min()), float(weights.max())
    alpha = float(ascending[0])
    beta = top / omega if omega > 0 else math.inf
    gamma = float(ascending[-1]) / alpha if alpha > 0 else math.inf
    gap = min((high - 3 * low for low, high in pairwise(ascending.tolist())), default=math.inf)
    # D.5: a_i − 3a_j ≥ α/C for neighbours, with C > 1. Neighbours decide, as a is ascending.
    C = max(1.0 + JUST_ABOVE, alpha / gap) if gap > 0 else math.inf
    candidates = []
    for kappa in kappas:
        K = max(K_LEAST, 2 * C * (kappa - 1)) if math.isfinite(C) else K_LEAST
        constants = _with_largest_p(alpha, gamma, omega, beta, len(ascending), float(kappa), K, C, corrected)
        candidates.append(_judge(constants, ascending, gap, rate, corrected))
    return max(candidates, key=lambda one: one.margin)


def _with_largest_p(
    alpha: float, gamma: float, omega: float, beta: float, size: int, kappa: float, K: float, C: float,
    corrected: bool,
) -> Constants:  # fmt: skip
    """The constants with the largest P that D.3 (0.4 / ωβ) and D.4 (`room`) allow."""
    P = P_LEAST
    if omega > 0 and math.isfinite(gamma):
        room = min(kappa - 1, 1 - kappa**-0.5) / (K * gamma * size * beta**2 * omega)
        P = max(P_LEAST, min(INITIAL_PHASE / (omega * beta), room**0.5 if corrected else room))
    return Constants(alpha, gamma, omega, beta, size, P, kappa, K, C)


def _judge(c: Constants, ascending: np.ndarray, gap: float, rate: float | None, corrected: bool) -> PairAssumptions:
    bounded = c.omega > 0 and c.alpha > 0
    zero = "some a is 0, so d = s is needed" if c.alpha <= 0 else "some entry of W(0) is 0"
    numbers = f"α = {c.alpha:.3g}, γ = {c.gamma:.3g}, ω = {c.omega:.3g}, β = {c.beta:.3g}"
    checks = [
        Assumption("D.1", bounded, 0.0 if bounded else -math.inf, numbers if bounded else zero),
        _step_size(c, rate),
    ]
    if not bounded:
        checks += [Assumption(name, False, -math.inf, zero) for name in ("D.3", "D.4", "D.5")]
        return PairAssumptions(tuple(checks), c)
    initial = c.P * c.omega * c.beta
    noise = (c.P**2 if corrected else c.P) * c.K * c.gamma * c.size * c.beta**2
    room = min(min(c.kappa - 1, 1 - c.kappa**-0.5) / noise, 1 / math.sqrt(2 * c.beta))
    phase, small = math.log(INITIAL_PHASE / initial), math.log(room / c.omega)
    checks += [
        Assumption("D.3", phase >= -ROUNDING, phase, f"Pωβ = {initial:.3g} ≤ {INITIAL_PHASE:g}"),
        Assumption("D.4", small >= -ROUNDING, small, f"ω = {c.omega:.3g} ≤ {room:.3g}"),
        _separation(c, ascending, gap),
    ]
    return PairAssumptions(tuple(checks), c)


def _step_size(c: Constants, rate: float | None) -> Assumption:
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
    have = log_P / (10 * c.kappa**2 * log_room + log_P + math.log(c.beta))  # the right side of equation D.10
    margin = math.log(have / need) if need > 0 and have > 0 else math.inf if need == 0 else -math.inf
    return Assumption("D.5", margin >= 0, margin, f"max (a_i+a_j)/2a_i = {need:.3g} ≤ {have:.3g}")


class _OldName(ModuleType):
    """`saddles.concepts.assumptions(...)` was a function; this module now has its name. For one release."""

    def __call__(
        self, model: object, task: Identity, rate: float | None = None, corrected: bool = False
    ) -> PairAssumptions:
        told = "saddles.concepts.assumptions(...) is now check_assumptions; the next release removes the old name."
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return check_assumptions(model, task, rate=rate, corrected=corrected)


sys.modules[__name__].__class__ = _OldName
