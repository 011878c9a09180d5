"""Methods that several labs share: how a model is moved along its loss."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow θ' = −∇L(θ), integrated adaptively.

    Args:
        until: gradient time to stop at; None runs until the lab's criterion of
            convergence is met (its docstring states it) or `max_steps` is spent.
        rtol: relative error a step.
        stiff: use an implicit solver (small states only).
        max_steps: most solver steps in all.
    """

    until: float | None = None
    rtol: float = 1e-9
    stiff: bool = False
    max_steps: int = 100_000

    def __post_init__(self) -> None:
        if self.until is not None and not self.until > 0:
            raise SaddlesError.about(
                f"until={self.until!r} came", "a positive time is needed", "leave it out to run to convergence"
            )
        if not 0 < self.rtol < 1:
            raise SaddlesError.about(f"rtol={self.rtol!r} came", "it lies between 0 and 1", "1e-9 is the default")


@dataclass(frozen=True)
class GradientDescent:
    """Full-batch gradient descent θ ← θ − rate·∇L(θ), all parameters updated at once.

    Args:
        rate: learning rate; `time` on the trajectory is rate × step.
        steps: how many steps.
        save_every: save the start, every so many steps, and the last.
    """

    rate: float
    steps: int
    save_every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise SaddlesError.about(f"rate={self.rate!r} came", "a positive learning rate is needed", "try 0.1")
        if self.steps < 0 or self.save_every < 1:
            raise SaddlesError.about(
                f"steps={self.steps!r}, save_every={self.save_every!r} came",
                "steps is at least 0 and save_every at least 1",
                "leave save_every out",
            )

    def schedule(self, times: Any = None) -> tuple[int, int, np.ndarray]:
        """Steps to run, the stride that meets every asked step, and the asked steps.

        `times` are gradient times, each rounded to the nearest step.
        """
        if times is None:
            asked = np.unique(np.append(np.arange(0, self.steps + 1, self.save_every), self.steps))
            return self.steps, self.save_every, asked
        asked = np.unique(np.rint(np.asarray(times, dtype=float) / self.rate).astype(int))
        if asked[0] < 0 or asked[-1] > self.steps:
            raise SaddlesError.about(
                f"times up to {np.max(times):.4g} came",
                f"{self.steps} steps of {self.rate:.4g} reach {self.steps * self.rate:.4g}",
                "raise `steps`",
            )
        stride = int(np.gcd.reduce(asked)) or 1
        return int(asked[-1]), stride, asked
