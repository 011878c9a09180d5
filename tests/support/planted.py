"""Tiny real models, and copies of them with a change of known rank planted in every linear module."""

import copy
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

EMBEDDINGS = ("wte", "wpe", "embed")


def tiny(family: str, seed: int = 0) -> Any:
    """A two-layer model with random weights, in eval mode."""
    torch.manual_seed(seed)
    if family == "gpt2":
        sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 16}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    elif family == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4, vocab_size=50,
                num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False,
            )
        )  # fmt: skip
    else:
        model = BertForMaskedLM(
            BertConfig(
                num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=50,
                max_position_embeddings=32,
            )
        )  # fmt: skip
    return model.eval()


def planted(model: Any, rank: int, size: float = 0.1, bias: float = 0.01, seed: int = 1) -> Any:
    """A copy whose linear modules moved by `rank` equal singular values, and whose biases moved too."""
    draw = torch.Generator().manual_seed(seed)
    tuned = copy.deepcopy(model)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    linear = {n for n, m in tuned.named_modules() if type(m).__name__ in ("Linear", "Conv1D")}
    with torch.no_grad():
        for name in sorted(linear):
            module: Any = tuned.get_submodule(name)
            if f"{name}.weight" in tied:
                continue
            rows, columns = module.weight.shape
            left = torch.linalg.qr(torch.randn(rows, rank, generator=draw))[0]
            right = torch.linalg.qr(torch.randn(columns, rank, generator=draw))[0]
            module.weight += size * left @ right.T
            if module.bias is not None:
                module.bias += bias * torch.randn(len(module.bias), generator=draw)
    return tuned


def trained(model: Any, seed: int = 1, size: float = 0.02) -> Any:
    """A copy in which every parameter moved, with singular values that fall at different paces in matrices."""
    draw = torch.Generator().manual_seed(seed)
    tuned = copy.deepcopy(model)
    with torch.no_grad():
        for place, parameter in enumerate(tuned.parameters()):
            if parameter.ndim == 2:
                left, _, right = torch.linalg.svd(torch.randn(parameter.shape, generator=draw), full_matrices=False)
                fall = size / torch.arange(1, left.shape[1] + 1) ** (0.6 + 0.2 * (place % 3))
                parameter += 10 * (left * fall) @ right
            else:
                parameter += size * torch.randn(parameter.shape, generator=draw)
    return tuned
