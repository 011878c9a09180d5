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
from typing import Any

import numpy as np

from saddles.errors import SaddlesError


@dataclass(frozen=True, eq=False)
class LogScale:
    """Coordinates of u ⊙ v that start at given log|p₀| and log|q₀|.

    Args:
        log_p: log|u(0)+v(0)|, shape (coordinate,); −inf is legal (p = 0 for ever).
        log_q: log|u(0)−v(0)|, likewise.
        sign_p, sign_q: signs of u(0)±v(0); they never change and do not matter for β.
    """

    log_p: np.ndarray
    log_q: np.ndarray
    sign_p: np.ndarray
    sign_q: np.ndarray

    @classmethod
    def from_weights(cls, u: Any, v: Any, log_alpha: float = 0.0, exponents: Any = 1.0) -> "LogScale":
        """Coordinates of u(0) = α^a u₀, v(0) = α^a v₀.

        Args:
            u, v: u₀ and v₀, shape (coordinate,).
            log_alpha: log α, any negative number (0 leaves the weights as they are).
            exponents: a, one number or one a coordinate.
        """
        first, second = np.asarray(u, dtype=float), np.asarray(v, dtype=float)
        if first.shape != second.shape or first.ndim != 1:
            raise SaddlesError.about(
                f"u and v of shapes {first.shape} and {second.shape} came",
                "two vectors of one length are needed",
                "flatten them",
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all() and np.isfinite(log_alpha)):
            raise SaddlesError.about(
                f"weights with NaN or infinity, or log_alpha={log_alpha!r}, came",
                "finite numbers are needed",
                "pass the logarithm of a small α, not α itself",
            )
        total, gap = first + second, first - second
        scale = np.broadcast_to(np.asarray(exponents, dtype=float) * log_alpha, first.shape)
        with np.errstate(divide="ignore"):
            return cls(scale + np.log(np.abs(total)), scale + np.log(np.abs(gap)), np.sign(total), np.sign(gap))

    @classmethod
    def balanced(cls, signs: Any) -> "LogScale":
        """The limit α → 0 inside one orthant: β = ¼ s e^{2 s S}, which never changes sign."""
        side = np.asarray(signs, dtype=float)
        with np.errstate(divide="ignore"):
            return cls(np.log(side > 0), np.log(side < 0), np.ones_like(side), np.ones_like(side))

    @property
    def size(self) -> int:
        """How many coordinates."""
        return len(self.log_p)

    def beta(self, shift: np.ndarray) -> np.ndarray:
        """β(S), shape of `shift` (…, coordinate); infinite where a trial step overflows."""
        with np.errstate(over="ignore", under="ignore"):
            return 0.25 * (np.exp(2 * (self.log_p + shift)) - np.exp(2 * (self.log_q - shift)))

    def slope(self, shift: np.ndarray) -> np.ndarray:
        """dβ/dS = ½(p² + q²) = √(4β² + p₀²q₀²)."""
        with np.errstate(over="ignore", under="ignore"):
            return 0.5 * (np.exp(2 * (self.log_p + shift)) + np.exp(2 * (self.log_q - shift)))

    def shift(self, beta: np.ndarray) -> np.ndarray:
        """S(β), the inverse; infinite where β lies outside what these coordinates reach."""
        log_c = self.log_p + self.log_q
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            size = np.logaddexp(np.log(2 * np.abs(beta)), np.log(np.hypot(2 * beta, np.exp(log_c))))
            upward = 0.5 * np.maximum(size, log_c) - self.log_p
            downward = self.log_q - 0.5 * np.maximum(size, log_c)
            return np.where(beta >= 0, upward, downward)

    def weights(self, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """U and v at S (they underflow to 0 where they are below 1e-308)."""
        with np.errstate(over="ignore", under="ignore"):
            p = self.sign_p * np.exp(self.log_p + shift)
            q = self.sign_q * np.exp(self.log_q - shift)
        return 0.5 * (p + q), 0.5 * (p - q)
