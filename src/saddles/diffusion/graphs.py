"""Work on a GPU that is captured once as a CUDA graph and then replayed.

A training step of the paper's network is about a thousand small kernels: launched one by one they take 29 ms on an
H200, which then waits for most of the time. A graph launches all of them at once. Inputs are copied to fixed places
before each replay, so what a step sees is still a function of its number.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WARM = 3
"""Runs before the capture, in which libraries choose their kernels."""


class Replay:
    """A function of tensors of fixed shapes, captured; its result is overwritten by the next call.

    Args:
        work: the function; it may write to tensors that live on, such as weights.
        examples: inputs of the shapes to come.
        kept: tensors that the capture must leave as they are.
        fresh: lists tensors that `work` makes for itself when it first runs, such as the moments of an optimiser; those
            that were made by the capture are set to 0.
    """

    def __init__(
        self,
        work: Callable[..., Tensor],
        examples: Sequence[Tensor],
        kept: Sequence[Tensor] = (),
        fresh: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.inputs = [example.clone() for example in examples]
        before = [value.detach().clone() for value in kept]
        known = {id(value) for value in kept}
        try:
            self._capture(work)
        finally:
            with torch.no_grad():
                for value, old in zip(kept, before, strict=True):
                    value.copy_(old)
                for value in fresh():
                    if id(value) not in known:
                        value.zero_()

    def _capture(self, work: Callable[..., Tensor]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*capturable")  # AdamW wonders why it is not captured yet
            for _ in range(WARM):
                work(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = work(*self.inputs)

    def __call__(self, *inputs: Any) -> Tensor:
        """Copy the inputs and replay."""
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        self.graph.replay()
        return self.result
