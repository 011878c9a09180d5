"""Pairs of models that people have, adapters that other programs load, and rounding that is no change."""

import copy
import json
import math
import os
import re
import time
from typing import Any

import numpy as np
import pytest
import torch
from planted import planted, tiny, trained
from safetensors.torch import load_file, save_file

from saddles.errors import SaddlesError
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.ranks import Rule, Sized, choose
from saddles.probe.lora.skeleton import empty_model

TOKENS = torch.arange(10)[None]
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
    "max_position_embeddings": 32,
}  # fmt: skip


class _One(torch.nn.Module):
    """A model of one matrix."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=matrix.dtype)
        self.layer.weight.data = matrix


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("change", [1e-1, 1e-2, 2e-3, 1e-3, 1e-4])
@pytest.mark.parametrize("upcast", [False, True])
def test_planted_rank_is_found_above_rounding(kind, change, upcast):
    """Rank 8 of 256 × 192; what rounding adds is never bought, also where bfloat16 was saved as float32."""
    draw = torch.Generator().manual_seed(0)
    rows, columns, rank = 256, 192, 8
    start = (0.02 * torch.randn(rows, columns, generator=draw)).to(kind)
    left = torch.linalg.qr(torch.randn(rows, rank, generator=draw).double())[0]
    right = torch.linalg.qr(torch.randn(columns, rank, generator=draw).double())[0]
    size = change * float(start.double().norm()) / rank**0.5
    tuned = (start.double() + size * left @ right.T).to(kind)
    if upcast:
        start, tuned = start.float(), tuned.float()
    if torch.equal(start, tuned):
        return  # everything was rounded away
    (row,) = lora_plan(_One(start), _One(tuned), energy=0.95).modules
    assert row.rank <= rank + 1
    if size > 2 * row.floor:
        assert abs(row.rank - rank) <= 1
    if kind == torch.float32:
        assert row.rank == rank
    if (kind, change) == (torch.bfloat16, 2e-3):
        assert row.rank == rank
        values = torch.linalg.svdvals(tuned.double() - start.double()).numpy()
        assert int(np.searchsorted(np.cumsum(values**2), 0.95 * np.sum(values**2))) > 5 * rank  # without the floor


def test_mixed_types_and_nothing_above_rounding():
    start = 0.02 * torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    plan = lora_plan(_One(start), _One(start.bfloat16()))
    assert plan.modules[0].norm > 0
    assert plan.modules[0].above == plan.modules[0].rank == 0
    assert "Nothing of the change is above" in plan.answer
    with pytest.raises(SaddlesError, match="above rounding"):
        plan.settings()


def _applied(folder, scale) -> dict[str, torch.Tensor]:
    """scale(config, rank)·BA of each module, as a loader applies it."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name, inner in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            outer = tensors[name.replace("lora_A", "lora_B")]
            found[module] = scale(config, module, outer.shape[1]) * outer.double() @ inner.double()
    return found


def _peft(config, module, rank) -> float:
    patterns = config.get("rank_pattern", {}), config.get("alpha_pattern", {})
    r, alpha = (
        next((v for k, v in pattern.items() if re.match(rf"(.*\.)?({k})$", module)), config[name])
        for pattern, name in zip(patterns, ("r", "lora_alpha"), strict=True)
    )
    assert r == rank
    return alpha / r


def _vllm(config, module, rank) -> float:
    assert rank <= config["r"]  # the slot
    return config["lora_alpha"] / config["r"]


def _llamacpp(config, module, rank) -> float:
    return config["lora_alpha"] / rank


@pytest.mark.parametrize(
    ("target", "rules"), [("peft", [_peft]), ("vllm", [_vllm, _peft]), ("llamacpp", [_llamacpp, _vllm, _peft])]
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_each_loader_applies_the_change(target, rules, family, tmp_path):
    base = tiny(family)
    tuned = trained(base)
    plan = lora_plan(base, tuned, energy=0.8)
    assert len({row.rank for row in plan.carried}) > 1
    made = lora_extract(base, tuned, plan, tmp_path / "adapter", target=target)
    for rule in rules:
        applied = _applied(made.folder, rule)
        assert set(applied) == {row.module for row in plan.carried}
        for row in plan.carried:
            change = (tuned.get_submodule(row.module).weight - base.get_submodule(row.module).weight).detach().double()
            apart = applied[row.module] - (change.T if row.conv1d else change)
            assert float(apart.norm()) == pytest.approx(row.error, rel=1e-4)
    stored = load_file(made.folder / "adapter_model.safetensors")
    assert made.parameters == sum(t.numel() for t in stored.values())
    config = json.loads((made.folder / "adapter_config.json").read_text())
    assert config["r"] == max(row.rank for row in plan.carried)
    if target != "peft":  # what those loaders reject
        assert not {"modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias"} & set(config)
        assert all(re.search(r"lora_[AB]\.weight$", name) for name in stored)
        assert bool(made.dropped) == (family == "gpt2")


def _classifier(kind: str, family: str, seed: int = 0) -> Any:
    import transformers

    torch.manual_seed(seed)
    sizes = dict(SMALL)
    if family == "Roberta":
        sizes["max_position_embeddings"] = 40
    if family == "GPT2":
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 32, "bos_token_id": 0}
    if family == "Llama":
        sizes["num_key_value_heads"] = 2
    labels, pad = 2 if kind == "QuestionAnswering" else 3, 1 if family == "Roberta" else 49
    config = getattr(transformers, f"{family}Config")(**sizes, num_labels=labels, pad_token_id=pad)
    return getattr(transformers, f"{family}For{kind}")(config).eval()


def _outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(TOKENS)
    return found.logits if "logits" in found else found.start_logits


def _loaded(base: Any, folder) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("SequenceClassification", "Bert"), ("SequenceClassification", "Roberta"), ("SequenceClassification", "GPT2"),
        ("SequenceClassification", "Llama"), ("TokenClassification", "Bert"), ("TokenClassification", "GPT2"),
        ("QuestionAnswering", "Bert"),
    ],
)  # fmt: skip
def test_adapters_of_task_models_load_and_equal_the_tuned_model(kind, family, tmp_path):
    base = _classifier(kind, family)
    tuned = trained(base)
    made = lora_extract(base, tuned, lora_plan(base, tuned, energy=1.0, save_modules=True), tmp_path / "adapter")
    assert made.loaded
    assert made.plan.left_out == ()
    torch.testing.assert_close(_outputs(_loaded(base, made.folder)), _outputs(tuned), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(_outputs(base), _outputs(tuned), atol=1e-2)


def test_an_adapter_of_a_model_of_sound_runs_in_peft(tmp_path):
    """PEFT's class for SEQ_2_SEQ_LM hands text to the encoder, which Whisper refuses; T5 takes it."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "num_mel_bins": 4,
    }
    sizes |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("attention_heads", "ffn_dim")}
    sizes |= {"max_source_positions": 8, "max_target_positions": 8, "suppress_tokens": None}
    sizes |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    torch.manual_seed(0)
    base: Any = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes)).eval()
    tuned = planted(base, rank=2, size=1.0, bias=0.0)
    made = lora_extract(base, tuned, lora_plan(base, tuned, energy=1.0), tmp_path / "adapter")
    inputs = {"input_features": torch.randn(2, 4, 16), "decoder_input_ids": torch.tensor([[0, 1, 2], [3, 4, 5]])}
    adapted = _loaded(base, made.folder)
    with torch.no_grad():
        torch.testing.assert_close(adapted(**inputs).logits, tuned(**inputs).logits, atol=1e-5, rtol=0)
    small = transformers.T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    text = transformers.T5ForConditionalGeneration(small)
    assert lora_plan(text, planted(text, rank=2, size=1.0)).settings()["task_type"] == "SEQ_2_SEQ_LM"


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_saved_modules_make_base_and_adapter_equal_the_tuned_model(family, tmp_path):
    """Embeddings (tied or not), norms and biases that LoRA does not carry."""
    base = tiny(family)
    tuned = trained(base)
    assert lora_plan(base, tuned, energy=1.0).share_left_out > 0.05
    plan = lora_plan(base, tuned, energy=1.0, save_modules=True)
    assert plan.left_out == ()
    assert plan.share_left_out == 0
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    torch.testing.assert_close(_outputs(_loaded(base, made.folder)), _outputs(tuned), atol=1e-5, rtol=0)


def test_a_module_inside_another_saved_one_is_saved_once(tmp_path):
    """The embeddings of a ViT have a class token of their own, and patches in a module inside them."""
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 5}
    config = transformers.ViTConfig(**sizes, intermediate_size=48, image_size=16, patch_size=4)
    base = transformers.ViTForImageClassification(config).eval()
    tuned, images = trained(base), torch.randn(3, 3, 16, 16)
    plan = lora_plan(base, tuned, energy=1.0, save_modules=True)
    saved = [one.name for one in plan.saved]
    assert not any(one != other and one.startswith(f"{other}.") for one in saved for other in saved)
    assert plan.share_left_out == 0
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    assert made.parameters == plan.parameters + plan.saved_parameters
    after = _loaded(base, made.folder)(images).logits
    torch.testing.assert_close(after, tuned(images).logits, atol=1e-5, rtol=0)


def test_biases_of_some_modules_are_saved(tmp_path):
    settings = copy.deepcopy(tiny("llama").config)
    settings.attention_bias = True
    torch.manual_seed(0)
    base = type(tiny("llama"))(settings).eval()
    tuned = trained(base)
    plan = lora_plan(base, tuned, energy=1.0, save_modules=True)
    assert plan.saves_biases
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    torch.testing.assert_close(_outputs(_loaded(base, made.folder)), _outputs(tuned), atol=1e-5, rtol=0)


def test_a_base_of_another_class_is_matched_by_structure(tmp_path):
    """BertModel, and a masked language model, as bases of a classifier; the head comes with the adapter."""
    import transformers

    tuned = trained(_classifier("SequenceClassification", "Bert"))
    tuned.save_pretrained(tmp_path / "tuned")
    start = _classifier("SequenceClassification", "Bert")
    body = transformers.BertModel(start.config)
    body.load_state_dict(start.bert.state_dict())
    body.save_pretrained(tmp_path / "body")
    masked = transformers.BertForMaskedLM(start.config)
    masked.bert.load_state_dict(start.bert.state_dict(), strict=False)
    masked.save_pretrained(tmp_path / "masked")
    for name in ("body", "masked"):
        plan = lora_plan(tmp_path / name, tmp_path / "tuned", energy=1.0, save_modules=True)
        assert {one.name for one in plan.saved if one.fresh} == (
            {"classifier"} if name == "body" else {"classifier", "bert.pooler.dense"}
        )
        assert all(row.module.startswith("bert.") for row in plan.modules)
        assert plan.left_out == ()
        made = lora_extract(tmp_path / name, tmp_path / "tuned", plan, tmp_path / f"adapter of {name}")
        base = transformers.BertForSequenceClassification.from_pretrained(tmp_path / name, num_labels=3).eval()
        torch.testing.assert_close(_outputs(_loaded(base, made.folder)), _outputs(tuned), atol=1e-5, rtol=0)


def test_other_prefixes_and_missing_architectures(tmp_path):
    base = tiny("llama")
    tuned = planted(base, rank=2)
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    expected = lora_plan(tmp_path / "base", tmp_path / "tuned").modules
    weights = load_file(tmp_path / "base" / "model.safetensors")
    (tmp_path / "moved").mkdir()
    moved = load_file(tmp_path / "tuned" / "model.safetensors")
    save_file({f"policy.{name}": t for name, t in moved.items()}, tmp_path / "moved" / "model.safetensors")
    for place, change in {
        "inner": lambda name: name.replace("model.", "model.language_model.", 1),
        "wrapped": lambda name: f"policy.{name}",
        "bare": lambda name: name.removeprefix("model."),
    }.items():
        (tmp_path / place).mkdir()
        save_file({change(name): t for name, t in weights.items()}, tmp_path / place / "model.safetensors")
        assert lora_plan(tmp_path / place, tmp_path / "tuned").modules == expected
        config = json.loads((tmp_path / "base" / "config.json").read_text())
        del config["architectures"]
        (tmp_path / place / "config.json").write_text(json.dumps(config))
        assert lora_plan(tmp_path / place, tmp_path / "tuned").modules == expected
        found = lora_plan(tmp_path / place, tmp_path / "moved").modules  # named as the tuned model is
        assert all(row.module.startswith(("policy.", "lm_head")) for row in found)
        assert sorted(row.rank for row in found) == sorted(row.rank for row in expected)


def test_grown_vocabulary_with_a_new_head(tmp_path):
    base = tiny("bert")
    tuned = trained(_classifier("SequenceClassification", "Bert"))
    tuned.resize_token_embeddings(53, mean_resizing=False)
    plan = lora_plan(base, tuned)
    assert "became (53, 32)" in {r.name: r.reason for r in plan.left_out}["bert.embeddings.word_embeddings.weight"]
    assert "classifier" in {one.name for one in plan.saved}


def test_names_of_a_vit_in_its_files(tmp_path):
    """transformers 5 stores a ViT under other names than it runs."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=8, patch_size=4
    )
    base = transformers.ViTForImageClassification(config).eval()
    tuned = planted(base, rank=2)
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    live, stored = lora_plan(base, tuned, energy=1), lora_plan(tmp_path / "base", tmp_path / "tuned", energy=1)
    assert stored.modules == live.modules
    assert stored.energy > 0.9
    made = lora_extract(tmp_path / "base", tmp_path / "tuned", stored, tmp_path / "adapter")
    pixels = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(_loaded(base, made.folder)(pixels).logits, tuned(pixels).logits, atol=1e-4, rtol=0)


def test_a_head_that_the_tuned_model_lacks_is_no_part_of_the_change():
    import transformers

    base = tiny("bert")
    body = copy.deepcopy(planted(base, rank=2).bert)
    tuned = transformers.BertModel(base.config, add_pooling_layer=False)
    tuned.load_state_dict(body.state_dict())
    plan = lora_plan(base, tuned, energy=1.0)
    assert plan.left_out == ()
    assert plan.share_left_out == 0
    assert plan.energy == pytest.approx(1, abs=1e-6)


def test_a_budget_pays_for_the_biases_of_carried_modules_only():
    base = tiny("bert")
    tuned = trained(base)
    least = min(row.inputs + row.outputs for row in lora_plan(base, tuned).modules)
    small = lora_plan(base, tuned, budget=least)
    assert 0 < small.parameters <= least
    for budget in (1000, 3000, 8000):
        plan = lora_plan(base, tuned, budget=budget)
        assert 0.9 * budget < plan.parameters <= budget


def test_a_budget_with_biases_states_how_far_it_may_be_from_the_best():
    """Against every choice of ranks, with and without biases."""
    import itertools

    draw, best_found = np.random.default_rng(0), 0
    for _ in range(60):
        spectra = [np.sort(draw.exponential(size=4))[::-1] + 0.1 for _ in range(3)]
        sizes = draw.integers(1, 5, (3, 2)).tolist()
        modules = [Sized(one, 0.0, a, b, draw.exponential()) for one, (a, b) in zip(spectra, sizes, strict=True)]
        budget = int(draw.integers(10, 30))
        found = choose(modules, Rule(budget=budget))

        def judged(ranks, biases, modules=modules):
            pairs = list(zip(modules, ranks, strict=True))
            price = sum(k * one.cost + (one.outputs if k and biases else 0) for one, k in pairs)
            return price, sum(float(one.squares[:k].sum()) + (one.bias**2 if k and biases else 0) for one, k in pairs)

        choices = [judged(c, b) for c in itertools.product(range(5), repeat=3) for b in (False, True)]
        best = max(gain for price, gain in choices if price <= budget)
        price, gain = judged(found.ranks, found.with_biases)
        total = sum(float(one.squares.sum()) + one.bias**2 for one in modules)
        assert price <= budget
        assert best - gain <= found.gap * total + 1e-12
        best_found += gain > best - 1e-12
    assert best_found > 40


def test_max_rank_and_round_to():
    base = tiny("llama")
    tuned = trained(base)
    assert {row.rank for row in lora_plan(base, tuned, max_rank=4).modules} == {4}
    capped = lora_plan(base, tuned, energy=0.99, max_rank=6, round_to=2)
    assert max(row.rank for row in capped.modules) == 6
    rounded = lora_plan(base, tuned, energy=0.7, round_to=8)
    assert {row.rank % 8 for row in rounded.modules} == {0}
    assert rounded.energy_above >= 0.7
    bought = lora_plan(base, tuned, budget=4000, round_to=4)
    assert bought.parameters <= 4000
    assert {row.rank % 4 for row in bought.modules} == {0}
    with pytest.raises(SaddlesError, match="at least 1"):
        lora_plan(base, tuned, max_rank=0)


def test_the_curve_is_that_of_a_dense_decomposition():
    base = tiny("llama")
    tuned = trained(base)
    plan = lora_plan(base, tuned)
    squares = [
        torch.linalg.svdvals(
            (tuned.get_submodule(r.module).weight - base.get_submodule(r.module).weight).detach().double()
        )
        ** 2
        for r in plan.modules
    ]
    total = float(sum(one.sum() for one in squares))
    for point in plan.curve:
        assert point.energy == pytest.approx(float(sum(o[: point.rank].sum() for o in squares)) / total, rel=1e-5)
        assert point.parameters == sum(
            min(point.rank, r.inputs, r.outputs) * (r.inputs + r.outputs) for r in plan.modules
        )
        assert point.parameters == lora_plan(base, tuned, max_rank=point.rank).parameters
    ranks = [point.rank for point in plan.curve]
    assert ranks == [1, 2, 4, 8, 16, 32]
    first = next(point for point in plan.curve if point.energy >= 0.9)
    assert plan.answer.startswith(f"Rank {first.rank} everywhere carries {100 * first.energy:.3g} %")
    assert "use --save-modules" in plan.answer


def test_the_curve_counts_no_module_that_did_not_change():
    base = tiny("llama")
    tuned = planted(base, rank=2)
    with torch.no_grad():
        tuned.lm_head.weight.copy_(base.lm_head.weight)
    plan = lora_plan(base, tuned)
    for point in plan.curve:
        assert point.parameters == lora_plan(base, tuned, max_rank=point.rank).parameters


def test_modules_that_peft_refuses_are_left_out_or_held_whole(tmp_path):
    from peft import PeftModel
    from transformers import MambaConfig, MambaForCausalLM

    base = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)).eval()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for name, tensor in tuned.named_parameters():
            if name.endswith(("in_proj.weight", "out_proj.weight")):
                tensor += 0.1 * torch.randn(len(tensor), 1) * torch.randn(1, tensor.shape[1])
    plan = lora_plan(base, tuned, energy=1)
    assert {row.module.rpartition(".")[2] for row in plan.carried} == {"in_proj"}
    assert {row.name.split(".")[-2] for row in plan.left_out} == {"out_proj"}
    assert "use --save-modules" in plan.answer
    whole = lora_plan(base, tuned, energy=1, save_modules=True)
    assert "--save-modules" not in whole.answer
    words = torch.randint(0, 50, (2, 7))
    for one, close in ((plan, False), (whole, True)):
        lora_extract(base, tuned, one, tmp_path / str(close))
        adapted = PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / str(close))).eval()
        with torch.no_grad():
            off = (adapted(words).logits - tuned(words).logits).abs().max()
        assert bool(off < 1e-5) == close


def test_numbers_that_are_not_finite_are_told_wherever_they_are(tmp_path):
    base = tiny("bert")
    tuned = planted(base, rank=1)
    plan = lora_plan(base, tuned)
    for name in ("bert.encoder.layer.0.output.dense.bias", "bert.embeddings.LayerNorm.weight"):
        broken = copy.deepcopy(tuned)
        with torch.no_grad():
            broken.get_parameter(name)[3] = float("nan")
        with pytest.raises(SaddlesError, match=rf"{re.escape(name)} holds numbers that are not finite"):
            lora_plan(base, broken)
        if name.endswith("bias"):
            with pytest.raises(SaddlesError, match="not finite"):
                lora_extract(base, broken, plan, tmp_path / "adapter")
    head = trained(_classifier("SequenceClassification", "Bert"))
    with torch.no_grad():
        head.classifier.weight[0, 0] = math.inf
    with pytest.raises(SaddlesError, match="not finite"):
        lora_plan(base, head)


def test_a_config_neither_reaches_the_network_nor_builds_without_end(tmp_path, monkeypatch):
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    began = time.monotonic()
    base = tiny("llama")
    for part, seed in (("base", 0), ("tuned", 1)):
        (planted(base, rank=1) if seed else base).save_pretrained(tmp_path / part)
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    for bad in ({"num_hidden_layers": 10**7}, {"num_hidden_layers": 10**18}, {"num_hidden_layers": "many"}):
        for part in ("base", "tuned"):
            (tmp_path / part / "config.json").write_text(json.dumps(config | bad))
        assert len(lora_plan(tmp_path / "base", tmp_path / "tuned").modules) == 15
    for name in ("detr", "maskformer", "upernet", "dpt"):
        facts = {
            "model_type": name, "use_timm_backbone": True, "use_pretrained_backbone": True, "backbone": "resnet50",
            "architectures": [{"detr": "DetrModel", "maskformer": "MaskFormerModel",
                               "upernet": "UperNetForSemanticSegmentation", "dpt": "DPTModel"}[name]],
        }  # fmt: skip
        empty_model(facts, 100)
    # Settings that no name gives away: the bound on modules itself.
    wide = dict(config) | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40}
    assert empty_model(wide, 400) is not None
    monkeypatch.setattr("saddles.probe.weights.described._counts", lambda config: 0)
    assert empty_model(wide | {"num_hidden_layers": 10**6}, 400) is None
    assert time.monotonic() - began < 60
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_a_file_is_read_once_for_its_names(tmp_path, monkeypatch):
    """Time is linear in the number of tensors: names of a file are read once, not for every tensor."""
    from saddles.probe.weights import checkpoints

    opened = []
    safe = checkpoints._safe
    monkeypatch.setattr(checkpoints, "_safe", lambda file: opened.append(file) or safe(file))
    draw = torch.Generator().manual_seed(0)
    for part in ("base", "tuned"):
        tensors = {f"layers.{k}.proj.weight": torch.randn(4, 4, generator=draw) for k in range(300)}
        save_file(tensors, tmp_path / f"{part}.safetensors")
        torch.save(tensors, tmp_path / f"{part}.pt")
    plan = lora_plan(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors")
    assert len(plan.modules) == 300
    assert len(opened) == 2
    loads = []
    load = checkpoints._load
    monkeypatch.setattr(checkpoints, "_load", lambda file: loads.append(file) or load(file))
    assert lora_plan(tmp_path / "base.pt", tmp_path / "tuned.pt").modules == plan.modules
    assert len(loads) == 2
