"""One update of a model: losses, gradients, optimiser; kernel by kernel, or all of it as one CUDA graph."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddles.training.device import mixed_precision
from saddles.training.graphs import Work, captured

Block = Callable[[], contextlib.AbstractContextManager[object]]
"""Opens a `with` block."""


@dataclass(frozen=True, eq=False)
class Update:
    """How an update is made.

    Args:
        losses: tensors of a batch, or of a part of it -> a loss, or several in a vector whose sum is minimised.
        optimiser: steps once per update.
        device: of the model.
        parts: that a batch is split into, to save memory; the gradient is that of their mean.
        apart: the block around all parts but the last, in which gradients are not exchanged between processes.
        clip: a gradient longer than this is shortened to it.
    """

    losses: Work
    optimiser: torch.optim.Optimizer
    device: torch.device
    parts: int = 1
    apart: Block = contextlib.nullcontext
    clip: float = math.inf

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Update once with the tensors of a batch, part after part; returns the mean losses, detached."""
        self.optimiser.zero_grad(set_to_none=True)
        each, total = len(tensors) // self.parts, torch.zeros((), device=self.device)
        for part in range(self.parts):
            with contextlib.nullcontext() if part == self.parts - 1 else self.apart():
                with mixed_precision(self.device, cached=False):
                    # Gradients add up over the parts: each counts as its share of the mean.
                    losses = self.losses(*tensors[part * each : (part + 1) * each]) / self.parts
                losses.sum().backward()
            total = total + losses.detach()
        if math.isfinite(self.clip):
            weights = [weight for group in self.optimiser.param_groups for weight in group["params"]]
            torch.nn.utils.clip_grad_norm_(weights, self.clip)
        self.optimiser.step()
        return total

    def captured(self, examples: Sequence[Tensor]) -> Work:
        """The same as a CUDA graph, for tensors of the shapes of the examples; weights and state stay as they are."""
        return captured(self, examples, self.optimiser)


def put_rate_on_device(optimiser: torch.optim.Optimizer) -> None:
    """Keep the learning rate beside the weights, where a graph reads it in every replay; float32, as kernels expect."""
    for group in optimiser.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device).clone()


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the steps to come, where the optimiser keeps it."""
    for group in optimiser.param_groups:
        kept = group["lr"]
        if isinstance(kept, Tensor) and kept.device == group["params"][0].device:
            kept.fill_(rate)
        else:  # a number, or what the checkpoint of a graph left on the host
            group["lr"] = rate
