"""The tensors of a model's attention heads, from a live model, a state dict or a checkpoint, in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.probe import find_layout
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import Factor, Layout

KEPT = 8
"""Tensors in memory at a time: four weights and four biases of a layer."""


def as_array(tensor: Any) -> np.ndarray:
    """A tensor of any library in float64."""
    if hasattr(tensor, "detach"):  # of torch, which has types that NumPy has not
        tensor = tensor.detach().cpu().double().numpy()
    return np.asarray(tensor, dtype=float)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Tensors by name, in float64; those read last are kept, as the heads of a layer share them."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], object]
    layout: Layout
    kept: dict[str, np.ndarray] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.kept:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[name] = as_array(self.read(name))
            if not np.isfinite(self.kept[name]).all():
                raise SaddlesError(f"{name} holds numbers that are not finite. Did the training diverge?")
        return self.kept[name]

    def cut(self, factor: Factor) -> np.ndarray:
        """A factor of a head, d × d_h."""
        return np.asarray(factor.cut(self[factor.parameter]), dtype=float)

    def bias(self, factor: Factor) -> np.ndarray | None:
        """The part of a projection's bias that belongs to a factor; None where there is none."""
        name = factor.parameter.removesuffix("weight") + "bias"
        if name not in self.shapes or factor.index is not None:
            return None
        part = factor.rows if factor.transposed else factor.columns
        return self[name] if part is None else self[name][part[0] : part[1]]

    def gram(self, factor: Factor, biased: bool) -> np.ndarray:
        """WᵀW, with the bias as a further row of W."""
        weight = self.cut(factor)
        bias = self.bias(factor) if biased else None
        return weight.T @ weight + (0.0 if bias is None else np.outer(bias, bias))


def opened(source: object, config: Config | None) -> HeadWeights:
    """The heads of a torch module, a state dict, or a checkpoint as `saddles.probe.inspect` takes."""
    if isinstance(source, Mapping):
        tensors = {str(name).removeprefix("module."): value for name, value in source.items()}
        shapes = {name: tuple(np.shape(value)) for name, value in tensors.items()}
        return HeadWeights(shapes, tensors.__getitem__, find_layout(shapes, config))
    from saddles.probe.weights.checkpoints import open_weights
    from saddles.probe.weights.live_model import heads

    weights = open_weights(source)  # pyright: ignore[reportArgumentType]  (it says what it takes)
    if weights.model is not None:
        return HeadWeights(weights.shapes, weights.read, heads(weights.model))
    return HeadWeights(weights.shapes, weights.read, find_layout(weights.shapes, {**weights.config, **(config or {})}))


def both(start: object, end: object, config: Config | None) -> tuple[Layout, HeadWeights, HeadWeights]:
    """One model at two times, and where its heads lie."""
    first, last = opened(start, config), opened(end, config)
    # A state dict does not tell what acts between the factors; a model and a checkpoint's config.json do.
    told = [one.layout for source, one in ((start, first), (end, last)) if not isinstance(source, Mapping)]
    layout = with_heads(next((one for one in (*told, first.layout, last.layout) if one.heads), first.layout))
    for name in layout.head_parameters():
        one, other = first.shapes.get(name), last.shapes.get(name)
        if one != other or one is None:
            raise SaddlesError(
                f"`start` and `end` must be one model at two times; {name} has the shape {one} in one and {other} "
                "in the other."
            )
    return layout, first, last


def with_heads(layout: Layout) -> Layout:
    """The layout, where it has heads that are products of two factors; an error says why not."""
    if not layout.heads:
        why = f" ({layout.skipped[0][0]}: {layout.skipped[0][1]})" if layout.skipped else ""
        raise SaddlesError(
            f"No attention heads were found{why}. Give the number of heads with config={{'num_attention_heads': …}}, "
            "or register an adapter (saddles.probe.register)."
        )
    if chained := next((head for head in layout.heads if head.is_chained), None):
        raise SaddlesError(
            f"{chained.attention} reads keys and values from a latent: its factors are products of two matrices, for "
            "which these laws do not hold. saddles.probe.spectra measures its ranks."
        )
    return layout
