"""What the measures need of a network, whichever library it is written in: values, and derivatives both ways.

Parameters and outputs stay in the library's own form, and where they are: of a language model the outputs are the
largest arrays that there are, and sums over them are all that a measure needs. Outputs have one row for each sample.
`saddles.networks.torch_network` and `saddles.networks.jax_network` are the two that there are.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from saddles.errors import SaddlesError

Point = Any
"""Parameters, or a direction in parameter space, as the library holds them."""


Outputs = Any
"""(sample, output), as the library holds them; differences of two can be taken."""


class Pushed(NamedTuple):
    """Outputs and their derivative along a direction."""

    values: Outputs
    tangent: Outputs


@runtime_checkable
class Differentiable(Protocol):
    """A network on a batch of samples."""

    @property
    def samples(self) -> int:
        """How many there are."""
        ...

    @property
    def memory_errors(self) -> tuple[type[Exception], ...]:
        """What the library raises where memory runs out (and perhaps elsewhere: `out_of_memory` tells)."""
        ...

    def parameters(self, state: Any, name: str) -> Point:
        """Parameters out of what a user gives, checked; `name` is the argument's, for messages."""
        ...

    def values(self, at: Point, rows: slice) -> Outputs:
        """f(x; θ) of some samples."""
        ...

    def push(self, at: Point, along: Point, rows: slice) -> Pushed:
        """f(x; θ) and J(x; θ) v: one Jacobian-vector product."""
        ...

    def pull(self, at: Point, weights: np.ndarray, rows: slice) -> Point:
        """Jᵀ u: one backward pass; u is given on the host."""
        ...

    def joined(self, blocks: list[Outputs]) -> Outputs:
        """The outputs of several blocks of samples."""
        ...

    def dot(self, one: Outputs, other: Outputs) -> float:
        """The sum of products of two arrays of outputs, in double precision."""
        ...

    def array(self, values: Outputs) -> np.ndarray:
        """Outputs on the host, in double precision."""
        ...

    def rounded(self, at: Point) -> Point:
        """θ with an error of rounding in each number, of the narrowest type that the network computes in."""
        ...

    def difference(self, end: Point, start: Point) -> Point:
        """θ − θ₀."""
        ...

    def plus(self, at: Point, along: Point, scale: float) -> Point:
        """θ + scale·v."""
        ...

    def norm(self, along: Point) -> float:
        """‖v‖ over all parameters."""
        ...


def out_of_memory(error: Exception) -> bool:
    """Whether a library's error says that memory ran out."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(
        text in words for text in ("out of memory", "resource_exhausted", "can't allocate memory", "not enough memory")
    )


def in_blocks(network: Differentiable, work: Callable[[slice], Any], rows: int | None = None) -> Iterator[Any]:
    """What `work` gives for all samples, block by block; blocks are halved where memory runs out.

    Args:
        rows: samples of the first block; None begins with all.
    """
    size, done = rows or network.samples, 0
    while done < network.samples:
        try:
            piece = work(slice(done, min(done + size, network.samples)))
        except (MemoryError, *network.memory_errors) as error:
            if not out_of_memory(error):
                raise
            if size == 1:
                raise SaddlesError(
                    "One sample alone does not fit into memory. Use a shorter sample, or a device with more memory."
                ) from error
            size = (size + 1) // 2
            continue
        yield piece
        done += size


def network_of(f: Any, start: object, batch: object) -> Differentiable:
    """The network in its library: a torch module, or else a JAX function f(parameters, batch)."""
    torch = sys.modules.get("torch")  # a module of torch can only come from a program that has imported it
    if torch is not None and isinstance(f, torch.nn.Module):
        from saddles.networks.torch_network import TorchNetwork

        return TorchNetwork.on(f, start, batch)
    if isinstance(f, type) or not callable(f):
        raise SaddlesError.must_be("f", "a torch.nn.Module or a function f(parameters, batch) of JAX", f)
    from saddles.networks.jax_network import JaxNetwork

    return JaxNetwork.on(f, start, batch)  # pyright: ignore[reportArgumentType]  (callable; it checks what comes back)
