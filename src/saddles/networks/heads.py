"""Attention heads at the start and at the end of a training: what gradient flow keeps, and how active a head is.

A head has the products A = W_K W_Qᵀ and W_V W_Oᵀ of factors d × d_h. The measures need Gram matrices of 2 d_h columns
at most: milliseconds for a head of 64 columns, 12 × 12 of them in seconds, and no d × d matrix is formed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures.factored import change_spectrum
from saddles.probe import find_layout
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import PRODUCTS, Factor, Head, Layout

BIASED = {"K": True, "Q": True, "V": True, "O": False}
"""Whether the bias of a projection is a further row of its factor: what W_O adds is not part of a head's product."""

KEPT = 8
"""Tensors in memory at a time: four weights and four biases of a layer."""


def invariants(start: object, end: object, config: Config | None = None) -> xr.Dataset:
    """What gradient flow keeps of every head, and by how much it has moved.

    Under any loss that sees a head through its products alone, gradient flow keeps C_KQ = W_KᵀW_K − W_QᵀW_Q and
    C_VO = W_VᵀW_V − W_OᵀW_O (d_h × d_h). With biases it keeps them with a row for the bias: b_K b_Kᵀ − b_Q b_Qᵀ and
    b_V b_Vᵀ are added. Where queries share a key, the sum over the group is kept. Steps of finite size break it by
    about the rate; Adam, weight decay and clipping by value break it outright.

    - `drift` (layer, head, product): ‖C − C₀‖/‖C₀‖, biases included;
    - `drift_without_bias`: the same of the weights alone;
    - `drift_of_change`: ‖C − C₀‖ over ‖ΔG₁‖ + ‖ΔG₂‖, the changes of its two terms: 0 where it is kept, 1 where the
      terms move as if there were no law;
    - `applies` (layer, head, product): False for keys and queries with a rotary embedding or a norm between them.

    Args:
        start: a torch module, a state dict (name -> tensor or array), or a checkpoint as `saddles.probe.inspect` takes.
        end: the same later.
        config: what a state dict does not tell, such as {"num_attention_heads": 12}.
    """
    layout, first, last = _both(start, end, config)
    rows: list[dict[str, float]] = []
    for head, product in _places(layout):
        one, other = PRODUCTS[product]
        early, late = (_laws(layout, head, weights, one, other) for weights in (first, last))
        row = {}
        for name, at in (("drift", 0), ("drift_without_bias", 1)):
            row[name] = _ratio(
                _norm(late[at][0] - late[at][1] - early[at][0] + early[at][1]), _norm(early[at][0] - early[at][1])
            )
        moved = [late[0][side] - early[0][side] for side in (0, 1)]
        row["drift_of_change"] = _ratio(_norm(moved[0] - moved[1]), _norm(moved[0]) + _norm(moved[1]))
        row["applies"] = product == "VO" or not (head.rotary or head.normalised)
        rows.append(row)
    return _labelled(layout, rows)


def closure(start: object, end: object, config: Config | None = None) -> xr.Dataset:
    """How balanced a head is, what it remembers of its start, and how active its change is.

    Exactly, and at every width, (W_K W_Kᵀ)² = AAᵀ + W_K C W_Kᵀ with C = W_KᵀW_K − W_QᵀW_Q. With W_K = UR (QR),
    M = RRᵀ and G_Q = W_QᵀW_Q, all d_h × d_h:

    - `balance`: ‖M − (R G_Q Rᵀ)^½‖/‖M‖, 0 where W_K W_Kᵀ = √(AAᵀ) on its span. At the start of a d × d_h Gaussian head
      it is about ½‖C‖/‖G‖.
    - `memory`: ‖M − (R (G_Q + C₀) Rᵀ)^½‖/‖M‖, 0 under gradient flow, which keeps C: what it shows is noise, finite
      steps, Adam, decay.
    - `linearity`: ‖ΔW_K ΔW_Qᵀ‖/‖ΔA‖, the remainder of the change beyond what is linear in the factors, exactly.
    - `outside`: ‖(I − P_K) ΔA (I − P_Q)‖/‖ΔA‖, the share of the change outside the spans of the start's factors, which
      a lazy head cannot reach.
    - `stable_rank`: of ΔA; `factor_change`: √(‖ΔW_K‖² + ‖ΔW_Q‖²) over that of the start's factors.

    `linearity`, `outside` and `stable_rank` are NaN where nothing changed. For VO read W_V and W_O in the place of W_K
    and W_Q. Biases are left out. Arguments as for `invariants`.
    """
    layout, first, last = _both(start, end, config)
    rows = []
    for head, product in _places(layout):
        one, other = (head.factors[kind] for kind in PRODUCTS[product])
        early = [first.cut(factor) for factor in (one, other)]
        late = [last.cut(factor) for factor in (one, other)]
        rows.append(_closure(early[0], early[1], late[0], late[1]))
    return _labelled(layout, rows)


def _closure(key_0: np.ndarray, query_0: np.ndarray, key: np.ndarray, query: np.ndarray) -> dict[str, float]:
    triangle = np.asarray(np.linalg.qr(key, mode="r"))
    memory = key_0.T @ key_0 - query_0.T @ query_0
    gram, square = query.T @ query, triangle @ triangle.T
    roots = [_root(triangle @ inner @ triangle.T) for inner in (gram, gram + memory)]
    size = _norm(square)
    moved, turned = key - key_0, query - query_0
    # ΔA = [ΔK, K₀][Q, ΔQ]ᵀ: nothing large cancels in it.
    change = _product_norm(np.hstack([moved, key_0]), np.hstack([query, turned]))
    spectrum = change_spectrum(key, query, key_0, query_0)
    beyond = _product_norm(_without(moved, key_0), _without(turned, query_0))
    return {
        "balance": _ratio(_norm(square - roots[0]), size),
        "memory": _ratio(_norm(square - roots[1]), size),
        "linearity": _ratio(_product_norm(moved, turned), change),
        "outside": _ratio(beyond, change),
        "stable_rank": _stable(spectrum),
        "factor_change": _ratio(np.hypot(_norm(moved), _norm(turned)), np.hypot(_norm(key_0), _norm(query_0))),
    }


def adam_start(
    weights: object,
    gradients: object,
    *,
    rate: float,
    decay: float = 0.0,
    epsilon: float = 1e-8,
    config: Config | None = None,
) -> xr.Dataset:
    """The first step of Adam, predicted from one gradient: how much of every head's product it moves, and its rank.

    Adam's first step is −η g/(|g| + ε), the sign of the gradient up to ε, so with S = g/(|g| + ε)

        ΔA = −η (S_K W_Qᵀ + W_K S_Qᵀ) + η² S_K S_Qᵀ,

    exactly, of rank at most 2 d_h; AdamW multiplies the weights by 1 − ηλ first.

    - `stable_rank` (layer, head, product): ‖ΔA‖_F²/‖ΔA‖² of that step;
    - `gradient_stable_rank`: of the first step of gradient descent, of which ΔA is linear in the rate;
    - `norm`: ‖ΔA‖_F.

    Args:
        weights: a torch module, a state dict, or a checkpoint.
        gradients: name -> gradient, of the loss at these weights; a module's own `.grad` where it is None.
        rate: η; `decay`: λ of AdamW; `epsilon`: ε.
        config: as for `invariants`.
    """
    if not rate > 0:
        raise SaddlesError.must_be("rate", "positive", rate)
    opened = _opened(weights, config)
    layout, slopes = _found(opened.layout), _gradients(weights, gradients)
    rows = []
    for head, product in _places(layout):
        pair = [head.factors[kind] for kind in PRODUCTS[product]]
        missing = next((factor.parameter for factor in pair if factor.parameter not in slopes), None)
        if missing is not None:
            raise SaddlesError(f"`gradients` has no {missing}. Give a gradient of every tensor of the heads.")
        now = [opened.cut(factor) for factor in pair]
        slope = [np.asarray(factor.cut(slopes[factor.parameter])) for factor in pair]
        signs = [part / (np.abs(part) + epsilon) for part in slope]
        after = [(1 - rate * decay) * part - rate * sign for part, sign in zip(now, signs, strict=True)]
        step = change_spectrum(after[0], after[1], now[0], now[1])
        small = 1e-6 * _norm(now[0]) / max(_norm(slope[0]), _norm(slope[1]), np.finfo(float).tiny)
        descent = [part - small * down for part, down in zip(now, slope, strict=True)]
        plain = change_spectrum(descent[0], descent[1], now[0], now[1])
        rows.append({"stable_rank": _stable(step), "gradient_stable_rank": _stable(plain), "norm": _norm(step)})
    return _labelled(layout, rows)


def _stable(values: np.ndarray) -> float:
    return _ratio(float(np.sum(values**2)), float(values[0] ** 2))


def _gradients(weights: object, gradients: object) -> dict[str, np.ndarray]:
    named = getattr(weights, "named_parameters", None)
    if gradients is None and named is not None:
        gradients = {name: part.grad for name, part in named() if part.grad is not None}
    if not isinstance(gradients, Mapping) or not gradients:
        raise SaddlesError.must_be("gradients", "a mapping of parameter names to gradients", gradients)
    return {str(name): as_array(value) for name, value in gradients.items()}


def as_array(tensor: Any) -> np.ndarray:
    """A tensor of any library in float64."""
    if hasattr(tensor, "detach"):  # of torch, which has types that NumPy has not
        tensor = tensor.detach().cpu().double().numpy()
    return np.asarray(tensor, dtype=float)


@dataclass(frozen=True, eq=False)
class _Weights:
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


def _opened(source: object, config: Config | None) -> _Weights:
    if isinstance(source, Mapping):
        tensors = {str(name).removeprefix("module."): value for name, value in source.items()}
        shapes = {name: tuple(np.shape(value)) for name, value in tensors.items()}
        return _Weights(shapes, tensors.__getitem__, find_layout(shapes, config))
    from saddles.probe.weights.checkpoints import open_weights
    from saddles.probe.weights.live_model import heads

    weights = open_weights(source)  # pyright: ignore[reportArgumentType]  (it says what it takes)
    if weights.model is not None:
        return _Weights(weights.shapes, weights.read, heads(weights.model))
    return _Weights(weights.shapes, weights.read, find_layout(weights.shapes, {**weights.config, **(config or {})}))


def _both(start: object, end: object, config: Config | None) -> tuple[Layout, _Weights, _Weights]:
    first, last = _opened(start, config), _opened(end, config)
    layout = _found(first.layout if first.layout.heads else last.layout)
    for name in layout.head_parameters():
        one, other = first.shapes.get(name), last.shapes.get(name)
        if one != other or one is None:
            raise SaddlesError(
                f"`start` and `end` must be one model at two times; {name} has the shape {one} in one and {other} "
                "in the other."
            )
    return layout, first, last


def _found(layout: Layout) -> Layout:
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


def _places(layout: Layout) -> list[tuple[Head, str]]:
    return [(head, product) for head in layout.heads for product in PRODUCTS]


def _laws(layout: Layout, head: Head, weights: _Weights, one: str, other: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The two terms of C with the bias and without it; the second is summed over heads that share the first."""
    shared = [peer for peer in layout.layers()[head.layer] if peer.factors[one] == head.factors[one]]
    laws = []
    for biased in (True, False):
        first = weights.gram(head.factors[one], biased and BIASED[one])
        second = sum((weights.gram(peer.factors[other], biased and BIASED[other]) for peer in shared), 0 * first)
        laws.append((first, second))
    return laws


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix))


def _ratio(one: float, other: float) -> float:
    return float(one / other) if other > 0 else float("nan")


def _product_norm(left: np.ndarray, right: np.ndarray) -> float:
    """‖L Rᵀ‖_F from the triangles of both: a square root of traces of Gram matrices would lose half of the digits."""
    first, second = (np.asarray(np.linalg.qr(side, mode="r")) for side in (left, right))
    return _norm(first @ second.T)


def _without(change: np.ndarray, start: np.ndarray) -> np.ndarray:
    """(I − P) ΔW, P the projection onto the columns of the start."""
    basis = np.linalg.qr(start)[0]
    rest = change - basis @ (basis.T @ change)
    return rest - basis @ (basis.T @ rest)  # once more: the first pass leaves rounding errors of the size of the change


def _root(matrix: np.ndarray) -> np.ndarray:
    """The square root of a symmetric matrix; negative eigenvalues, which C₀ can cause, count as 0."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _labelled(layout: Layout, rows: list[dict[str, Any]]) -> xr.Dataset:
    """Rows in the order of `_places` as (layer, head, product); heads that a layer lacks are NaN."""
    layers = layout.layers()
    most = max(len(heads) for heads in layers.values())
    shape = (len(layers), most, len(PRODUCTS))
    found = {name: np.full(shape, False if isinstance(rows[0][name], bool) else np.nan) for name in rows[0]}
    for (head, product), row in zip(_places(layout), rows, strict=True):
        place = (list(layers).index(head.layer), head.head, list(PRODUCTS).index(product))
        for name, value in row.items():
            found[name][place] = value
    axes = ("layer", "head", "product")
    coords = {"layer": list(layers), "head": np.arange(most), "product": list(PRODUCTS)}
    return xr.Dataset({name: (axes, values) for name, values in found.items()}, coords=coords)
