"""The largest eigenvalues of many small symmetric matrices at once, by matrix products alone."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def top_eigenvalue(grams: Float[Array, "*batch n n"]) -> Float[Array, "*batch"]:
    """The largest eigenvalue of each positive semi-definite matrix; 0 where the matrix is 0.

    A matrix is squared until its powers weigh the first eigenvector alone: λ₁ ≈ tr(G P)/tr(P), P = G^(2^k). An
    eigenvalue (1 − δ)λ₁ has the weight e^(−δ 2^k) there, so the relative error is at most n/(e 2^k), and it is that
    large only where n eigenvalues are so close. k is the number of bits of a float's mantissa. A GPU takes as long
    for a thousand products as its eigensolver for a few matrices.
    """
    tiny = jnp.finfo(grams.dtype).tiny

    def scaled(power: Array) -> Array:
        return power / jnp.maximum(jnp.trace(power, axis1=-2, axis2=-1), tiny)[..., None, None]

    with jax.default_matmul_precision("highest"):
        bits = jnp.finfo(grams.dtype).nmant
        power = jax.lax.fori_loop(0, bits, lambda _, now: scaled(now @ now), scaled(grams))
        return jnp.einsum("...ij,...ji->...", grams, power)
