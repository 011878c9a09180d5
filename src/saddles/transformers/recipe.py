"""How a model is trained: optimiser, schedule, batch, length."""

import math
from dataclasses import dataclass
from typing import Any

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Args:
        optimiser: "adam" (PyTorch's defaults, no weight decay) or "sgd" (no momentum).
        rate: the highest learning rate.
        steps: how many.
        warm_up: steps of linear growth from 0.
        decay: "cosine" (one cycle to 0) or "linear" (to 0), from the end of the warm-up.
        accumulate: parts that a batch is split into, to save memory; the gradient is the same.
    """

    optimiser: str
    rate: float
    steps: int
    warm_up: int = 0
    decay: str = "cosine"
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.optimiser not in ("adam", "sgd"):
            raise SaddlesError.about(f"optimiser={self.optimiser!r} came", "adam and sgd are known", "use one of them")
        if self.decay not in ("cosine", "linear"):
            raise SaddlesError.about(f"decay={self.decay!r} came", "cosine and linear are known", "use one of them")
        if self.rate <= 0 or self.steps < 1 or not 0 <= self.warm_up <= self.steps or self.accumulate < 1:
            raise SaddlesError.about(
                f"rate={self.rate}, steps={self.steps}, warm_up={self.warm_up}, accumulate={self.accumulate} came",
                "the rate is positive, and a warm-up is no longer than the run",
                "check the numbers",
            )

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return self.rate * (0.5 * (1 + math.cos(math.pi * done)) if self.decay == "cosine" else 1 - done)

    def build(self, parameters: Any, fused: bool) -> Any:
        """The optimiser."""
        import torch

        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.rate, fused=fused)
        return torch.optim.SGD(parameters, lr=self.rate)
