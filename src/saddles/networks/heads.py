"""Attention heads at the start and at the end of a training: what gradient flow keeps, and how active a head is.

A head has the products A = W_K W_Qᵀ and W_V W_Oᵀ of factors d × d_h. The measures need one QR of 2 d_h columns for each
factor, and no d × d matrix is formed.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures.factored import change_spectrum, product_spectrum, spectrum
from saddles.networks.head_weights import HeadWeights, as_array, both, opened, with_heads
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import PRODUCTS, Head, Layout

DEPENDENT = 1e-10
"""Relative size of what counts as 0 where columns of a factor depend on each other."""

_BETWEEN = re.compile("gate|norm", re.IGNORECASE)
"""Parameters of a block that act between values and outputs, and so break what flow keeps of them."""

BIASED = {"K": True, "Q": True, "V": True, "O": False}
"""Whether the bias of a projection is a further row of its factor: what W_O adds is not part of a head's product."""


def invariants(start: object, end: object, config: Config | None = None) -> xr.Dataset:
    """What gradient flow keeps of every head, and by how much it has moved.

    Under any loss that sees a head through its products alone, gradient flow keeps C_KQ = W_KᵀW_K − W_QᵀW_Q and
    C_VO = W_VᵀW_V − W_OᵀW_O (d_h × d_h). With biases it keeps them with a row for the bias: b_K b_Kᵀ − b_Q b_Qᵀ and
    b_V b_Vᵀ are added. Where queries share a key, the sum over the group is kept. A rotary embedding between keys and
    queries leaves less of C_KQ: the trace over each pair of columns that turns together, and all of it among columns
    that do not turn; where it is not known which columns turn, the trace of the whole is taken. Steps of finite size
    break it by about the rate; Adam and clipping by value break it outright; weight decay λ makes C fall as e^(−2λt).

    - `drift` (layer, head, product): ‖C − C₀‖/‖C₀‖, biases included, of what of C is kept;
    - `drift_without_bias`: the same of the weights alone;
    - `drift_of_change`: ‖C − C₀‖ over ‖ΔG₁‖ + ‖ΔG₂‖, the changes of its two terms: 0 where it is kept, 1 where the
      terms move as if there were no law;
    - `applies` (layer, head, product): False for keys and queries with a norm between them, and for values and outputs
      with a norm or a gate between them: then there is no such law, and the numbers are those of a head without it.

    Args:
        start: a torch module, a state dict (name -> tensor or array), or a checkpoint as `saddles.probe.inspect` takes.
        end: the same later.
        config: what a state dict does not tell, such as {"num_attention_heads": 12}.
    """
    layout, first, last = both(start, end, config)
    layers = layout.layers()
    rows: list[dict[str, float]] = []
    for head, product in _places(layout):
        kinds = PRODUCTS[product]
        early, late = (_laws(layers[head.layer], head, weights, kinds) for weights in (first, last))
        row = {}
        for name, at in (("drift", 0), ("drift_without_bias", 1)):
            row[name] = _ratio(
                _norm(late[at][0] - late[at][1] - early[at][0] + early[at][1]), _norm(early[at][0] - early[at][1])
            )
        moved = [late[0][side] - early[0][side] for side in (0, 1)]
        row["drift_of_change"] = _ratio(_norm(moved[0] - moved[1]), _norm(moved[0]) + _norm(moved[1]))
        row["applies"] = _is_lawful(head, product)
        rows.append(row)
    return _labelled(layout, rows)


def closure(start: object, end: object, config: Config | None = None) -> xr.Dataset:
    """How balanced a head is, what it remembers of its start, and how active its change is.

    Exactly, and at every width, (W_K W_Kᵀ)² = AAᵀ + W_K C W_Kᵀ with C = W_KᵀW_K − W_QᵀW_Q. With W_K = UR (QR),
    M = RRᵀ and G_Q = W_QᵀW_Q, all d_h × d_h:

    - `balance`: ‖M − (R G_Q Rᵀ)^½‖/‖M‖, 0 where W_K W_Kᵀ = √(AAᵀ) on its span. At the start of a d × d_h Gaussian head
      it is about ½‖C‖/‖G‖.
    - `memory`: ‖M − (R (G_Q + C₀) Rᵀ)^½‖/‖M‖, 0 under gradient flow, which keeps C: what it shows is noise, finite
      steps, Adam, decay. As in `invariants`, biases are counted in C, queries that share a key are summed, and of
      heads with a rotary embedding only what flow keeps of C is put back. NaN where a norm or a gate breaks the law.
    - `linearity`: ‖ΔW_K ΔW_Qᵀ‖/‖ΔA‖, the remainder of the change beyond what is linear in the factors, exactly.
    - `outside`: ‖(I − P_K) ΔA (I − P_Q)‖/‖ΔA‖, the share of the change outside the spans of the start's factors, which
      a lazy head cannot reach.
    - `outside_strength`: the largest singular value of that part of ΔA over the smallest of A₀, the d_h-th. Where the
      loss is a squared distance in A, gradient flow of a head with d_h < d learns a direction outside only if it is
      larger (`networks/narrow-head`); σ²d_h, the border of wide networks, is far below. NaN where A₀ has less rank.
    - `stable_rank`: of ΔA; `factor_change`: √(‖ΔW_K‖² + ‖ΔW_Q‖²) over that of the start's factors.

    `linearity`, `outside` and `stable_rank` are NaN where nothing changed. For VO read W_V and W_O in the place of W_K
    and W_Q. Biases are left out but for `memory`. Arguments as for `invariants`.
    """
    layout, first, last = both(start, end, config)
    layers = layout.layers()
    rows = []
    for head, product in _places(layout):
        kinds = PRODUCTS[product]
        early, late = ([weights.cut(head.factors[kind]) for kind in kinds] for weights in (first, last))
        laws = [_laws(layers[head.layer], head, weights, kinds)[0] for weights in (first, last)]
        forgotten = np.subtract(*laws[0]) - np.subtract(*laws[1])  # C₀ − C
        row = _closure(early[0], early[1], late[0], late[1], forgotten)
        rows.append(row if _is_lawful(head, product) else row | {"memory": float("nan")})
    return _labelled(layout, rows)


def _closure(
    key_0: np.ndarray, query_0: np.ndarray, key: np.ndarray, query: np.ndarray, forgotten: np.ndarray
) -> dict[str, float]:
    """All of it in the coordinates of one QR for each side: the triangle of [W₀, ΔW] has its norms and angles."""
    (key_0, moved), (query_0, turned) = _in_triangle(key_0, key), _in_triangle(query_0, query)
    key, query = key_0 + moved, query_0 + turned
    triangle = _triangle(key)
    square = triangle @ triangle.T
    # With nothing forgotten G_Q + C₀ is the Gram matrix of the keys, also where biases and groups are part of both.
    remembered = key.T @ key + forgotten
    roots = [_root(triangle @ inner @ triangle.T) for inner in (query.T @ query, remembered)]
    size = _norm(square)
    change = key @ turned.T + moved @ query_0.T  # nothing large cancels in it
    beyond = _outside(key_0, moved) @ _outside(query_0, turned).T
    return {
        "balance": _ratio(_norm(square - roots[0]), size),
        "memory": _ratio(_norm(square - roots[1]), size),
        "linearity": _ratio(_norm(moved @ turned.T), _norm(change)),
        "outside": _ratio(_norm(beyond), _norm(change)),
        "outside_strength": _strength(beyond, spectrum(key_0 @ query_0.T)[: key_0.shape[1]]),
        "stable_rank": _stable(spectrum(change)),
        "factor_change": _ratio(np.hypot(_norm(moved), _norm(turned)), np.hypot(_norm(key_0), _norm(query_0))),
    }


def _strength(beyond: np.ndarray, sizes: np.ndarray) -> float:
    """‖beyond‖ over the smallest of the singular values that a start of full rank has."""
    return _ratio(float(spectrum(beyond)[0]), float(sizes[-1])) if sizes[-1] > DEPENDENT * sizes[0] else float("nan")


def _in_triangle(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W₀ and ΔW as columns of the triangle of [W₀, ΔW]."""
    whole = _triangle(np.hstack([start, end - start]))
    return whole[:, : start.shape[1]], whole[:, start.shape[1] :]


def _outside(start: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """(I − P) ΔW, P the projection onto the columns of the start, both as `_in_triangle` gives them."""
    width, diagonal = start.shape[1], abs(np.diagonal(start))
    if diagonal.min() > DEPENDENT * diagonal.max():
        return moved[width:]  # the first rows are the span of the start
    # Columns that depend on each other, or are all 0 as W_O is at the start of some models, span less than their rows.
    basis, sizes, _ = np.linalg.svd(start, full_matrices=False)
    basis = basis[:, sizes > DEPENDENT * sizes[0]]
    return moved - basis @ (basis.T @ moved)


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
    now_at = opened(weights, config)
    layout, slopes = with_heads(now_at.layout), _gradients(weights, gradients)
    rows = []
    for head, product in _places(layout):
        pair = [head.factors[kind] for kind in PRODUCTS[product]]
        missing = next((factor.parameter for factor in pair if factor.parameter not in slopes), None)
        if missing is not None:
            raise SaddlesError(f"`gradients` has no {missing}. Give a gradient of every tensor of the heads.")
        now = [now_at.cut(factor) for factor in pair]
        slope = [np.asarray(factor.cut(slopes[factor.parameter])) for factor in pair]
        signs = [part / (np.abs(part) + epsilon) for part in slope]
        after = [(1 - rate * decay) * part - rate * sign for part, sign in zip(now, signs, strict=True)]
        step = change_spectrum(after[0], after[1], now[0], now[1])
        # A step of descent without its term of second order: G_K W_Qᵀ + W_K G_Qᵀ.
        plain = product_spectrum(np.hstack([slope[0], now[0]]), np.hstack([now[1], slope[1]]))
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


def _places(layout: Layout) -> list[tuple[Head, str]]:
    return [(head, product) for head in layout.heads for product in PRODUCTS]


def _is_lawful(head: Head, product: str) -> bool:
    """Whether flow keeps C: nothing between the factors of the product stops it."""
    if product == "KQ":
        return not head.normalised
    return not any(_BETWEEN.search(name) for name in head.beside)


def _laws(
    layer: list[Head], head: Head, weights: HeadWeights, kinds: tuple[str, str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The two terms of C with the bias and without it; the second is summed over heads that share the first."""
    one, other = kinds
    turned = head.rotary and kinds == PRODUCTS["KQ"]
    shared = [peer for peer in layer if peer.factors[one] == head.factors[one]]
    laws = []
    for biased in (True, False):
        first = weights.gram(head.factors[one], biased and BIASED[one])
        second = sum((weights.gram(peer.factors[other], biased and BIASED[other]) for peer in shared), 0 * first)
        laws.append((_kept_by_rotation(first, head), _kept_by_rotation(second, head)) if turned else (first, second))
    return laws


def _kept_by_rotation(gram: np.ndarray, head: Head) -> np.ndarray:
    """The part of a term of C_KQ that gradient flow keeps where a rotary embedding turns keys and queries.

    Scores depend on x W_K R W_Qᵀ y with rotations R of pairs of columns, each by an angle of its own. W_K → W_K B and
    W_Q → W_Q B^(−ᵀ) leave them as they are for every B that commutes with all R: a multiple of a rotation in each pair,
    and any matrix among the columns that do not turn. To each symmetric direction of B belongs a kept number,
    ⟨B, C⟩: the identity of each pair, which is its trace, and everything among the rest.
    """
    width = len(gram)
    if not head.turned:
        return np.trace(gram) / width * np.eye(width)
    half = np.arange(head.turned // 2)
    one, other = (2 * half, 2 * half + 1) if head.neighbours else (half, half + len(half))
    diagonal = np.diagonal(gram)
    kept = np.zeros_like(gram)
    kept[one, one] = kept[other, other] = (diagonal[one] + diagonal[other]) / 2
    kept[head.turned :, head.turned :] = gram[head.turned :, head.turned :]
    return kept


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix))


def _ratio(one: float, other: float) -> float:
    return float(one / other) if other > 0 else float("nan")


def _triangle(tall: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(tall, mode="r"))


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
