"""Exact log-scale coordinates of the gradient flow of β = u ⊙ v.

With g = −∂L/∂β the flow reads u' = v⊙g, v' = u⊙g. The sum p = u+v grows as p' = p⊙g and the
difference q = u−v as q' = −q⊙g, so with S(t) = ∫₀ᵗ g

    p = p₀ e^S,   q = q₀ e^{−S},   β = ¼(p₀² e^{2S} − q₀² e^{−2S}),   S' = g(β(S)),

and u²−v² = p₀q₀ is conserved by construction. This is mirror flow of the hyperbolic entropy,
2S + log|p₀/q₀| = asinh(2β/|p₀q₀|). S is of order log(1/α) where β is of order α², and only
log|p₀|, log|q₀| are stored: an initialisation of 1e-1000 is as good as one of 1e-1.

Paper: Boix-Adserà et al., Transformers learn through gradual rank increase, (4)–(7).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike

Vector = Float[np.ndarray, "coordinate"]
"""One number for each coordinate."""

Shifts = Float[np.ndarray, "*time coordinate"]
"""S, β or the like, at one instant or many."""


@dataclass(frozen=True, eq=False)
class LogScale:
    """Coordinates of u ⊙ v that start at given log|p₀| and log|q₀|.

    Args:
        log_p: log|u(0)+v(0)|, shape (coordinate,); −inf is legal (p = 0 for ever).
        log_q: log|u(0)−v(0)|, likewise.
        sign_p, sign_q: signs of u(0)±v(0); they never change and do not matter for β.
    """

    log_p: Vector
    log_q: Vector
    sign_p: Vector
    sign_q: Vector

    @classmethod
    def from_weights(cls, u: ArrayLike, v: ArrayLike, log_alpha: float = 0.0, exponents: ArrayLike = 1.0) -> "LogScale":
        """Coordinates of u(0) = α^a u₀, v(0) = α^a v₀.

        Args:
            u, v: u₀ and v₀, shape (coordinate,).
            log_alpha: log α, any negative number (0 leaves the weights as they are).
            exponents: a, one number or one per coordinate.
        """
        first, second = np.asarray(u, dtype=float), np.asarray(v, dtype=float)
        if first.shape != second.shape or first.ndim != 1:
            raise SaddlesError(
                f"`u` and `v` must be two vectors of one length; got shapes {first.shape} and {second.shape}."
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise SaddlesError("`u` and `v` must be finite; got NaN or infinity.")
        if not np.isfinite(log_alpha):
            raise SaddlesError.must_be("log_alpha", "finite", log_alpha, "Give log α of a small α, not α itself")
        # log|α^a p₀| = a log α + log|p₀| is never exponentiated again on its own: α itself may be 1e-1000.
        total, gap = first + second, first - second
        scale = np.broadcast_to(np.asarray(exponents, dtype=float) * log_alpha, first.shape)
        with np.errstate(divide="ignore"):
            return cls(scale + np.log(np.abs(total)), scale + np.log(np.abs(gap)), np.sign(total), np.sign(gap))

    @classmethod
    def balanced(cls, signs: ArrayLike) -> "LogScale":
        """The limit α → 0 inside one orthant: β = ¼ s e^{2 s S}, which never changes sign."""
        # u = v gives q = 0, log q = −∞: the term of the other sign never exists. |p| = 1 is a choice of the zero of S.
        side = np.asarray(signs, dtype=float)
        with np.errstate(divide="ignore"):
            return cls(np.log(side > 0), np.log(side < 0), np.ones_like(side), np.ones_like(side))

    @property
    def size(self) -> int:
        """How many coordinates."""
        return len(self.log_p)

    def beta(self, shift: Shifts) -> Shifts:
        """β(S); infinite where a trial step overflows."""
        # Logarithms are added before they are exponentiated: e^{2 log p₀} and e^{2S} alone would under- and overflow.
        # Where p² and q² are alike their difference cancels, for a large start to nothing: there it is written as
        # ½|p₀q₀| sinh(2S + log|p₀/q₀|).
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # −∞ + ∞ where p₀ = q₀ = 0
            between = 2 * shift + (self.log_p - self.log_q)
            alike = 0.5 * np.exp(self.log_p + self.log_q) * np.sinh(between)
            apart = 0.25 * (np.exp(2 * (self.log_p + shift)) - np.exp(2 * (self.log_q - shift)))
        return np.where(np.abs(between) < 1, alike, apart)

    def slope(self, shift: Shifts) -> Shifts:
        """dβ/dS = ½(p² + q²) = √(4β² + p₀²q₀²)."""
        with np.errstate(over="ignore", under="ignore"):
            return 0.5 * (np.exp(2 * (self.log_p + shift)) + np.exp(2 * (self.log_q - shift)))

    def shift(self, beta: Shifts) -> Shifts:
        """S(β), the inverse; infinite where β lies outside what these coordinates reach."""
        # With c = |p₀q₀| the larger of p² and q² is e^size = 2|β| + √(4β² + c²), a sum of positive numbers; the formula
        # for the smaller one cancels. p = e^{size/2} gives S where β ≥ 0, q = e^{size/2} where β < 0. The maximum with
        # log c is for c so small that e^{log c} underflows and β = 0: there size is −∞ but p² = q² = c.
        log_c = self.log_p + self.log_q
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            size = np.logaddexp(np.log(2 * np.abs(beta)), np.log(np.hypot(2 * beta, np.exp(log_c))))
            upward = 0.5 * np.maximum(size, log_c) - self.log_p
            downward = self.log_q - 0.5 * np.maximum(size, log_c)
            return np.where(beta >= 0, upward, downward)

    def weights(self, shift: Shifts) -> tuple[Shifts, Shifts]:
        """The weights u and v at S (they underflow to 0 where they are below 1e-308)."""
        with np.errstate(over="ignore", under="ignore"):
            p = self.sign_p * np.exp(self.log_p + shift)
            q = self.sign_q * np.exp(self.log_q - shift)
        return 0.5 * (p + q), 0.5 * (p - q)
