"""A small random model of every type that the installed transformers can build, and inputs for it.

A default configuration is shrunk by the usual names of its sizes, in all its parts. What cannot be built small, or
needs packages or inputs that are not there, is skipped with a reason.
"""

import inspect
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

WIDTH, HEADS, LAYERS, WORDS, SAMPLES, TOKENS, SIDE = 32, 4, 2, 64, 8, 6, 32
MOST = 30_000_000
"""Parameters above which a model counts as not shrunk."""

LIMIT = 60
"""Seconds for a type; with random weights some are endless on a CPU."""

SIZES: dict[str, Any] = (
    dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "n_embed", "hidden_dim", "emb_dim"), WIDTH)
    | dict.fromkeys(("embedding_size", "projection_dim", "word_embed_proj_dim", "output_hidden_size"), WIDTH)
    | dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size", "cross_attention_hidden_size"), WIDTH)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), HEADS)
    | dict.fromkeys(("decoder_attention_heads", "encoder_ffn_layers"), HEADS)
    | dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_query_groups"), 2)
    | dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), LAYERS
    )
    | dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_hidden_groups", "depth", "num_blocks"), LAYERS)
    | dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner"), 48)
    | dict.fromkeys(("moe_intermediate_size", "mlp_dim", "shared_expert_intermediate_size", "ffn_hidden_size"), 48)
    | dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "dim_head"), WIDTH // HEADS)
    | dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "qk_head_dim"), 8)
    | {"qk_rope_head_dim": 4, "kv_lora_rank": 12, "q_lora_rank": 16, "rotary_dim": 4, "vocab_size": WORDS}
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "experts_per_token"), 2)
    | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_expert_group": 1}
    | {"image_size": SIDE, "patch_size": 8, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64}
    | {"projection_size": WIDTH, "entity_vocab_size": WORDS, "vocab_size_per_layer_input": WORDS}
    | {"hidden_size_per_layer_input": 8, "max_source_positions": 64, "max_target_positions": 64, "num_frames": 2}
    | dict.fromkeys(("pad_token_id", "eos_token_id"), 0)
    | {"mask_token_id": 2}
    | dict.fromkeys(("bos_token_id", "decoder_start_token_id", "image_token_id", "audio_token_id"), 1)
    | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0)
)


WITHOUT_A_VALUE = (
    *("vocab_size", "num_key_value_heads", "num_experts_per_tok", "n_routed_experts", "num_experts"),
    *("pad_token_id", "mask_token_id"),
)
"""Sizes that some configurations leave open, so that their models cannot be built or run as they are."""
SECTIONED = ("qwen2_vl", "qwen2_5", "glm4v", "glm46v", "glm_ocr", "glm_image", "glmga", "paddleocr", "hunyuan_vl")
"""Families whose rotary embedding has sections even where their default configuration names none."""


def model_types() -> list[str]:
    """All types that an AutoModel knows."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def build(model_type: str) -> Any:
    """A small model; an exception says why there is none."""
    try:
        return _build(model_type, fill=False)
    except Exception:  # whatever a library raises where a size is None
        return _build(model_type, fill=True)


def _build(model_type: str, fill: bool) -> Any:
    from transformers import CONFIG_MAPPING, AutoModel

    config = CONFIG_MAPPING[model_type]()
    for part in _parts(config):
        _shrink(part, fill)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in AutoModel.from_config(config).parameters())
    if count > MOST:
        raise ValueError(f"{count / 1e6:.0f} million parameters remain after shrinking")
    torch.manual_seed(0)
    model = AutoModel.from_config(config).float().eval()
    with torch.no_grad():  # so that biases and norms are seen where there are some
        for name, weight in model.named_parameters():
            if weight.ndim == 1 or (weight.ndim == 2 and "embed" not in name):
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def inputs(model: Any) -> dict[str, Any]:
    """Tokens, or whatever else is a model's main input."""
    return next(candidates(model))


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Random inputs by the names of the forward arguments: tokens alone, with pixels, pixels alone, sound."""
    known = inspect.signature(model.forward).parameters
    tokens = torch.randint(2, WORDS, (SAMPLES, TOKENS))
    text = {"input_ids": tokens} if "input_ids" in known else {}
    text |= {"decoder_input_ids": tokens.flip(1)} if "decoder_input_ids" in known else {}
    sides = [getattr(part, "image_size", None) for part in _parts(model.config)]
    side = next((one for one in sides if isinstance(one, int)), SIDE)
    pixels = {"pixel_values": torch.randn(SAMPLES, 3, side, side)} if "pixel_values" in known else {}
    if text:
        yield text
        yield text | pixels
    if pixels:
        yield pixels
        yield {"pixel_values": pixels["pixel_values"], **{k: v for k, v in text.items() if "decoder" in k}}
        frames = getattr(model.config, "num_frames", 2)
        yield {"pixel_values": torch.randn(SAMPLES, frames if isinstance(frames, int) else 2, 3, side, side)}
    if "pixel_values_videos" in known:
        yield text | {
            "pixel_values_videos": torch.randn(SAMPLES, getattr(model.config, "frames_per_clip", 4), 3, side, side)
        }
    spoken = {name: value for name, value in text.items() if "decoder" in name}
    if "input_features" in known:
        bins = getattr(model.config, "num_mel_bins", 80)
        width = getattr(model.config, "feature_projection_input_dim", bins)
        for shape in ((bins, 2 * getattr(model.config, "max_source_positions", 64)), (64, bins), (64, width)):
            yield {"input_features": torch.randn(SAMPLES, *shape), **spoken}
    if "input_values" in known:
        yield {"input_values": torch.randn(SAMPLES, 3000), **spoken}
        yield {"input_values": torch.randn(SAMPLES, 1, 3000), **spoken}


def _shrink(config: Any, fill: bool) -> None:
    for name, value in SIZES.items():
        if name == "num_key_value_heads" and hasattr(config, "multi_query"):
            continue  # GPT-BigCode and Falcon have one key head, or as many as queries
        if not hasattr(type(config), name) and name not in vars(config):
            continue
        try:
            now = getattr(config, name)
            absent = now is None and (name == "head_dim" or (fill and name in WITHOUT_A_VALUE))
            if absent or (isinstance(now, int | float) and not isinstance(now, bool)):
                setattr(config, name, value)
        except Exception:  # a configuration may refuse in any way
            continue  # its size stays, and `build` then says why the model is large
    if isinstance(getattr(config, "kv_lora_rank", None), int):  # latent attention: rotary positions have a width apart
        _set(config, head_dim=4, num_key_value_heads=HEADS, qk_head_dim=12, partial_rotary_factor=1.0)
    types = getattr(config, "layer_types", None)
    if isinstance(types, list) and len(types) > LAYERS:
        kinds = list(dict.fromkeys(types))
        config.layer_types = (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        if len(kinds) > LAYERS:
            config.num_hidden_layers = len(kinds)
    stages = getattr(config, "num_heads", None)
    if isinstance(stages, list | tuple) and isinstance(getattr(config, "embed_dim", None), int):
        config.embed_dim = 8 * stages[0]  # Swin and kin: the width doubles with the heads
        _set(config, window_size=2, patch_size=2)
    if getattr(config, "model_type", "") == "deepseek_v2":
        config.num_experts_per_tok = 2
    ropes = getattr(config, "rope_parameters", None)
    sectioned = str(getattr(config, "model_type", "")).startswith(SECTIONED)
    if isinstance(ropes, dict) and (sectioned or "mrope_section" in ropes):
        ropes["mrope_section"] = [2, 1, 1]  # half of a head's width in all


def _set(config: Any, **values: Any) -> None:
    for name, value in values.items():
        if hasattr(config, name):
            setattr(config, name, value)


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _parts(value)


def checked(model_type: str) -> dict[str, Any]:
    """What the probe finds in a family and what the self-check says of it, for the table."""
    from saddles.errors import SaddlesError
    from saddles.probe import heads, verify

    try:
        model = build(model_type)
    except Exception as problem:  # whatever a model of another package raises where it cannot be built
        return {"skipped": f"cannot be built small: {_line(problem)}"}
    try:
        layout = heads(model)
    except SaddlesError as problem:
        return {"skipped": _line(problem)}
    if not layout.heads:
        words = ("attn", "attention")
        reasons = [why for name, why in layout.skipped if any(word in name.lower() for word in words)]
        kept = [why for why in reasons if "vector" not in why and "axes" not in why]
        return {"refused": kept[0] if kept else "no attention"}
    problems = []
    for given in candidates(model):
        try:
            result = verify(model, given)
            break
        except SaddlesError:
            raise
        except Exception as problem:
            problems.append(_line(problem))
    else:
        return {"skipped": f"cannot be run with tokens, pixels or sound alone: {(problems or ['no known input'])[0]}"}
    blocks = layout.layers()
    return {
        "adapter": layout.heads[0].family,
        "verdict": result["verdict"].values.tolist(),
        "detail": result["detail"].values.tolist(),
        "positional": result["positional"].values.tolist(),
        "rotary": [blocks[layer][0].rotary for layer in blocks],
        "normalised": [blocks[layer][0].normalised for layer in blocks],
        "pairs": [pairs_turn_together(model, blocks[layer], given) for layer in blocks],
    }


def pairs_turn_together(model: Any, heads: list[Any], given: dict[str, Any]) -> bool | None:
    """Whether outputs stay when a pair of columns that turns together is scaled up in a key and down in its queries.

    None where the layout names no pairs, a norm lies between, or one column alone may be scaled too: then the block
    took no part.
    """
    head = heads[0]
    if not head.turned or head.normalised:
        return None
    first, last = (0, 1) if head.neighbours else (0, head.turned // 2)
    whole = _outputs(model, given)
    changes = []
    for columns in ([first], [first, last], list(range(head.turned, head.turned + 1))):
        _scale(model, heads, columns, 2.0)
        changes.append(float((_outputs(model, given) - whole).norm() / whole.norm()))
        _scale(model, heads, columns, 0.5)
    return None if changes[0] < SAME else max(changes[1:]) < SAME


def swapped(head: Any) -> Any:
    """The head as if its pairs were the other ones."""
    return replace(head, neighbours=not head.neighbours)


SAME = 1e-5
"""Relative difference of outputs that is rounding."""


def _outputs(model: Any, given: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        found = model(**given)
    return getattr(found, "last_hidden_state", found[0]).double()


def _scale(model: Any, heads: list[Any], columns: list[int], factor: float) -> None:
    """Columns of the first key head times a factor, those of its queries divided by it; biases too."""
    weights = dict(model.named_parameters())
    key = heads[0].factors["K"]
    parts = [(key, factor)] + [(head.factors["Q"], 1 / factor) for head in heads if head.factors["K"] == key]
    with torch.no_grad():
        for part, scale in parts:
            matrix = part.cut(weights[part.parameter])
            inside = [column for column in columns if column < matrix.shape[1]]
            matrix[:, inside] *= scale
            bias = weights.get(part.parameter.removesuffix("weight") + "bias")
            if bias is not None:
                place = part.rows if part.transposed else part.columns
                (bias if place is None else bias[place[0] : place[1]])[inside] *= scale


def disagreements(row: dict[str, Any]) -> list[str]:
    """What the layout says and the model contradicts."""
    wrong = []
    for at, verdict in enumerate(row.get("verdict", [])):
        norm = any("norm" in part and part.strip()[:1] in "QK" for part in row["detail"][at].split(";"))
        if verdict == "wrong":
            wrong.append(f"layer {at}: {row['detail'][at]}")
        if verdict.startswith("right") and row["positional"][at] != row["rotary"][at]:
            wrong.append(f"layer {at}: rotary is said to be {row['rotary'][at]}")
        if row["pairs"][at] is False:
            wrong.append(f"layer {at}: columns that are said to turn together do not")
        if verdict.startswith("right") and norm and not row["normalised"][at]:
            wrong.append(f"layer {at}: a norm of queries or keys is not mentioned")
    return wrong


def _line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:100]}"


def within(seconds: int, work: Any, model_type: str) -> dict[str, Any]:
    """Give up a model whose forward pass is endless on a CPU."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"over {seconds} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        return work(model_type)
    except TimeoutError as problem:
        return {"skipped": _line(problem)}
    finally:
        signal.alarm(0)


def main(target: str) -> None:
    """Check every type, and write the record of docs/families.md."""
    import datetime
    import json
    from pathlib import Path

    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = {}
    for model_type in model_types():
        rows[model_type] = within(LIMIT, checked, model_type)
        print(
            model_type, rows[model_type].get("verdict", rows[model_type]), *disagreements(rows[model_type]), flush=True
        )
    record = {
        "command": "python tests/support/every_family.py docs/results/families.json",
        "machine": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "date": datetime.date.today().isoformat(),
        "values": {"types": len(rows), **counts(rows)},
    }
    whole = {"origin": "written by the command", "records": {"families": record}, "types": rows}
    lines = [f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
    head = json.dumps({**whole, "types": {}}, indent=1, ensure_ascii=False)
    body = head.replace('"types": {}', '"types": {\n' + ",\n".join(lines) + "\n }")
    Path(target).write_text(body + "\n")


def counts(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many types of each outcome."""

    def all_in(row: dict[str, Any], *words: str) -> bool:
        return bool(row.get("verdict")) and all(one.startswith(words) for one in row["verdict"])

    every = list(rows.values())
    right = [row for row in every if all_in(row, "right")]
    partly = [row for row in every if all_in(row, "right", "unconfirmed") and row not in right]
    refused = [row["refused"] for row in every if "refused" in row]
    return {
        "right in every block": sum(set(row["verdict"]) == {"right"} for row in right),
        "right in every block up to a bias, a norm or a gate": sum(set(row["verdict"]) != {"right"} for row in right),
        "right where it ran, other blocks not confirmed": sum(not all_in(row, "unconfirmed") for row in partly),
        "not confirmed": sum(all_in(row, "unconfirmed") for row in partly),
        "wrong": sum("wrong" in row.get("verdict", []) for row in every),
        "contradicted in a flag": sum(bool(disagreements(row)) and "wrong" not in row["verdict"] for row in every),
        "attention that is refused with a reason": sum(why != "no attention" for why in refused),
        "no attention": sum(why == "no attention" for why in refused),
        "skipped": sum("skipped" in row for row in every),
        "pairs of columns that turn together are those of the model": sum(
            True in row.get("pairs", []) for row in every
        ),
    }


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
