"""A model that is given as a LoRA adapter on a base: W₀ + scale·BA, formed row by row in float64 when it is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.match import canonical
from saddles.probe.lora.peft_files import CONFIG, PREFIX, ROWS, WEIGHTS
from saddles.probe.lora.skeleton import skeleton_of
from saddles.probe.lora.stored import Adapter, Pair, open_adapter
from saddles.probe.weights.checkpoints import Source, Weights, open_weights
from saddles.probe.weights.quantised import dequantised

TIMES = " + "
"""Between a base and an adapter in the name of a place."""


def is_adapter(source: Source) -> bool:
    """Whether a source is a folder with an adapter and no model."""
    return (
        isinstance(source, str | os.PathLike)
        and (Path(source) / CONFIG).is_file()
        and (Path(source) / WEIGHTS).is_file()
        and not any(file.name != WEIGHTS for file in Path(source).glob("*.safetensors"))
    )


def open_model(source: Source, base: Weights | None = None) -> Weights:
    """Open a model, or an adapter on the base that its config names; where that is not here, on the base given."""
    if not is_adapter(source):
        return dequantised(open_weights(source))
    assert not isinstance(source, torch.nn.Module)
    adapter = open_adapter(source)
    named = adapter.config.get("base_model_name_or_path")
    if base is None or (named and Path(str(named)).is_dir() and str(named) != base.place and base.model is None):
        if not named or not Path(str(named)).exists():
            raise SaddlesError(
                f"{source} is an adapter on {named or 'a base that it does not name'}, which is not here. Put the path "
                f"of its base into {CONFIG} as base_model_name_or_path."
            )
        base = dequantised(open_weights(str(named)))
    return with_adapter(base, adapter)


def with_adapter(base: Weights, adapter: Adapter) -> Weights:
    """The weights of a base with an adapter on it; the base is read when they are."""
    skeleton = skeleton_of(base, base)
    homes = canonical(base, skeleton)
    pairs: dict[str, Pair] = {}
    turned: set[str] = set()
    for module, pair in adapter.pairs.items():
        name = module.removeprefix(PREFIX)
        stored = homes.get(f"{name}.weight")
        out, inside = pair.outer.shape[0], pair.inner.shape[1]
        conv1d = skeleton.kinds.get(name) == "conv1d"
        if stored is None or base.shapes[stored] != ((inside, out) if conv1d else (out, inside)):
            raise SaddlesError(f"{adapter.place} adapts {name} of {out}×{inside}, which {base.place} does not have.")
        pairs[stored] = pair
        if conv1d:
            turned.add(stored)
    added: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    rows: dict[str, tuple[Tensor, Tensor]] = {}
    for name, tensor in adapter.others.items():
        plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
        if plain.endswith(".lora_B.bias"):
            bias = plain.replace(".lora_B.bias", ".bias")
            added[homes.get(bias, bias)] = tensor
        elif plain.endswith(ROWS):
            module = plain.removesuffix(ROWS)
            stored = homes.get(f"{module}.weight")
            index = _tokens(adapter, module)
            if stored is None or (*tensor.shape,) != (len(index), base.shapes[stored][1]):
                raise SaddlesError(f"{adapter.place} adapts tokens of {module} that do not fit {base.place}.")
            if not all(0 <= one < base.shapes[stored][0] for one in index):
                raise SaddlesError(f"{adapter.place} adapts token {max(index)}, which {base.place} does not have.")
            rows[stored] = torch.tensor(index), tensor
        else:
            whole[homes.get(plain, plain)] = tensor

    kinds = {name: str(t.dtype).removeprefix("torch.") for name, t in whole.items()}
    exact = dict.fromkeys([*pairs, *added, *rows], "float64")
    return replace(
        base,
        place=f"{base.place}{TIMES}{adapter.place}",
        shapes={**base.shapes, **{name: tuple(t.shape) for name, t in whole.items()}},
        types={**base.types, **kinds, **exact},
        reader=partial(_read, base, _Applied(pairs, turned, added, whole, rows)),
        model=None,
    )


def _tokens(adapter: Adapter, module: str) -> list[int]:
    """The tokens whose rows an adapter holds for an embedding, in the order of its rows."""
    table = adapter.config.get("trainable_token_indices")
    if isinstance(table, Mapping):
        table = next((index for name, index in table.items() if f".{module}".endswith(f".{name}")), None)
    if not isinstance(table, list) or not table or any(type(one) is not int for one in table):
        raise SaddlesError(f"{adapter.place} does not say which tokens it adapts (trainable_token_indices).")
    return table


@dataclass(frozen=True, eq=False)
class _Applied:
    """What an adapter does to tensors of a base, by their names there: factors, sums, replacements, of rows as well."""

    pairs: dict[str, Pair]
    turned: set[str]
    added: dict[str, Tensor]
    whole: dict[str, Tensor]
    rows: dict[str, tuple[Tensor, Tensor]]


def _read(base: Weights, adapter: _Applied, name: str, rows: slice) -> Tensor:
    if name in adapter.whole:
        tensor = adapter.whole[name]
        return tensor[rows] if tensor.ndim else tensor
    start = base.read(name, rows)
    if name in adapter.rows:
        index, values = adapter.rows[name]
        first, last, _ = rows.indices(base.shapes[name][0])
        here = (index >= first) & (index < last)
        return start.double().index_copy(0, index[here] - first, values[here].double())
    if name in adapter.added:
        return start.double() + adapter.added[name][rows].double()
    if name not in adapter.pairs:
        return start
    pair = adapter.pairs[name]
    inner, outer = pair.inner.double(), pair.scale * pair.outer.double()
    return start.double() + (inner.T[rows] @ outer.T if name in adapter.turned else outer[rows] @ inner)


def same_base(early: Weights, late: Weights) -> bool:
    """Whether two models share the numbers of a base, so that their difference has no rounding."""
    return TIMES in f"{early.place}{late.place}" and early.place.split(TIMES)[0] == late.place.split(TIMES)[0]
