"""Memory layout that XLA does not choose well by itself."""

from typing import Any

import jax


def transposed(matrix: Any) -> Any:
    """The transpose, written out in memory before it is used.

    XLA on a CPU folds a transpose into the product that uses it, and that product then takes
    about twice as long (measured at 200 × 400 in float64).
    """
    return jax.lax.optimization_barrier(matrix.T)
