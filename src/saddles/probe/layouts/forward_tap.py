"""What attention really computes: projections, queries, keys, values and head outputs of one forward pass.

Everything is read below PyTorch's functions, where every library ends up: a product with a known weight (recognised by
its place in memory), a fused attention kernel, or a softmax between two batched products. Names of modules do not
matter.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Attended:
    """One call of attention: q, k, v and out as (sample, head, token, width), or with samples and heads as one axis."""

    q: Tensor
    k: Tensor
    v: Tensor | None = None
    out: Tensor | None = None
    weights: tuple[int, ...] = ()
    """Shape of the attention weights, where v and out are still to come."""


@dataclass
class Seen:
    """What one attention block did when it was first used.

    Args:
        inputs: parameter -> first row of a part of it -> what that part was applied to, (token, width). Most matrices
            are applied whole, from row 0; torch.nn.MultiheadAttention cuts its joint matrix where keys have their own
            input.
        attended: the calls of attention since the output projection before; usually one.
    """

    inputs: dict[str, dict[int, Tensor]]
    attended: list[Attended] = field(default_factory=list)


class ForwardTap(TorchDispatchMode):
    """Fills `seen` (output parameter -> what was seen) while a model runs inside `with`.

    Args:
        weights: parameter -> tensor, those that hold heads.
        outputs: which of them are output projections: the last matrix of a block.
    """

    def __init__(self, weights: Mapping[str, Tensor], outputs: Collection[str]) -> None:
        super().__init__()
        self.weights = dict(weights)
        self.outputs, self.seen = set(outputs), dict[str, Seen]()
        self._inputs: dict[str, dict[int, Tensor]] = {}
        self._copies: dict[int, tuple[str, Tensor]] = {}
        self._calls: list[Attended] = []
        self._products: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # as torch calls it
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("addmm", "mm", "linear"):
            self._project(args[-2:] if name != "linear" else args[:2])
        elif name.startswith("_scaled_dot_product"):
            self._fuse(args, result)
        elif name in ("bmm", "baddbmm"):
            if not self._project(args[-2:]):
                self._multiply(args[-2], args[-1], result)
        elif name == "clone":
            self._follow(args[0], result)
        elif name in ("_softmax", "_safe_softmax"):
            self._normalise(result)
        return result

    def _project(self, pair: tuple[Tensor, Tensor]) -> bool:
        """Note a product with a known weight; False where it is none."""
        given, weight = pair
        found = self._find(weight.data_ptr())
        if found is None:
            return False
        name, row = found
        # Row 0 begins a new use of the matrix: what parts of it saw in an earlier call is forgotten.
        if row == 0:
            self._inputs[name] = {}
        self._inputs.setdefault(name, {})[row] = given.detach().reshape(-1, given.shape[-1])
        if name in self.outputs:
            self.seen.setdefault(name, Seen({key: dict(parts) for key, parts in self._inputs.items()}, self._calls))
            self._calls, self._products = [], []
        return True

    def _follow(self, tensor: Tensor, copy: Tensor) -> None:
        """A copy of a whole weight, which torch.einsum makes of some, stands for it."""
        found = self._find(tensor.data_ptr())
        if found is not None and tensor.numel() == self.weights[found[0]].numel():
            self._copies[copy.data_ptr()] = (found[0], copy)  # kept, so that its place is not used again

    def _find(self, place: int) -> tuple[str, int] | None:
        """The known weight that lies at a place in memory, and the row at which it is entered."""
        if place in self._copies:
            return self._copies[place][0], 0
        for name, tensor in self.weights.items():
            rows, left = divmod(place - tensor.data_ptr(), tensor.element_size() * max(1, tensor.stride(0)))
            if 0 <= rows < tensor.shape[0] and left == 0:
                return name, rows
        return None

    def _fuse(self, args: tuple[Any, ...], result: Any) -> None:
        q, k, v = args[:3]
        out = result[0] if isinstance(result, tuple) else result
        if q.ndim == 4:
            self._calls.append(Attended(*(tensor.detach() for tensor in (q, k, v, out))))

    def _multiply(self, left: Tensor, right: Tensor, result: Tensor) -> None:
        waiting = self._calls[-1] if self._calls and self._calls[-1].v is None else None
        if waiting is not None and left.numel() == _size(waiting.weights) and left.shape[-1] == waiting.weights[-1]:
            before = waiting.weights[:-2]
            waiting.v = right.detach().reshape(*before, *right.shape[-2:])
            waiting.out = result.detach().reshape(*before, *result.shape[-2:])
        else:
            self._products.append((left.detach(), right.detach(), result))

    def _normalise(self, weights: Tensor) -> None:
        """A softmax: the last product of its shape gave the scores."""
        if weights.ndim not in (3, 4):
            return
        before, queries, keys = weights.shape[:-2], *weights.shape[-2:]
        for left, right, scores in reversed(self._products):
            # One key more than scores is a sink: a weight that goes nowhere.
            for count in (keys, keys - 1):
                shape = (*before, queries, count)
                if scores.numel() == _size(shape) and scores.shape[-2:] == shape[-2:]:
                    q = left.reshape(*before, *left.shape[-2:])
                    k = right.swapaxes(-1, -2).reshape(*before, right.shape[-1], right.shape[-2])
                    self._calls.append(Attended(q, k, weights=shape))
                    return


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
