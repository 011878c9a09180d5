"""The closed form of a mode that starts aligned with the observation."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def aligned_mode(
    t: Float[Array, ""] | float,
    start: Float[Array | np.ndarray, "*mode"],
    target: Float[Array | np.ndarray, "*mode"] | float,
    threshold: Float[Array, ""] | float,
    pace: Float[Array, ""] | float,
) -> Float[Array, "*mode"]:
    """Solve s' = pace √(s²+σ⁴w²) (s* − s) in closed form, for targets s* ≥ 0, which singular values are.

    With x = e^θ and s = σ²w sinh θ the equation reads x' = −½ pace σ²w (x − y)(x + 1/y), where y belongs to s*. So
    (x − y)/(x + 1/y) decays as e = exp(−pace √(s*²+σ⁴w²) t), for ½ σ²w (y + 1/y) = √(s*²+σ⁴w²). Solved for x,

        x(t) = (a + b x)/(a/y + b),   a = 1 − e,   b = e (1 + 1/y²)/(x + 1/y),

    with x on the right at the start: sums of positive numbers, so nothing cancels.
    """
    (x, more), (y, far) = _exponential(start / threshold), _exponential(target / threshold)
    rate = pace * jnp.hypot(target, threshold) * t
    a, b = -jnp.expm1(-rate), jnp.exp(-rate) * (1 + y**-2) / (x + 1 / y)
    top, bottom = a + b * x, a / y + b
    # 2 sinh θ is top/bottom − bottom/top. Far below σ²w both are alike, and s is in x − 1 and y − 1 alone.
    return threshold / 2 * ((a * (far / y) + b * more) / bottom) * (1 + bottom / top)


def _exponential(ratio: Float[Array | np.ndarray, "*mode"] | float) -> tuple[Float[Array, "*mode"], ...]:
    """e^θ and e^θ − 1 of sinh θ, with all their digits on both sides of 0."""
    size = jnp.abs(ratio)
    # e^|θ| = |r| + √(1 + r²), and √(1 + r²) − 1 = r²/(1 + √(1 + r²)): a product of positive numbers for small r, too.
    more = size * (1 + size / (1 + jnp.hypot(size, 1.0)))  # e^|θ| − 1
    up = ratio >= 0
    return jnp.where(up, 1 + more, 1 / (1 + more)), jnp.where(up, more, -more / (1 + more))
