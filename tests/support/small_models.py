"""Small random models of every family that the probe reads, made without any download."""

import copy
import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

WIDTH, HEADS, TOKENS, WORDS = 24, 4, 7, 50


def gpt2(**more: Any) -> Any:
    import transformers

    return _ready(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=WORDS, n_positions=16, **_plain(), **more
            )
        )
    )


def neox() -> Any:
    import transformers

    return _ready(transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_sizes())))


def llama(**more: Any) -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"num_key_value_heads": 2, "head_dim": 10} | more
    return _ready(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)))


def mistral() -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"num_key_value_heads": 1, "sliding_window": None}
    return _ready(transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)))


def qwen2() -> Any:
    import transformers

    return _ready(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_sizes(), num_key_value_heads=2)))


def qwen3() -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"num_key_value_heads": 2, "head_dim": 8}
    return _ready(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes)))


def phi3() -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"num_key_value_heads": 2, "pad_token_id": 0}
    return _ready(transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes)))


def opt() -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"ffn_dim": 32, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 16}
    sizes.pop("intermediate_size")
    return _ready(transformers.OPTForCausalLM(transformers.OPTConfig(**sizes)))


def bert() -> Any:
    import transformers

    return _ready(transformers.BertModel(transformers.BertConfig(**_sizes())))


def vit() -> Any:
    import transformers

    sizes: dict[str, Any] = _sizes() | {"image_size": 8, "patch_size": 4}
    sizes.pop("vocab_size")
    return _ready(transformers.ViTModel(transformers.ViTConfig(**sizes)))


class TimmAttention(torch.nn.Module):
    """The structure of timm's Attention: one qkv matrix, its own head count, no configuration."""

    def __init__(self, width=WIDTH, heads=HEADS):
        super().__init__()
        self.num_heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (qkv[0] @ qkv[1].mT * (width // self.num_heads) ** -0.5).softmax(-1)
        return self.proj((scores @ qkv[2]).transpose(1, 2).reshape(batch, tokens, width)), scores


class TimmLike(torch.nn.Module):
    """Two blocks of it."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict({"attn": TimmAttention()}) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block["attn"](x)[0]  # pyright: ignore[reportIndexIssue]
        return x


def timm_like() -> Any:
    return _ready(TimmLike())


class Torch(torch.nn.Module):
    """torch.nn.MultiheadAttention, asked for its weights."""

    def __init__(self, **more):
        super().__init__()
        self.attend = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **more)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=True, average_attn_weights=False)


def multihead() -> Any:
    return _ready(Torch())


def _plain() -> dict[str, Any]:
    return {"bos_token_id": 0, "eos_token_id": 0}


def _sizes() -> dict[str, Any]:
    return {
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "vocab_size": WORDS,
        "max_position_embeddings": 16,
        **_plain(),
    }


def _ready(model: Any) -> Any:
    """Large random weights without biases, so that attention is far from uniform and is a product only."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.4)
            elif name.endswith("bias"):
                parameter.zero_()
    return model.eval()


def inputs(model: Any) -> dict[str, Any]:
    """One input, with every position 0 where a rotary embedding sits in between."""
    tokens = torch.arange(1, 2 * TOKENS + 1).reshape(2, TOKENS) % WORDS
    if isinstance(model, TimmLike | Torch):
        return {"x": torch.randn(2, TOKENS, WIDTH)}
    if model.config.model_type == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    if model.config.model_type in ("bert", "opt"):
        return {"input_ids": tokens}
    return {"input_ids": tokens, "position_ids": torch.zeros_like(tokens)}


def nudge(model: Any, scale: float, seed: int = 1) -> Any:
    """A copy whose matrices moved by a share of their size."""
    moved, draw = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float32).to(parameter.dtype)
            parameter.add_(noise * (scale * parameter.float().std().item() if parameter.numel() > 1 else 0.0))
    return moved
