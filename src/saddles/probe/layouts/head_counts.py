"""How many heads a block has: from the block itself, or from the configuration of its model."""

from collections.abc import Iterator, Mapping

Config = Mapping[str, object]
"""A model's configuration, as in config.json."""

COUNT_NAMES = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
_WIDTH_NAMES = ("head_dim", "attention_head_size")


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
    """The first of some numbers that the configuration states for this block."""
    for part in parts_of(block, config):
        # Cross-attention is called decoder.…encoder_attn in BART: the side it belongs to comes first.
        sides = sorted((side for side in ("encoder", "decoder") if side in block), key=block.index)
        side = [f"{side}_{name}" for side in sides for name in names]
        for name in (*side, *names):
            if isinstance(number := part.get(name), int) and number > 0 and not isinstance(number, bool):
                return number
    return None


def parts_of(block: str, config: Config) -> Iterator[Config]:
    """The parts of a configuration that may speak of a block, the closest first."""
    named = {key: part for key, part in config.items() if key.endswith("_config") or key in ("encoder", "decoder")}
    inner = {key.removesuffix("_config"): part for key, part in named.items()}
    inner = {word: part for word, part in inner.items() if isinstance(part, Mapping)}
    yield from (part for word, part in inner.items() if word in block)
    yield config
    if "text" in inner:
        yield inner["text"]
