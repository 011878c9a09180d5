"""How many heads a block has: from the block itself, or from the configuration of its model."""

from collections.abc import Iterator, Mapping

Config = Mapping[str, object]
"""A model's configuration, as in config.json."""

COUNT_NAMES = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_WIDTH_NAMES = ("head_dim", "attention_head_size")
_ROTARY_NAMES = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_pct", "rotary_dim", "rotary_emb_base")


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


def is_rotary(config: Config, block: str = "") -> bool:
    """Whether a rotary embedding sits between queries and keys."""
    for part in _parts(block, config):
        if part.get("position_embedding_type") == "rotary" or any(part.get(name) for name in _ROTARY_NAMES):
            return True
        if any(name in part for name in COUNT_NAMES):  # this part describes the block, and names no rotary embedding
            return False
    return False


def stated(block: str, config: Config, names: tuple[str, ...]) -> int | None:
    """The first of some numbers that the configuration states for this block."""
    for part in _parts(block, config):
        side = [f"{side}_{name}" for side in ("encoder", "decoder") if side in block for name in names]
        for name in (*side, *names):
            if isinstance(number := part.get(name), int) and number > 0 and not isinstance(number, bool):
                return number
    return None


def _parts(block: str, config: Config) -> Iterator[Config]:
    """The parts of a configuration that may speak of a block, the closest first."""
    inner = {key.removesuffix("_config"): part for key, part in config.items() if key.endswith("_config")}
    inner = {word: part for word, part in inner.items() if isinstance(part, Mapping)}
    yield from (part for word, part in inner.items() if word in block)
    yield config
    if "text" in inner:
        yield inner["text"]
