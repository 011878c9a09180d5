"""Adapters, configurations and tokenizers of others: one sentence, in time, and nothing of theirs runs."""

import json
import shutil
import time

import pytest
import small_models
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from saddles.errors import SaddlesError
from saddles.networks.practice import compare_checkpoints
from saddles.probe.lora.patterns import first_match
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.reshape import lora_compress, lora_grow, lora_merge
from saddles.probe.weights.described import settings_of

MODULE = "model.layers.0.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"
VERBS = {
    "compress": lambda place, out: lora_compress(place, out, max_rank=1),
    "merge": lambda place, out: lora_merge([place, place], None, out),
    "grow": lambda place, out: lora_grow(place, 4, out),
}


def adapter(place, settings="", kind=torch.float32, size=1.0, rank=2):
    place.mkdir()
    tensors = {"A": torch.full((rank, 8), size), "B": torch.full((6, rank), size)}
    save_file(
        {f"base_model.model.{MODULE}.lora_{side}.weight": t.to(kind) for side, t in tensors.items()},
        place / "adapter_model.safetensors",
    )
    (place / "adapter_config.json").write_text(settings or '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    return place


def settings(words):
    return f'{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, {words}}}'


CASES = {
    "endless pattern": ({"settings": settings(r'"rank_pattern": {"(a+)+b": 2}')}, "too long to match"),
    "branches": ({"settings": settings(f'"alpha_pattern": {{"{"(a|a)" * 40}b": 2}}')}, "too long to match"),
    "maybes": ({"settings": settings(f'"alpha_pattern": {{"{"a?" * 40}{"a" * 40}": 2}}')}, "too long to match"),
    "no pattern": ({"settings": settings('"rank_pattern": {"(": 2}')}, "is not a valid pattern"),
    "text for a rank": ({"settings": settings('"rank_pattern": {".*": "x"}')}, "`r` must be a number"),
    "truth for a rank": ({"settings": '{"peft_type": "LORA", "r": true}'}, "`r` must be a number"),
    "endless rank": ({"settings": '{"peft_type": "LORA", "r": 1e999}'}, "`r` must be a number"),
    "no alpha": ({"settings": '{"peft_type": "LORA", "r": 2, "lora_alpha": NaN}'}, "`lora_alpha` must be a number"),
    "long alpha": (
        {"settings": settings(f'"lora_alpha": 1{"0" * 400}')},
        "`lora_alpha` must be a number",
    ),
    "deep settings": ({"settings": '{"a":' * 50_000}, "cannot be read as JSON"),
    "no rank": ({"rank": 0}, "empty factors"),
    "truth for numbers": ({"kind": torch.bool}, "numbers of type bool"),
    "whole numbers": ({"kind": torch.int64}, "numbers of type int64"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES)
def test_hostile_adapters_are_one_sentence(tmp_path, case, verb):
    facts, words = CASES[case]
    place = adapter(tmp_path / "x", **facts)
    began = time.process_time()
    with pytest.raises(SaddlesError, match=words) as told:
        VERBS[verb](place, tmp_path / "out")
    assert time.process_time() - began < 5
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_numbers_that_would_overflow_are_not_written(tmp_path):
    large = adapter(tmp_path / "large", settings('"lora_alpha": 1000000'), torch.float16, 6e4)
    with pytest.raises(SaddlesError, match="too large for float16"):
        lora_grow(large, 3, tmp_path / "out")
    plain = adapter(tmp_path / "plain")
    with pytest.raises(SaddlesError, match="too large for a number"):
        lora_merge([plain, plain], [1e308, 1e308], tmp_path / "out")
    with pytest.raises(SaddlesError, match="`rank` must be at most 6"):
        lora_grow(plain, 10**9, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    lora_grow(plain, 6, tmp_path / "out")
    assert len(load_file(tmp_path / "out" / "adapter_model.safetensors")) == 2


def test_patterns_in_use_are_looked_up_as_peft_does():
    name = "model.layers.11.self_attn.q_proj"
    for pattern in ("q_proj", r".*\.q_proj", "^model.layers.11.self_attn.q_proj", r"layers\.(9|10|11)\..*(q|v)_proj"):
        assert first_match({"k_proj": 1, pattern: 2}, name) == 2, pattern
    assert first_match({"proj": 1, "q": 2}, name) is None


def test_settings_name_no_code_and_no_model_of_others():
    hostile = {
        "auto_map": {"AutoConfig": "evil.C"}, "backbone": "org/model", "attn_implementation": "org/kernel",
        "_attn_implementation": "org/kernel", "experts_implementation": "org/kernel", "use_kernels": True,
        "text_config": {"_attn_implementation": "org/kernel", "hidden_size": 8}, "backbone_config": {"depth": 2},
    }  # fmt: skip
    assert settings_of(hostile) == {"text_config": {"hidden_size": 8}, "backbone_config": {"depth": 2}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A base and a fine-tune in Hugging Face folders with a tokenizer, and a text."""
    home = tmp_path_factory.mktemp("pair")
    torch.manual_seed(0)
    model = small_models.gpt2()
    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(small_models.WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("base", "tuned"):
        model.save_pretrained(home / name)
        words.save(str(home / name / "tokenizer.json"))
        (home / name / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.mul_(1.01)
    (home / "text").write_text("w1 w2 w3 w4 w5 " * 10)
    return home


RUNS = {
    "regime": lambda home: compare_checkpoints(
        home / "base", home / "tuned", str(home / "text"), samples=1, length=8, probes=0
    ),
    "plan": lambda home: lora_plan(home / "base", home / "tuned", max_rank=2, data=home / "text"),
}
FOREIGN = {
    "ten million layers": ("config.json", {"n_layer": 10**7}, "far larger model"),
    "an endless vocabulary": ("config.json", {"vocab_size": 10**12}, "cannot be run|can build"),
    "less than no tokens": ("config.json", {"vocab_size": -3}, "cannot be run|can build"),
    "no heads": ("config.json", {"n_head": 0}, "cannot be run|can build"),
    "no activation": ("config.json", {"activation_function": "os.system"}, "cannot be run|can build"),
    "no tokenizer": ("tokenizer.json", "{}", "tokenizer in .* cannot be used"),
    "deep tokenizer": ("tokenizer_config.json", "[" * 100_000, "tokenizer in .* cannot be used"),
    "tokens that the model lacks": ("tokenizer.json", None, "gives token 999, and the model has 50"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", RUNS)
@pytest.mark.parametrize("case", FOREIGN)
def test_models_that_cannot_be_run_are_one_sentence(pair, tmp_path, case, verb):
    name, change, words = FOREIGN[case]
    home = shutil.copytree(pair, tmp_path / "x")
    for folder in (home / "base", home / "tuned"):
        text = (folder / name).read_text()
        if change is None:
            text = text.replace('"w3": 3', '"w3": 999').replace('"w3":3', '"w3":999')
        elif isinstance(change, str):
            text = change
        else:
            text = json.dumps(json.loads(text) | change)
        (folder / name).write_text(text)
    with pytest.raises(SaddlesError, match=words) as told:
        RUNS[verb](home)
    assert "\n" not in str(told.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", RUNS)
def test_models_run_without_code_or_kernels_of_others(pair, tmp_path, verb):
    """Blocks of text are no longer than the model takes, and what a config names is neither imported nor fetched."""
    home = shutil.copytree(pair, tmp_path / "x")
    for folder in (home / "base", home / "tuned"):
        facts = json.loads((folder / "config.json").read_text())
        facts |= {"auto_map": {"AutoConfig": "evil.C"}, "attn_implementation": "org/kernel"}
        (folder / "config.json").write_text(json.dumps(facts))
        facts = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["evil.T", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(facts))
        (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass T: ...\nclass C: ...\n")
    RUNS[verb](home)
    assert not (tmp_path / "ran").exists()
