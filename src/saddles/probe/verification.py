"""Check the heads that were found against what the model computes.

One forward pass is tapped below PyTorch's functions. For every block, the inputs of its projections times the factors
of the layout must be the queries, keys and values that enter its softmax, and what enters the output projection must be
what comes out of the heads. What agrees only with something in between is named:

- a bias, which is not part of a product;
- a norm of queries or keys (or of the heads' outputs): a factor per token and one per feature;
- a gate: the heads' outputs times numbers between 0 and 1;
- a norm of the latent from which keys, values or queries are read;
- a rotary embedding: agreement at position 0 alone, where it does nothing, or of the lengths of all vectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.layouts.forward_tap import Attended, ForwardTap, Seen
from saddles.probe.layouts.layout import Factor, Head, Layout
from saddles.probe.layouts.no_heads import need_heads
from saddles.probe.weights.live_model import heads as find_heads
from saddles.probe.weights.live_model import parameters, unwrapped

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
"""Largest relative error that counts as agreement: some hundred times that of the arithmetic."""
COARSE = 3e-2
"""The same for bfloat16 and float16, which have two to three digits."""
FEWEST = 6
"""Tokens below which a norm cannot be told from a wrong matrix: a fit would have as many numbers as the data."""
SWEEPS = 30
"""Alternations in the fit of a norm; it has converged to rounding after about ten."""
TINY = torch.finfo(torch.float64).tiny
"""Added to nothing; it keeps 0/0 from being NaN."""
KINDS = ("Q", "K", "V", "O")
RIGHT, WRONG, UNCONFIRMED = "right", "wrong", "unconfirmed"


@dataclass(frozen=True)
class _Check:
    """One factor of one block: what lies between, and the relative error that is left."""

    between: tuple[str, ...] = ()
    error: float = float("nan")
    positional: bool = False
    problem: str = ""


def verify(model: torch.nn.Module, inputs: object) -> xr.Dataset:
    """Compare the heads that are found in a model with its own queries, keys, values and head outputs.

    Args:
        model: run once, in evaluation mode and without gradients, as it is (its precision, its device).
        inputs: what it is called with: a mapping of keyword arguments, a tuple of arguments, or a tensor. Use at least
            six sequences of random tokens of equal length; their number must not equal their length.

    Returns `verdict` (layer): "right", "right up to a bias, a norm, …", "wrong" or "unconfirmed"; `detail` (layer), a
    sentence where it is not right; `error` (layer, factor), relative; and `positional` (layer), whether queries agree
    at position 0 alone, as with a rotary embedding.
    """
    return verify_layout(model, find_heads(model), inputs)


def verify_layout(model: torch.nn.Module, layout: Layout, inputs: object) -> xr.Dataset:
    """The same for a layout that was found before."""
    need_heads(layout)
    model = unwrapped(model)
    weights = parameters(model)
    blocks = layout.layers()
    outputs = [blocks[layer][0].factors["O"].parameter for layer in blocks]
    tap = ForwardTap({name: weights[name] for name in layout.head_parameters()}, outputs)
    _run(model, inputs, tap)
    rows = [
        _judge(_checks(heads, weights, tap.seen.get(output)))
        for heads, output in zip(blocks.values(), outputs, strict=True)
    ]
    return xr.Dataset(
        {
            "verdict": (("layer",), np.array([row[0] for row in rows])),
            "detail": (("layer",), np.array([row[1] for row in rows])),
            "error": (("layer", "factor"), np.array([[check.error for check in row[2]] for row in rows])),
            "positional": (("layer",), np.array([row[2][0].positional for row in rows])),
        },
        coords={
            "layer": list(blocks),
            "factor": list(KINDS),
            "attention": ("layer", [heads[0].attention for heads in blocks.values()]),
        },
        attrs={"skipped": [f"{name}: {reason}" for name, reason in layout.skipped]},
    )


def _run(model: torch.nn.Module, inputs: object, tap: ForwardTap) -> None:
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        keywords = {str(name): value for name, value in inputs.items()}
    elif isinstance(inputs, Tensor):
        arguments = (inputs,)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, str):
        arguments = tuple(inputs)
    else:
        raise SaddlesError.must_be("inputs", "a mapping of arguments, a tuple of them, or a tensor", inputs)
    training, fast = model.training, torch.backends.mha.get_fastpath_enabled()
    model.eval()
    # The fast path of torch's own encoder is one kernel in which nothing can be seen.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), tap:
            model(*arguments, **keywords)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(training)


def _judge(checks: Mapping[str, _Check]) -> tuple[str, str, list[_Check]]:
    rows = [checks[kind] for kind in KINDS]
    problems = [f"{kind}: {checks[kind].problem}" for kind in KINDS if checks[kind].problem]
    if any(row.problem and np.isnan(row.error) for row in rows):
        return UNCONFIRMED, "; ".join(dict.fromkeys(problem.partition(": ")[2] for problem in problems)), rows
    if problems:
        return WRONG, "; ".join(problems), rows
    between = dict.fromkeys(word for row in rows for word in row.between)
    where = [f"{kind} has {' and '.join(row.between)}" for kind, row in zip(KINDS, rows, strict=True) if row.between]
    return (f"{RIGHT} up to {', '.join(between)}" if between else RIGHT), "; ".join(where), rows


def _checks(heads: Sequence[Head], weights: Mapping[str, Tensor], seen: Seen | None) -> dict[str, _Check]:
    def all_of(problem: str) -> dict[str, _Check]:
        return dict.fromkeys(KINDS, _Check(problem=problem))

    if seen is None:
        return all_of("the block did not run, or its matrices are not applied as they are")
    if not seen.attended:
        return all_of("no softmax attention was seen; load the model with attn_implementation 'sdpa' or 'eager'")
    call = seen.attended[-1]
    if call.v is None or call.out is None:
        return all_of("no product of attention weights and values was seen")
    return {
        **{kind: _projection(kind, heads, weights, seen, call) for kind in "QKV"},
        "O": _output(heads, weights, seen, call),
    }


def _projection(kind: str, heads: Sequence[Head], weights: Mapping[str, Tensor], seen: Seen, call: Attended) -> _Check:
    """Queries, keys or values of a block against input times factor, and the latent before it, where there is one."""
    factor = heads[0].factors[kind]
    before = _latent(factor, weights, seen) if factor.through else _Check()
    if before.problem:
        return before
    check = _last_link(kind, heads, weights, seen, call)
    between = tuple(dict.fromkeys((*before.between, *check.between)))
    return replace(check, between=between, error=float(np.fmax(check.error, before.error)))


def _latent(factor: Factor, weights: Mapping[str, Tensor], seen: Seen) -> _Check:
    """What the last matrix of a chain is applied to, against the block's input times the one before."""
    link = factor.through
    assert link is not None
    given, latent = _input(link, seen), _input(factor, seen)
    if given is None or latent is None or len(given) != len(latent):
        return _Check(problem=f"{link.parameter} and {factor.parameter} were not applied to the same tokens")
    plain = (given.double() @ link.cut(weights[link.parameter]).detach().double())[:, None]
    if plain.shape[-1] != latent.shape[-1]:
        return _Check(problem=f"a latent has width {latent.shape[-1]}, and the layout {plain.shape[-1]}", error=1.0)
    check = _agree(latent[:, None].double(), plain, _bias([link], weights), latent.dtype)
    found = f"its latent differs by {check.error:.2g} from input times {link.parameter}"
    return replace(check, problem=found) if check.problem else check


def _last_link(kind: str, heads: Sequence[Head], weights: Mapping[str, Tensor], seen: Seen, call: Attended) -> _Check:
    factors = [head.factors[kind] for head in heads]
    given = _input(factors[0], seen)
    tapped = _with_heads({"Q": call.q, "K": call.k, "V": call.v}[kind], len(heads))
    if given is None:
        return _Check(problem=f"the matrix of {kind} was not applied before its attention")
    samples, number, tokens, width = tapped.shape
    if given.shape[0] != samples * tokens:
        return _Check(problem=f"attention sees {samples * tokens} tokens of {kind}, and {given.shape[0]} are projected")
    if len(heads) % number:
        return _Check(problem=f"attention has {number} heads, and the layout {len(heads)}", error=1.0)
    # With grouped queries a fused kernel takes each key head once: the layout has it once per query head.
    factors = factors[:: len(heads) // number]
    parts = torch.stack([factor.cut(weights[factor.parameter]).detach() for factor in factors])
    if heads[0].is_chained and parts.shape[-1] < width:
        tapped, width = tapped[..., : parts.shape[-1]], parts.shape[-1]  # a rotary part follows, which is left out
    if parts.shape[-1] != width:
        return _Check(problem=f"heads have width {width}, and the layout {parts.shape[-1]}", error=1.0)
    bias = _bias(factors, weights)
    best = _Check(error=1.0)
    for rows in _orders(given, samples, tokens):
        plain = torch.einsum("std,hdw->sthw", rows.double(), parts.double())
        real = tapped.permute(0, 2, 1, 3).double()
        for positional, keep in ((False, slice(None)), (True, slice(1))):
            check = _agree(real[:, keep].flatten(0, 1), plain[:, keep].flatten(0, 1), bias, tapped.dtype)
            if not check.problem:
                return _Check(check.between, check.error, positional)
            best = min(best, check, key=lambda one: one.error)
        # Positions need not begin at 0, nor be numbers: a rotation by anything keeps the length of every vector.
        error = _error(real.norm(dim=-1), (plain if bias is None else plain + bias).norm(dim=-1))
        if kind != "V" and error <= TOLERANCE.get(tapped.dtype, COARSE):
            return _Check(("a bias",) if bias is not None and bias.any() else (), error, True)
    return _Check(error=best.error, problem=f"differs by {best.error:.2g} from input times factor")


def _input(factor: Factor, seen: Seen) -> Tensor | None:
    """What the part of a matrix was applied to that holds a factor."""
    parts = seen.inputs.get(factor.parameter, {})
    begins = [row for row in parts if row <= (factor.rows[0] if factor.transposed and factor.rows else 0)]
    return parts[max(begins)] if begins else None


def _output(heads: Sequence[Head], weights: Mapping[str, Tensor], seen: Seen, call: Attended) -> _Check:
    """What enters the output projection against what comes out of the heads."""
    factors = [head.factors["O"] for head in heads]
    given = seen.inputs[factors[0].parameter][0]
    out = _with_heads(call.out, len(heads))
    samples, number, tokens, width = out.shape
    if number != len(heads) or given.shape[0] != samples * tokens:
        return _Check(problem=f"{number} heads come out of attention, and the layout has {len(heads)}", error=1.0)
    real = out.permute(0, 2, 1, 3).double().flatten(0, 1)
    best = _Check(error=1.0)
    ways = (way for rows in _orders(given, samples, tokens) for way in _entering(rows, factors, weights))
    for enters in ways:
        if enters.shape[-1] != width:
            return _Check(problem=f"heads have width {width}, and the layout {enters.shape[-1]}", error=1.0)
        check = _agree(enters.double().flatten(0, 1), real, None, given.dtype)
        if not check.problem:
            return check
        if _gated(enters.double().flatten(0, 1), real):
            return _Check(("a gate",), check.error)
        best = min(best, check, key=lambda one: one.error)
    acting = [name for name in heads[0].beside if "norm" in name or "gate" in name]
    if acting:
        return _Check(problem=f"{' and '.join(acting)} may act on the heads' outputs, which do not enter O as they are")
    return _Check(error=best.error, problem=f"differs by {best.error:.2g} from the heads' outputs")


def _entering(rows: Tensor, factors: Sequence[Factor], weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """What enters the output projection by heads, (sample, token, head, width)."""
    if factors[0].axis:  # one tensor (width, head, width of a head), whose last two axes torch.einsum may exchange
        shape = tuple(weights[factors[0].parameter].shape[1:])
        yield rows.unflatten(-1, shape)
        yield rows.unflatten(-1, shape[::-1]).transpose(-1, -2)
        return
    spans = [factor.rows if factor.transposed else factor.columns for factor in factors]
    yield torch.stack([rows[..., slice(*(span or (None,)))] for span in spans], dim=2)


def _with_heads(tensor: Tensor | None, heads: int) -> Tensor:
    """(sample, head, token, width), also where samples and heads were one axis."""
    assert tensor is not None
    one = tensor.ndim == 3 and tensor.shape[0] % heads == 0
    return tensor.reshape(-1, heads, *tensor.shape[-2:]) if one else tensor.reshape(-1, *tensor.shape[-3:])


def _orders(rows: Tensor, samples: int, tokens: int) -> Iterator[Tensor]:
    """Rows as (sample, token, width): libraries keep samples first or tokens first."""
    yield rows.reshape(samples, tokens, -1)
    if samples > 1 and tokens > 1:
        yield rows.reshape(tokens, samples, -1).transpose(0, 1)


def _bias(factors: Sequence[Factor], weights: Mapping[str, Tensor]) -> Tensor | None:
    """The biases of some heads, (head, width); None where there are none."""
    name = factors[0].parameter
    bias = weights.get(name.removesuffix("weight") + "bias")
    if bias is None or bias is weights[name]:
        return None
    spans = [factor.rows if factor.transposed else factor.columns for factor in factors]
    return torch.stack([bias.detach()[slice(*(span or (None,)))] for span in spans]).double()


def _agree(real: Tensor, plain: Tensor, bias: Tensor | None, dtype: torch.dtype) -> _Check:
    """Whether (token, head, width) arrays agree, up to a constant factor, and with what in between."""
    most = TOLERANCE.get(dtype, COARSE)
    shifted = plain if bias is None else plain + bias
    ways = [((), plain)] if bias is None or not bias.any() else [((), plain), (("a bias",), shifted)]
    errors = []
    for between, guess in ways:
        errors.append(_error(real, guess))
        if errors[-1] <= most:
            return _Check(between, errors[-1])
    between, guess = ways[-1]
    # Tokens that are all alike (learned queries, for instance) are a constant, which fits whatever the matrix is.
    varied = float((real - real.mean(0)).norm()) > most * float(real.norm())
    if len(real) >= FEWEST and varied:  # a constant that is added elsewhere, for instance with relative positions
        errors.append(_error(real - real.mean(0), guess - guess.mean(0)))
        if errors[-1] <= most:
            return _Check(("a bias",), errors[-1])
    for centred in (False, True) if len(real) >= FEWEST and varied else ():
        errors.append(_norm_error(real, guess, centred))
        if errors[-1] <= most:
            return _Check((*between, "a norm"), errors[-1])
    return _Check(error=min(errors), problem="differs")


def _error(real: Tensor, guess: Tensor) -> float:
    """‖real − c guess‖ / ‖real‖ with the best constant: libraries scale queries before or after the product."""
    scale = (real * guess).sum() / (guess * guess).sum().clamp_min(TINY)
    return float((real - scale * guess).norm() / real.norm().clamp_min(TINY))


def _norm_error(real: Tensor, guess: Tensor, centred: bool) -> float:
    """The same with a factor per token and head, and one per feature (with a shift, where centred), fitted in turn."""
    if centred:
        guess = guess - guess.mean(-1, keepdim=True)
    feature, shift = torch.ones_like(real[:1]), torch.zeros_like(real[:1])
    token = torch.ones_like(real[..., :1])
    for _ in range(SWEEPS):
        token = _slope(real - shift, feature * guess, -1)
        scaled = token * guess
        # With a shift the feature's factor is a slope about the means; without one both are zeros (`shift` stays 0).
        middle, height = (scaled.mean(0, keepdim=True), real.mean(0, keepdim=True)) if centred else (shift, shift)
        feature = _slope(real - height, scaled - middle, 0)
        shift = height - feature * middle
    return float((real - token * feature * guess - shift).norm() / real.norm().clamp_min(TINY))


def _slope(real: Tensor, guess: Tensor, axis: int) -> Tensor:
    """The factor of `guess` that is closest to `real`, along an axis."""
    return (real * guess).sum(axis, keepdim=True) / (guess * guess).sum(axis, keepdim=True).clamp_min(TINY)


def _gated(enters: Tensor, real: Tensor) -> bool:
    """Whether outputs enter times numbers between 0 and 1; tiny outputs, whose quotients are rounding, are left out."""
    sure = real.abs() > 1e-3 * real.abs().mean()
    ratio = (enters / torch.where(sure, real, torch.ones_like(real)))[sure]
    return bool(((ratio > 0) & (ratio < 1)).all())
