"""Work on a GPU that is captured once as a CUDA graph and then replayed.

A training step is about a thousand small kernels: launched one by one, those of the diffusion paper's network take
29 ms on an H200, which then waits for most of the time. A graph launches all of them at once. Inputs are copied to
fixed places before each replay, so what a step sees is still a function of its number.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

WARM_UPS = 3
"""Runs before the capture, in which libraries choose their kernels; PyTorch's documentation advises 3 (11 for DDP)."""

Work = Callable[..., Tensor]
"""A function of tensors of fixed shapes."""


class Replay:
    """A function of tensors of fixed shapes, captured; its result is overwritten by the next call.

    Args:
        work: the function; it may write to tensors that live on, such as weights.
        examples: inputs of the shapes to come.
        kept: tensors that the capture must leave as they are.
        fresh: lists tensors that `work` creates when it first runs, such as the moments of an optimiser; those that
            the capture created are set to 0, their value before the first step.
    """

    def __init__(
        self,
        work: Work,
        examples: Sequence[Tensor],
        kept: Sequence[Tensor] = (),
        fresh: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.inputs = [example.clone() for example in examples]
        # Warm-ups and capture really take steps: what they change is put back, also after a capture that failed.
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

    def _capture(self, work: Work) -> None:
        # Warm-ups run on a stream of their own: work on the default stream must not mix with a capture.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), _without_remarks():
            for _ in range(WARM_UPS):
                work(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = work(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Copy the inputs and replay."""
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        self.graph.replay()
        return self.result


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """No warnings of torch about itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*capturable")  # AdamW wonders why it is not captured yet
        warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # how torch 2.11 compiles a loss
        yield


def captured(work: Work, examples: Sequence[Tensor], optimiser: torch.optim.Optimizer | None = None) -> Work:
    """`work` as a CUDA graph, or itself, with a warning, where it cannot be captured.

    Args:
        examples: inputs of the shapes to come.
        optimiser: the one that `work` steps; its weights and its state are left as they were.
    """

    def state() -> list[Tensor]:
        rows = () if optimiser is None else optimiser.state.values()
        return [value for row in rows for value in row.values() if isinstance(value, Tensor)]

    groups = () if optimiser is None else optimiser.param_groups
    weights = [weight for group in groups for weight in group["params"]]
    try:
        return Replay(work, examples, [*weights, *state()], state)
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        warnings.warn(f"training continues without a CUDA graph, several times slower ({why})", stacklevel=3)
        return work
