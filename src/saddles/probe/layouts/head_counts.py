"""How many heads a block has: from the block itself, or from the configuration of its model."""

import re
from collections.abc import Iterator, Mapping

Config = Mapping[str, object]
"""A model's configuration, as in config.json."""

COUNT_NAMES = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_WIDTH_NAMES = ("head_dim", "attention_head_size")
_KNOWN = {*COUNT_NAMES, *_WIDTH_NAMES, "num_key_value_heads", "pruned_heads", "n_head_kv", "num_kv_heads"}
"""Settings that speak of heads and are understood."""
NO_COUNT = "the number of heads is not known"
"""The reason why a block is skipped that no module and no setting speaks of."""
_ALSO_CALLED = {"vision": ("visual",), "text": ("language",)}
"""Words for a part of a model other than that of its configuration."""


def head_counts(block: str, config: Config, counts: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Number of query heads and, where it is stated, their width.

    Args:
        block: the block's name with its final dot, for instance "model.layers.0.self_attn.".
        config: parts of it such as vision_config or text_config serve the blocks that have that word in their names.
        counts: module -> number of heads, which modules of a live model carry themselves.
    """
    # A module that carries its own count knows better than the configuration, which may speak of another tower.
    own = block.rstrip(".")
    near = [number for module, number in counts.items() if module == own or module.startswith(block)]
    width = stated(block, config, _WIDTH_NAMES)
    if near:
        return near[0], width
    return stated(block, config, COUNT_NAMES), width


def stated(block: str, config: Config, names: tuple[str, ...]) -> int | None:
    """The first of some numbers that the configuration states for this block; of a list, that of its stage."""
    own = list(_own_parts(block, config))
    # What a tower does not state, another tower's number must not replace.
    for part in own or parts_of(block, config):
        # Cross-attention is called decoder.…encoder_attn in BART: the side it belongs to comes first.
        sides = sorted((side for side in ("encoder", "decoder") if side in block), key=block.index)
        side = [f"{side}_{name}" for side in sides for name in names]
        for name in (*side, *names):
            number = _of_stage(part.get(name), block)
            if isinstance(number, int) and number > 0 and not isinstance(number, bool):
                return number
    return None


def _of_stage(number: object, block: str) -> object:
    """The entry of a list for a block: Swin, Segformer and kin number their stages first, others their layers."""
    place = re.search(r"\.(\d+)\.", f".{block}.")
    if isinstance(number, list | tuple) and place:
        return number[int(place[1])] if int(place[1]) < len(number) else None
    return number


def is_plain(config: Config) -> bool:
    """Whether one count serves every block; else names alone may not tell which one is a block's."""
    heads = {str(key): value for key, value in config.items() if "head" in str(key)}
    parts = [part for part in config.values() if isinstance(part, Mapping)]
    towers = any("model_type" in part or any("head" in str(name) for name in part) for part in parts)
    return not towers and set(heads) <= _KNOWN and not any(isinstance(value, list) for value in heads.values())


def parts_of(block: str, config: Config) -> Iterator[Config]:
    """The parts of a configuration that may speak of a block, the closest first."""
    yield from _own_parts(block, config)
    yield config
    if isinstance(text := config.get("text_config"), Mapping):
        yield text


def _own_parts(block: str, config: Config) -> Iterator[Config]:
    """The parts of a configuration that have the block's word in their names."""
    for key, part in config.items():
        if isinstance(part, Mapping) and (key.endswith("_config") or key in ("encoder", "decoder")):
            word = key.removesuffix("_config")
            if any(one in block for one in (word, *_ALSO_CALLED.get(word, ()))):
                yield part
