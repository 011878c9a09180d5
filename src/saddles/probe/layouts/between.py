"""What acts between the factors of a head and is not part of its products: rotary embeddings, norms, and the rest.

From names, shapes and the configuration alone, so it is a statement about known families; `saddles.probe.verify` sees
what a live model really does.
"""

import re
from collections.abc import Collection, Mapping

from saddles.probe.layouts.adapters import Attention, Shapes
from saddles.probe.layouts.head_counts import COUNT_NAMES, Config, parts_of

_ROTARY_NAMES = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_pct", "rotary_dim", "rotary_emb_base")
_ROTARY_TYPES = ("roformer", "codegen", "gptj", "esm", "modernbert")
"""Families with a rotary embedding that their configuration does not name."""
_ROTARY_IF_SLIDING = ("cohere2", "afmoe", "exaone4", "exaone_moe", "beam", "flint", "kolibri", "muse_spark")
"""Families whose layers of global attention have no positions at all."""
_HALVES = {
    *(
        "arcee",
        "aria_text",
        "bitnet",
        "cwm",
        "eurobert",
        "falcon",
        "gemma",
        "gemma2",
        "glm4_moe",
        "gpt_neox",
        "gpt_oss",
    ),
    *("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "gte", "jais2", "llama", "minimax"),
    *("ministral", "ministral3", "mistral", "mixtral", "mllama_text_model", "modernbert", "modernbert-decoder"),
    *("nemotron", "nomic_bert", "olmo", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text"),
    *("qwen2_5_vl", "qwen2_5_vl_text", "seed_oss", "smollm3", "solar_open", "starcoder2", "vaultgemma"),
}
"""Families whose rotary embedding turns column i with column i + r/2 of the r that it turns."""
_NEIGHBOURS = {
    *("codegen", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm46v", "glm4v"),
    *("glm4v_text", "glm_ocr", "glm_ocr_text", "gptj", "helium", "openai_privacy_filter", "roformer"),
}
"""Families that turn column 2i with column 2i + 1. Both lists were seen in models (`tests/support/every_family.py`):
scaling a pair of keys up and of queries down must leave the outputs as they are."""
_CROSS = re.compile("cross_?attn|cross_?attention|encoder_attn|EncDecAttention", re.IGNORECASE)
_NORM_FLAGS = ("use_qk_norm", "qk_layernorm", "qk_norm", "use_qk_layernorm")
_NORM_TYPES = ("nanochat", "muse_spark", "muse_glimmer")
"""Families whose norms of queries and keys have neither parameters nor a setting."""
_NORM = re.compile(r"\b(q|k|qk|query|key)_?(sub)?_?(layer)?_?norm|\b(q|kv)_a_(layer)?norm|logit_scale")
"""Parameters inside a block that tell of normalised queries and keys; `logit_scale` is that of cosine attention, and
those with an `a` are norms of a latent."""
_HARMLESS = re.compile(r"(^|\.)(LayerNorm|layer_norm|layernorm)\.")
"""The norm after the residual sum, which BERT and kin keep inside the block."""
_MIXED = {
    "conv_kernel_layer": "a convolution is mixed into its heads",
    "lambda_q1": "each of its heads is the difference of two attentions",
}
"""Parameters that show that a head is not the product of four factors."""


def is_rotary(config: Config, block: str = "") -> bool:
    """Whether a rotary embedding sits between the queries and keys of a block."""
    if _CROSS.search(block):  # positions of two sequences have no common offset
        return False
    number = re.search(r"\.(\d+)\.", f".{block}.")
    layer = int(number.group(1)) if number else 0
    for part in parts_of(block, config):
        kind = str(part.get("model_type", ""))
        if part.get("alibi") or part.get("position_embedding_type") in ("absolute", "learned", "relative_key"):
            return False
        for name in ("no_rope_layers", "layer_types"):
            layers = part.get(name)
            if not isinstance(layers, list) or layer >= len(layers):
                continue
            if name == "no_rope_layers" or kind.startswith(_ROTARY_IF_SLIDING):
                # In spite of its name, `no_rope_layers` is 1 where there is a rotary embedding.
                return bool(layers[layer]) if name == "no_rope_layers" else layers[layer] == "sliding_attention"
        if part.get("position_embedding_type") == "rotary" or any(part.get(name) for name in _ROTARY_NAMES):
            return True
        if kind in _ROTARY_TYPES:
            return True
        if any(name in part for name in COUNT_NAMES):  # this part describes the block, and names no rotary embedding
            return False
    return False


def turned_columns(config: Config, block: str, width: int) -> tuple[int, bool]:
    """How many columns of a head a rotary embedding turns, and whether pairs are neighbours; 0 where it is not known.

    Args:
        width: columns of a head.
    """
    for part in parts_of(block, config):
        kind = str(part.get("model_type", ""))
        if kind in _HALVES or kind in _NEIGHBOURS:
            turned = _rotary_width(part, block, width)
            return (turned, kind in _NEIGHBOURS) if 0 < turned <= width and turned % 2 == 0 else (0, False)
        if any(name in part for name in COUNT_NAMES):  # this part describes the block, and its family is not listed
            return 0, False
    return 0, False


def _rotary_width(part: Config, block: str, width: int) -> int:
    places = part.get("rope_parameters")
    ropes = places if isinstance(places, Mapping) else {}
    types = part.get("layer_types")
    number = re.search(r"\.(\d+)\.", f".{block}.")
    if isinstance(types, list) and number and int(number.group(1)) < len(types):
        own = ropes.get(types[int(number.group(1))])  # layers of each kind may have settings of their own
        ropes = own if isinstance(own, Mapping) else ropes
    for where in (ropes, part):
        for name in ("partial_rotary_factor", "rotary_pct"):
            share = where.get(name)
            if isinstance(share, int | float):
                return int(width * share)
    fixed = part.get("rotary_dim")
    return fixed if isinstance(fixed, int) else width


def is_normalised(block: Attention, shapes: Shapes, config: Config, norms: Collection[str]) -> bool:
    """Whether queries and keys of a block are normalised before their product.

    Args:
        norms: modules without parameters that are called norms, where a live model has some.
    """
    inside = [name for name in (*shapes, *norms) if name.startswith(f"{block.name}.")]
    if any(_NORM.search(name[len(block.name) :]) for name in inside):
        return True
    parts = list(parts_of(block.name, config))
    if any(str(part.get("model_type", "")).startswith(_NORM_TYPES) for part in parts[:1]):
        return True
    return any(part.get(flag) is True for part in parts[:1] for flag in _NORM_FLAGS) and is_rotary(config, block.name)


def beside(block: Attention, shapes: Shapes) -> tuple[str, ...]:
    """Further parameters inside a block, without its own prefix: gates, sub-norms, tables of positions."""
    used = {link.parameter for factors in block.heads for factor in factors.values() for link in factor.links}
    used |= {re.sub("weight$", "bias", name) for name in used}
    prefix = f"{block.name}." if block.name else ""
    inside = [name[len(prefix) :] for name in shapes if name.startswith(prefix) and name not in used]
    return tuple(name for name in inside if not _HARMLESS.search(name) and not _NORM.search(f".{name}"))


def mixed(block: Attention, shapes: Shapes) -> str | None:
    """Why the heads of a block are not products of four factors, where its parameters show that."""
    inside = [name for name in shapes if name.startswith(f"{block.name}.")]
    return next((why for word, why in _MIXED.items() if any(word in name for name in inside)), None)
