"""Find the heads of a model from names, shapes and a configuration."""

import re
from collections.abc import Collection, Mapping

from saddles.probe.layouts.adapters import Attention, Refused, Shapes, adapters
from saddles.probe.layouts.between import beside, is_normalised, is_rotary, mixed, turned_columns
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import Head, Layout, Module, factor_names, natural_order

_ATTENTION_WORDS = ("attn", "attention")
_LATENT_WORDS = ("kv_a_proj", "kv_b_proj", "q_a_proj", "q_b_proj")
"""Multi-head latent attention, as in DeepSeek v2 and v3."""
_EXPERTS = re.compile(r"(^|[._])experts\.[^.]+(\.weight)?$")
_PEFT_WORDS = (".base_layer.", ".lora_A.", ".lora_B.", ".lora_embedding_")


def find_layout(
    shapes: Shapes,
    config: Config | None = None,
    counts: Mapping[str, int] | None = None,
    norms: Collection[str] = (),
) -> Layout:
    """Find where the heads lie, by trying every registered adapter.

    Args:
        shapes: parameter name -> shape, of a live model or of a checkpoint.
        config: the model's configuration (`model.config.to_dict()` or config.json); only head counts and the rotary
            embedding are read from it.
        counts: module name -> number of heads, where modules know it themselves.
        norms: modules without parameters that are called norms, where a live model has some.

    What no adapter understands is listed under `skipped` with a reason; nothing here fails.
    """
    shapes = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}
    blocks, refused = _try_adapters(shapes, config or {}, counts or {})
    blocks.sort(key=lambda block: natural_order(block.name))
    heads: list[Head] = []
    for layer, block in enumerate(blocks):
        # Of latent attention the part without positions is measured.
        chained = any(factor.through for factor in block.heads[0].values())
        rotary, rest = is_rotary(config or {}, block.name) and not chained, beside(block, shapes)
        normalised = is_normalised(block, shapes, config or {}, norms)
        key = block.heads[0]["K"]
        turned = turned_columns(config or {}, block.name, key.shape(shapes[key.parameter])[1]) if rotary else (0, False)
        for head, factors in enumerate(block.heads):
            heads.append(Head(layer, head, factors, block.name, block.family, rotary, normalised, rest, *turned))
    turned = _conv1d(blocks, shapes)
    modules = tuple(
        Module(name, (shape[-2], shape[-1]), name in turned, expert=expert)
        for name, shape in sorted(shapes.items(), key=lambda row: natural_order(row[0]))
        for expert in (range(shape[0]) if _is_experts(name, shape) else [None] if _is_matrix(shape) else [])
    )
    return Layout(tuple(heads), modules, _skipped(shapes, tuple(heads), refused))


def _try_adapters(shapes: Shapes, config: Config, counts: Mapping[str, int]) -> tuple[list[Attention], dict[str, str]]:
    """Blocks that an adapter understood, and reasons for those that none did; the first adapter wins."""
    understood: dict[str, Attention] = {}
    refused: dict[str, str] = {}
    for adapter in adapters():
        for block in adapter(shapes, config, counts):
            if isinstance(block, Refused):
                # The reason of the first adapter is kept; a later one may still understand the block.
                refused.setdefault(block.name, block.reason)
            elif why := mixed(block, shapes):
                refused[block.name] = why
            else:
                understood.setdefault(block.name, block)
    return list(understood.values()), {name: reason for name, reason in refused.items() if name not in understood}


def _conv1d(blocks: list[Attention], shapes: Shapes) -> set[str]:
    """Matrices stored as (in, out): those of blocks that are, and the feed-forward part beside them."""
    turned = factor_names(
        Head(0, 0, factors, block.name, block.family) for block in blocks if block.conv1d for factors in block.heads
    )
    # The Conv1D of GPT-2 also holds the feed-forward matrices, which no adapter sees: known by their names, in the
    # same layer.
    around = {block.name.rpartition(".")[0] for block in blocks if block.conv1d}
    ends = ("c_fc.weight", "c_proj.weight", "c_attn.weight", "q_attn.weight")
    return turned | {
        name
        for name in shapes
        if name.endswith(ends) and any(name.startswith(f"{layer}." if layer else "") for layer in around)
    }


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and min(shape) > 1


def _is_experts(name: str, shape: tuple[int, ...]) -> bool:
    """A tensor that holds one matrix of every expert of a layer."""
    return len(shape) == 3 and min(shape[1:]) > 1 and bool(_EXPERTS.search(name))


def _skipped(shapes: Shapes, heads: tuple[Head, ...], refused: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    rows = sorted(refused.items(), key=lambda row: natural_order(row[0]))
    used = factor_names(heads)
    for name, shape in sorted(shapes.items(), key=lambda row: natural_order(row[0])):
        if name in used or any(name.startswith(f"{block}.") for block in refused):
            continue
        reason = _reason(name, shape)
        if reason:
            rows.append((name, reason))
    return tuple(rows)


def _reason(name: str, shape: tuple[int, ...]) -> str | None:
    if any(word in name for word in _PEFT_WORDS):
        return "part of a PEFT adapter: merge it first (merge_and_unload) to have its heads measured"
    if ".parametrizations." in name:  # of weight or spectral norm, for instance: the weight itself is no parameter
        return "a weight is computed from it: call torch.nn.utils.parametrize.remove_parametrizations first"
    if len(shape) < 2 or (min(shape) <= 1 and len(shape) == 2):
        return "a vector has no spectrum"
    if _is_experts(name, shape):
        return None
    if len(shape) > 2:
        return f"a tensor with {len(shape)} axes is not a matrix"
    if any(word in name for word in _LATENT_WORDS):
        return "latent attention of an unknown form: its ΔW alone is measured"
    if any(word in name.lower() for word in _ATTENTION_WORDS):
        return "looks like attention of an unknown structure: register an adapter (its ΔW alone is measured)"
    return None
