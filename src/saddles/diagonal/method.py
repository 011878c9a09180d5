"""How a network of this lab is trained: its exact flow, or descent in its ordinary weights."""

import math
from dataclasses import dataclass, field
from typing import Any

from saddles.errors import SaddlesError
from saddles.protocols import AXIS
from saddles.solvers.methods import GradientDescent

SMALLEST = -300.0
"""log α below which weights are not held as ordinary numbers."""


def check_log_alpha(log_alpha: Any) -> None:
    """Refuse α ≥ 1 and what is not a number, also in a list."""
    if isinstance(log_alpha, list | tuple):
        for value in log_alpha:
            check_log_alpha(value)
    elif not (math.isfinite(log_alpha) and log_alpha < 0):
        raise SaddlesError.about(
            f"log_alpha={log_alpha!r} came (α = {_alpha(log_alpha)})",
            "α lies below 1, and its natural logarithm is passed",
            "α = 1e-32 is log_alpha=-32*math.log(10)",
        )


def _alpha(log_alpha: float) -> str:
    return f"{math.exp(log_alpha):.4g}" if log_alpha < 700 else "more than 1e300"


@dataclass(frozen=True)
class Flow:
    """Gradient flow from u(0), v(0) = α(u₀, v₀), in exact log-scale coordinates, plateaus crossed.

    Args:
        log_alpha: log α; any negative number, −2302.6 (α = 1e-1000) included; a list adds the axis `log_alpha`.
        until: rescaled time t / log(1/α) to stop at; None runs until every force has fallen to
            a thousandth of the largest at β = 0 (what is left is a thousand times slower), at most
            until 10,000 / max|g(0)|.
        tolerance: error of S = ∫g a step or a crossed plateau; the relative error of β is twice that.
        cross: False integrates plateaus step by step, to check the crossing.
        max_steps: most solver steps.
    """

    log_alpha: Any = field(metadata=AXIS)
    until: float | None = None
    tolerance: float = 1e-5
    cross: bool = True
    max_steps: int = 100_000

    def __post_init__(self) -> None:
        check_log_alpha(self.log_alpha)
        if self.until is not None and not (math.isfinite(self.until) and self.until > 0):
            raise SaddlesError.about(
                f"until={self.until!r} came", "a positive rescaled time is needed", "leave it out to run to rest"
            )
        if not 1e-9 <= self.tolerance <= 1e-2:
            raise SaddlesError.about(
                f"tolerance={self.tolerance!r} came",
                "it lies between 1e-9 (below, round-off of S decides) and 1e-2",
                "1e-5 is the default",
            )


@dataclass(frozen=True)
class Descent:
    """Gradient descent in u and v themselves, on the full batch or on random batches.

    Args:
        rate: learning rate η; gradient time is η × step.
        steps: how many.
        log_alpha: log α of the initial weights; they must be ordinary numbers (α ≥ 1e-130); a list adds an axis.
        batch: samples a step, drawn with replacement by the run's seed; None is all of them.
        save_every: save the start, every so many steps, and the last.
    """

    rate: float
    steps: int
    log_alpha: Any = field(default=-4.605170185988091, metadata=AXIS)
    batch: int | None = None
    save_every: int = 1

    def __post_init__(self) -> None:
        check_log_alpha(self.log_alpha)
        GradientDescent(self.rate, self.steps, self.save_every)
        if min(self.log_alpha if isinstance(self.log_alpha, list | tuple) else [self.log_alpha]) < SMALLEST:
            raise SaddlesError.about(
                f"log_alpha={self.log_alpha!r} came", f"descent holds weights down to e^{SMALLEST:g}", "use Flow"
            )
        if self.batch is not None and self.batch < 1:
            raise SaddlesError.about(f"batch={self.batch!r} came", "at least 1 sample is drawn", "None takes all")

    @property
    def plain(self) -> GradientDescent:
        """The same without what only this lab knows."""
        return GradientDescent(self.rate, self.steps, self.save_every)
