"""Experts of a mixture: stored one by one or as one parameter of three axes, adapted as one parameter.

transformers runs the experts of a layer as one tensor (expert, out, in), or (expert, in, out) where the module says
`is_transposed`, and stores them one by one for most families. PEFT adapts such a tensor through `target_parameters`:
lora_A holds (expert, rank, in) and lora_B (out, rank, expert), each as a matrix. All experts of a tensor have one rank.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from saddles.probe.weights.checkpoints import ALL, Weights

KINDS = {"experts": False, "experts_in_out": True}
"""Kinds of modules with fused experts -> whether their matrices are stored as (in, out)."""


def kind_of(module: torch.nn.Module) -> str | None:
    """Whether a module holds fused experts, and how."""
    fused = [p for p in module.parameters(recurse=False) if p.ndim == 3]
    if not fused or "expert" not in type(module).__name__.lower():
        return None
    return "experts_in_out" if getattr(module, "is_transposed", False) else "experts"


def _converters(model: torch.nn.Module) -> list[tuple[list[str], str]]:
    """How names of single experts become that of one tensor, as transformers says: sources in order, and the target."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # an older transformers, which runs experts as it stores them
        return []
    found = []
    for one in get_model_conversion_mapping(model):  # pyright: ignore[reportArgumentType]
        steps = [(type(step).__name__, getattr(step, "dim", None)) for step in getattr(one, "operations", ())]
        if steps in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)]):
            found.append((list(one.source_patterns), str(one.target_patterns[0])))
    return found


def fused(weights: Weights, model: torch.nn.Module | None) -> Weights:
    """The same weights, experts that are stored one by one under the name of the tensor that the model runs."""
    if model is None or weights.model is not None:
        return weights
    stacks: dict[str, dict[int, dict[int, str]]] = {}
    for sources, target in _converters(model):
        for place, source in enumerate(sources):
            pattern = re.compile(re.escape(source).replace(r"\*", r"(\d+)") + "$")
            for name in weights.shapes:
                hit = pattern.search(name)
                if hit:
                    stacks.setdefault(name[: hit.start()] + target, {}).setdefault(int(hit[1]), {})[place] = name
    if not stacks:
        return weights
    parts = {
        name: [[row[place] for place in sorted(row)] for _, row in sorted(rows.items())]
        for name, rows in stacks.items()
    }
    single = {part for rows in parts.values() for row in rows for part in row}
    shapes = {name: shape for name, shape in weights.shapes.items() if name not in single}
    types = {name: weights.types[name] for name in shapes}
    for name, rows in parts.items():
        height = sum(weights.shapes[part][0] for part in rows[0])
        shapes[name] = (len(rows), height, weights.shapes[rows[0][0]][1])
        types[name] = weights.types[rows[0][0]]

    return replace(weights, shapes=shapes, types=types, reader=partial(_read, weights, parts))


def _read(weights: Weights, parts: Mapping[str, list[list[str]]], name: str, rows: slice) -> Tensor:
    if name not in parts:
        return weights.read(name, rows)
    return torch.stack([torch.cat([weights.read(part) for part in row]) for row in parts[name][rows or ALL]])


def taken_by_peft(model: torch.nn.Module | None) -> tuple[str, ...]:
    """Endings of module names that PEFT takes for those of single experts and moves to the fused parameters.

    In these families a shared expert or a dense layer with such a name (`mlp.gate_proj`) is adapted as a parameter.
    """
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # without PEFT, or before it did so
        return ()
    families: dict[str, str] = getattr(conversion, "_MODEL_TO_CONVERSION_PATTERN", {})
    mappings: dict[str, dict[str, str]] = getattr(conversion, "_MOE_TARGET_MODULE_MAPPING", {})
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    return tuple(f".{name}" for name in mappings.get(families.get(kind, ""), ()))


def places(parameters: Sequence[str], shapes: Mapping[str, object]) -> dict[str, str]:
    """Where PEFT puts the factors of each adapted parameter: it wraps a module once for each, the last outermost.

    Args:
        parameters: full names of all that are adapted.
        shapes: all tensors of the model, in the order in which its modules declare them.
    """
    by_module: dict[str, list[str]] = {}
    for name in (name for name in shapes if name in set(parameters)):
        by_module.setdefault(name.rpartition(".")[0], []).append(name)
    return {
        name: module + ".base_layer" * (len(names) - 1 - depth)
        for module, names in by_module.items()
        for depth, name in enumerate(names)
    }


def as_matrices(inner: Sequence[Tensor], outer: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """lora_A (expert·rank, in) and lora_B (out, rank·expert) from A (rank, in) and B (out, rank) of each expert."""
    return torch.cat(list(inner)), torch.stack(list(outer), dim=-1).flatten(1)
