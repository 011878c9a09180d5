"""What an adapter costs in quality: loss, or divergence from the tuned model, of base + adapter on a text.

The model is the tuned one with W₀ + BA in its adapted modules and the base's numbers in what the adapter leaves out.
"""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.ranks import Rule, Sized
from saddles.probe.lora.running import model_of, tokens_of
from saddles.probe.lora.truncation import Truncation

Evaluation = str | os.PathLike[str] | Tensor | Callable[[torch.nn.Module], float]
"""A text file, token ids (block, token), or a function of the model that gives a loss."""


@dataclass(frozen=True)
class Measured:
    """The quality of one model.

    Attributes:
        what: base, tuned, or the rank or rule of base + adapter.
        parameters: of the adapter.
        value: the loss, or where the model is not a causal language model KL(tuned ‖ model) per token.
    """

    what: str
    parameters: int
    value: float


class Judge:
    """Measures base + adapter for any ranks."""

    def __init__(self, truncation: Truncation, sized: Sequence[Sized], keep: set[str]) -> None:
        """Args: `keep` names tensors that the adapter holds whole, which stay the tuned model's."""
        pairs, early, late = truncation.pairs, truncation.early, truncation.late
        self._pairs, self._early, self._sized = pairs, early, sized
        self.tuned = model_of(late)
        self.model = copy.deepcopy(self.tuned)
        with torch.no_grad():
            for names, _ in pairs.others:
                if names.model not in keep and names.base is not None and names.model not in pairs.skeleton.tied:
                    self._set(names.model, early.read(names.base))
        most = {t.module: int((one.squares > 0).sum()) for t, one in zip(pairs.targets, sized, strict=True)}
        self._factors = {target.module: found for target, found in truncation.factors(most)}
        self._late, self._keep = late, keep

    def _set(self, name: str, values: Tensor) -> None:
        parameter = self.model.get_parameter(name)
        if parameter.shape == values.shape:  # a grown vocabulary stays the tuned model's
            parameter.data.copy_(values)

    def with_ranks(self, ranks: Sequence[int], biases: bool) -> torch.nn.Module:
        """base + adapter; `biases` of adapted modules are carried, too."""
        with torch.no_grad():
            for target, rank in zip(self._pairs.targets, ranks, strict=True):
                assert target.weight.base is not None
                weight = self._early.read(target.weight.base).double()
                parts = self._factors.get(target.module)
                if parts is not None and rank:
                    products = [one.left[:, :rank] @ one.right[:rank] for one in parts]
                    weight = weight + (torch.stack(products) if target.experts else products[0])
                self._set(target.weight.model, weight)
                bias = target.bias
                if bias is not None and bias.base and bias.tuned:
                    carried = bias.model in self._keep or (biases and rank)
                    self._set(bias.model, self._late.read(bias.tuned) if carried else self._early.read(bias.base))
        return self.model


def measure_of(
    evaluate: Evaluation, tuned: torch.nn.Module, places: Sequence[str], causal: bool
) -> Callable[[torch.nn.Module], float]:
    """A function of a model: its loss, or its divergence from the tuned model."""
    if not isinstance(evaluate, str | os.PathLike | Tensor):
        return lambda model: float(evaluate(model))
    blocks = (
        tokens_of(evaluate, places, tuned)
        if not isinstance(evaluate, Tensor)
        else evaluate.reshape(-1, evaluate.shape[-1])
    )
    with torch.no_grad():
        wanted = [] if causal else [_logits(tuned, block).log_softmax(-1) for block in blocks]

    def value(model: torch.nn.Module) -> float:
        total = 0.0
        with torch.no_grad():
            for at, block in enumerate(blocks):
                logits = _logits(model, block)
                if causal:
                    total += float(torch.nn.functional.cross_entropy(logits[0, :-1], block[1:]))
                else:
                    apart = wanted[at].exp() * (wanted[at] - logits.log_softmax(-1))
                    total += float(apart.sum(-1).mean())
        return total / len(blocks)

    return value


def _logits(model: torch.nn.Module, block: Tensor) -> Tensor:
    found: Any = model(block[None])
    logits = getattr(found, "logits", None)
    return (found.start_logits if logits is None else logits).float()


def check_loss(rule: Rule, loss: float | None, evaluate: Evaluation | None) -> None:
    """Refuse a loss that cannot be measured or has no meaning, or that comes with another rule."""
    if loss is None:
        return
    if evaluate is None:
        raise SaddlesError("`loss` needs `evaluate` (--eval): a text on which it is measured.")
    if not loss > 0:
        raise SaddlesError.must_be("loss", "positive: what the adapter may lose", loss)
    if rule != Rule():
        raise SaddlesError("`loss` decides the ranks by itself. Give it without `energy`, `budget` and the like.")


def smallest_within(sized: Sequence[Sized], value: Callable[[list[int]], float], most: float) -> list[int]:
    """The fewest ranks, with one threshold on σ, whose value is at most `most`; by bisection on their number."""
    squares = [one.squares for one in sized]
    largest = np.sort(np.concatenate(squares))[::-1]
    largest = largest[largest > 0]

    def ranks_of(number: int) -> list[int]:
        return [int(np.count_nonzero(one >= largest[number - 1])) for one in squares]

    low, high = 0, len(largest)
    reached = value(ranks_of(high))
    if reached > most:
        raise SaddlesError(
            f"Even with full ranks base + adapter reaches {reached:.4g}, above {most:.4g}. The rest is in tensors that "
            "no rank carries: hold them whole with `save_modules` (--save-modules), or allow a larger loss."
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if value(ranks_of(middle)) <= most else (middle, high)
    return ranks_of(high)
