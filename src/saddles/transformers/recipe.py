"""How a model is trained: optimiser, schedule, length."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Args:
        optimiser: "adam" (PyTorch's defaults, no weight decay) or "sgd" (no momentum).
        rate: the highest learning rate.
        steps: how many.
        warm_up: steps of linear growth from 0.
        decay: "cosine" (half a cycle, to 0) or "linear" (to 0), from the end of the warm-up.
        accumulate: parts that a batch is split into, to save memory; the gradient is the same.
        clip: a gradient longer than this is shortened to it; infinite leaves all as they are.
    """

    optimiser: str
    rate: float
    steps: int
    warm_up: int = 0
    decay: str = "cosine"
    accumulate: int = 1
    clip: float = math.inf

    def __post_init__(self) -> None:
        for name, right, what in (
            ("optimiser", self.optimiser in ("adam", "sgd"), "'adam' or 'sgd'"),
            ("decay", self.decay in ("cosine", "linear"), "'cosine' or 'linear'"),
            ("rate", self.rate > 0, "positive"),
            ("steps", self.steps >= 1, "at least 1"),
            ("warm_up", 0 <= self.warm_up <= self.steps, f"between 0 and steps={self.steps}"),
            ("accumulate", self.accumulate >= 1, "at least 1"),
            ("clip", self.clip > 0, "positive"),
        ):
            if not right:
                raise SaddlesError.must_be(name, what, getattr(self, name))

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return self.rate * (0.5 * (1 + math.cos(math.pi * done)) if self.decay == "cosine" else 1 - done)

    def build(self, parameters: Iterable[nn.Parameter], fused: bool) -> torch.optim.Optimizer:
        """The optimiser; `fused` updates all weights in one kernel, on a GPU, and lets a CUDA graph do so."""
        if self.optimiser == "adam":
            # Capturable: the count of steps lies on the device, where a graph can advance it.
            return torch.optim.Adam(parameters, lr=self.rate, fused=fused, capturable=fused)
        return torch.optim.SGD(parameters, lr=self.rate, fused=fused or None)
