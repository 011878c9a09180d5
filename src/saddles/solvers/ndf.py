"""Variable-order backward differentiation in backward differences: what `core.mirror` and `core.stiff` share.

The numerical differentiation formulas (NDF) of orders 1 to 5 of Shampine and Reichelt, The MATLAB ODE Suite. Row k of
a table of differences is ∇ᵏy at the latest instant, for steps of one size.
"""

import numpy as np

ORDERS = 5
_KAPPA = np.array([0.0, -0.1850, -1 / 9, -0.0823, -0.0415, 0.0])
GAMMA = np.hstack([0.0, np.cumsum(1 / np.arange(1, ORDERS + 1))])
ALPHA = (1 - _KAPPA) * GAMMA
ERROR = _KAPPA * GAMMA + 1 / np.arange(1, ORDERS + 2)

NEWTON_ITERATIONS = 6
NEWTON_FRACTION = 0.05
"""The equation of a step is solved to this fraction of the tolerance."""


class StepError(RuntimeError):
    """No step is small enough: the force is not finite or not smooth here."""


def rescale(order: int, factor: float) -> np.ndarray:
    """The matrix that takes backward differences from step h to step factor·h."""
    i = np.arange(1, order + 1)[:, None]
    j = np.arange(1, order + 1)
    ratio = np.zeros((order + 1, order + 1))
    ratio[1:, 1:] = (i - 1 - factor * j) / i
    ratio[0] = 1
    return np.cumprod(ratio, axis=0)


def add_instant(table: np.ndarray, order: int, correction: np.ndarray) -> None:
    """Take a step into the table of differences: `correction` is ∇^(order+1)y at the new instant."""
    table[order + 2] = correction - table[order + 1]
    table[order + 1] = correction
    for i in reversed(range(order + 1)):
        table[i] += table[i + 1]


def safety(iterations: int) -> float:
    """A factor of the next step's size, the smaller the more iterations this one took."""
    return 0.9 * (2 * NEWTON_ITERATIONS + 1) / (2 * NEWTON_ITERATIONS + iterations)
