"""How the attention layer is trained: gradient flow on a clock that gets somewhere."""

import math
from dataclasses import dataclass

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class MarginFlow:
    """Gradient flow on the exponential loss, followed until the weights have a given norm.

    The field is divided by |c|, the ℓ2 norm of the coefficients of B_il: the path is that of gradient flow, `time` is
    ∫|c|dt, and log t is kept as `log_time`.

    Args:
        until_norm: Frobenius norm of W (ℓ2 norm of β) to stop at.
        tolerance: error a step, relative to the largest entry of the state (log-scale for a diagonal layer); None is
            1e-8, or 0.1/until_norm where that is less, for an error of S counts in the margins as often as β is large.
            Beyond norms of about 1e10 rounding of S decides, and a diagonal run ends with `max_steps`.
        per_decade: saved instants for each factor ten of the norm.
        max_steps: most solver steps.
    """

    until_norm: float = 1e5
    tolerance: float | None = None
    per_decade: int = 12
    max_steps: int = 50_000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.until_norm) and self.until_norm > 0):
            raise SaddlesError.about(
                f"until_norm={self.until_norm!r} came", "a positive norm of the weights is needed", "try 1e5"
            )
        if self.tolerance is not None and not 1e-12 <= self.tolerance <= 1e-3:
            raise SaddlesError.about(
                f"tolerance={self.tolerance!r} came", "it lies between 1e-12 and 1e-3", "leave it out"
            )
        if self.per_decade < 1 or self.max_steps < 1:
            raise SaddlesError.about(
                f"per_decade={self.per_decade!r}, max_steps={self.max_steps!r} came",
                "both are at least 1",
                "leave them out",
            )

    @property
    def error(self) -> float:
        """The tolerance that is used."""
        return min(1e-8, max(1e-12, 0.1 / self.until_norm)) if self.tolerance is None else self.tolerance
