"""The phase diagram of section 2.1 and the times of Theorem 2."""

import math
from collections.abc import Sequence
from typing import Literal

from saddles.errors import SaddlesError

Phase = Literal["underparametrised", "noisy", "lazy", "active"]


def phase(gamma_w: float, gamma_variance: float) -> Phase:
    """The regime of w = d^γ_w, σ² = d^γ_σ² in the limit of large d.

    Tested in this order: underparametrised (γ_w < 1), noisy (2γ_σ²+γ_w > 0), lazy
    (γ_w+γ_σ² > 1), active. The paper's introduction writes the noisy bound with an extra
    +1; section 2.1 and Theorem 2 do not, and they are followed. Points on a boundary
    belong to the later regime of the list.
    """
    if not (math.isfinite(gamma_w) and math.isfinite(gamma_variance)):
        raise SaddlesError.must_be("gamma_w", "finite, like `gamma_variance`", (gamma_w, gamma_variance))
    if gamma_w < 1:
        return "underparametrised"
    if 2 * gamma_variance + gamma_w > 0:
        return "noisy"
    return "lazy" if gamma_w + gamma_variance > 1 else "active"


def _check_active(dim: int, gamma_w: float, gamma_variance: float) -> float:
    distance = 1 - gamma_w - gamma_variance
    if not (dim >= 2 and 0 < distance < math.inf):
        raise SaddlesError(
            f"A recovery time exists only where d ≥ 2 and γ_w+γ_σ² < 1; got d = {dim}, γ_w = {gamma_w:g}, "
            f"γ_σ² = {gamma_variance:g}. Lower the variance."
        )
    return distance


def recovery_time(dim: int, gamma_w: float, gamma_variance: float, spectrum: Sequence[float]) -> float:
    """The gradient time at which Theorem 2 promises recovery of A*, without its O(d log log d).

        (Δ/a_K + 2 max(1, 2Δ)/c + max(1, 2Δ)/(2a_K)) d log d,   Δ = 1 − γ_σ² − γ_w,
        c = min|a_k − a_j| a_K² / max|a_k² − a_j²| over pairs with a_k ≠ a_j.

    It is an upper bound; `leading_time` is what is seen. c is undefined for K = 1 and for
    equal a_i, where there is no pair to take it over: that is refused.
    """
    distance = _check_active(dim, gamma_w, gamma_variance)
    values = sorted(spectrum, reverse=True)
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :] if a != b]
    if not pairs or not all(0 < value < math.inf for value in values):
        raise SaddlesError.must_be(
            "spectrum", "two different positive a_i at least, for Theorem 2's constant c(a_1..a_K)", list(spectrum),
            "Use leading_time, which needs a_K alone",
        )  # fmt: skip
    smallest = values[-1]
    c = min(a - b for a, b in pairs) * smallest**2 / max(a**2 - b**2 for a, b in pairs)
    factor = distance / smallest + 2 * max(1, 2 * distance) / c + max(1, 2 * distance) / (2 * smallest)
    return factor * dim * math.log(dim)


def leading_time(dim: int, gamma_w: float, gamma_variance: float, spectrum: Sequence[float]) -> float:
    """Δ/(4a_K) · d log d: when the weakest signal mode has grown from σ²w to a_K d.

    A lazy mode grows at the rate 4a_K/d, from σ²w = d^{1−Δ} to d.
    """
    distance = _check_active(dim, gamma_w, gamma_variance)
    if not len(spectrum) or not all(0 < value < math.inf for value in spectrum):
        raise SaddlesError.must_be("spectrum", "positive numbers a_1..a_K", list(spectrum))
    return distance / (4 * min(spectrum)) * dim * math.log(dim)
