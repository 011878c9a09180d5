"""`saddles regime` on a small GPT-2 over bytes, saved before and after a change."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from saddles import networks
from saddles.cli import app
from saddles.errors import SaddlesError
from saddles.networks.practice import compare_checkpoints, rows_of, verdict
from saddles.probe.weights.described import as_text
from saddles.transformers import make_gpt2

SIZES = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 256}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model: Any = make_gpt2(SIZES, seed=1)  # of transformers, which saves itself
    model.save_pretrained(folder / "base")
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    torch.manual_seed(0)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.02 * torch.randn_like(part))
    model.save_pretrained(folder / "tuned")
    (folder / "text.txt").write_text("All happy families are alike. " * 40)
    return folder, model, start


def test_command_gives_the_numbers_of_the_measures(pair, tmp_path):
    folder, model, start = pair
    words = ["regime", str(folder / "base"), str(folder / "tuned"), "--data", str(folder / "text.txt")]
    done = CliRunner().invoke(app, [*words, "--samples", "2", "--length", "16", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "linearity e" in done.output
    assert "On 2 blocks of 16 tokens of" in done.output
    assert "of the change of the outputs" in done.output
    stored = json.loads((tmp_path / "out" / "regime.json").read_text())
    assert (tmp_path / "out" / "regime.png").stat().st_size > 1000
    assert len((tmp_path / "out" / "heads.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    text = (folder / "text.txt").read_bytes()[:32]
    batch = torch.tensor(np.frombuffer(text, np.uint8).astype(np.int64)).reshape(2, 16)
    expected = networks.linearity(model, start, dict(model.named_parameters()), {"input_ids": batch})
    assert stored["linearity"] == pytest.approx(expected, rel=1e-5)
    assert stored["kernel_drift"] > 0
    whole, heads = compare_checkpoints(folder / "base", folder / "tuned", str(folder / "text.txt"), probes=0)
    assert "kernel_drift" not in whole
    assert heads["drift"].shape == (2, 2, 2)
    done = CliRunner().invoke(app, [*words, "--samples", "2", "--length", "16", "--probes", "0"])
    assert done.exit_code == 0, done.output
    assert "kernel" not in done.output


def _saved(kind, folder, scale=0.05, **extra):
    """A small random model before and after a random change of its weights, saved by transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 256, **ENDS, **extra}
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, num_hidden_layers=2, **sizes)).eval()
    model.save_pretrained(folder / "base")
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(1 + scale * torch.randn_like(part))
    model.save_pretrained(folder / "tuned")
    (folder / "text.txt").write_text("All happy families are alike. " * 40)
    return model, start


ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": 2}
FEW: dict[str, int] = {"samples": 2, "length": 16, "probes": 0}


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", GROUPED),
        ("gpt_neox", {}),
        ("qwen2", GROUPED),
        ("mixtral", {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 2}),
    ],
)
def test_families(kind, extra, tmp_path):
    """Rotary buffers of Llama; GPT-NeoX's head and Mixtral's experts, which transformers saves under other names; and
    Qwen2, whose config has a number of layers that counts no layers."""
    model, start = _saved(kind, tmp_path, **extra)
    whole, heads = compare_checkpoints(tmp_path / "base", tmp_path / "tuned", str(tmp_path / "text.txt"), **FEW)
    text = (tmp_path / "text.txt").read_bytes()[:32]
    batch = torch.tensor(np.frombuffer(text, np.uint8).astype(np.int64)).reshape(2, 16)
    expected = networks.linearity(model, start, dict(model.named_parameters()), {"input_ids": batch})
    assert float(whole["linearity"]) == pytest.approx(expected, rel=1e-5)
    assert heads["drift"].shape == (2, 4, 2)
    assert bool(heads["applies"].all())
    lawful = heads["product"] == "VO"
    unlike = heads.assign(drift=heads["drift"].where(lawful, 1e9), applies=heads["applies"] & lawful)
    row = next(row for row in rows_of(whole, unlike) if row[0] == "drift of invariants")
    assert float(row[1]) == pytest.approx(float(heads["drift"].sel(product="VO").median()), rel=1e-2)


def test_an_adapter_is_the_model_that_it_makes(tmp_path):
    import peft
    from transformers import AutoModelForCausalLM

    _saved("llama", tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted: Any = peft.get_peft_model(base, config)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    text = str(tmp_path / "text.txt")
    found = [compare_checkpoints(tmp_path / "base", tmp_path / name, text, **FEW)[0] for name in ("adapter", "merged")]
    assert float(found[0]["linearity"]) == pytest.approx(float(found[1]["linearity"]), rel=1e-3)
    assert float(found[0]["output_change"]) > 1e-3
    wide = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    wide.resize_token_embeddings(260)
    with pytest.warns(UserWarning, match="has been resized"):
        peft.get_peft_model(wide, config).save_pretrained(tmp_path / "wide")
    with pytest.raises(SaddlesError, match=r"one model at two times; .* is \(256, 16\) in .* and \(260, 16\) in"):
        compare_checkpoints(tmp_path / "base", tmp_path / "wide", text, **FEW)


def test_the_tokenizer_may_lie_beside_the_tuned_model(tmp_path):
    """As a trainer saves it, with the model or with the adapter that it trained; `saddles lora` looks there, too."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    model, start = _saved("llama", tmp_path)
    words = Tokenizer(WordLevel({"All": 7, "happy": 11, "families": 5, "are": 3, "alike": 2, ".": 1}, unk_token="."))
    words.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tuned")
    whole, _ = compare_checkpoints(tmp_path / "base", tmp_path / "tuned", str(tmp_path / "text.txt"), **FEW)
    batch = torch.tensor([7, 11, 5, 3, 2, 1] * 6)[:32].reshape(2, 16)
    expected = networks.linearity(model, start, dict(model.named_parameters()), {"input_ids": batch})
    assert float(whole["linearity"]) == pytest.approx(expected, rel=1e-5)


def test_rounding_is_not_called_active(tmp_path):
    _saved("llama", tmp_path, scale=1e-7)
    whole, _ = compare_checkpoints(tmp_path / "base", tmp_path / "tuned", str(tmp_path / "text.txt"), **FEW)
    assert float(whole["linearity"]) > 0.3
    assert "cannot be told" in verdict(whole)
    assert "(e = 1.15)" in verdict(whole.assign(linearity=1.15, linearity_floor=0.0))
    assert verdict(whole.assign(linearity=0.0984, linearity_floor=0.0)).startswith("9.8 % of the change")


def test_whole_numbers_are_no_weights_and_files_hold_no_nan(pair, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, *_ = pair
    packed = tmp_path / "packed"
    shutil.copytree(folder / "tuned", packed)
    tensors = load_file(packed / "model.safetensors")
    name = "transformer.h.0.attn.c_attn.weight"
    save_file({**tensors, name: (100 * tensors[name]).to(torch.int8)}, packed / "model.safetensors", {"format": "pt"})
    text = str(folder / "text.txt")
    with pytest.raises(SaddlesError, match=r"int8|quantised"):
        compare_checkpoints(folder / "base", packed, text, **FEW)
    base = str(folder / "base")
    done = CliRunner().invoke(
        app, ["regime", base, base, "--data", text, "--probes", "0", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert "NaN" not in (written := (tmp_path / "out" / "regime.json").read_text())
    assert json.loads(written)["linearity"] is None


def test_settings_that_change_the_function_and_models_without_heads(tmp_path):
    _saved("llama", tmp_path)
    place = tmp_path / "tuned" / "config.json"
    settings = json.loads(place.read_text())
    place.write_text(json.dumps({**settings, "use_cache": False}))  # of no effect on the outputs
    text = str(tmp_path / "text.txt")
    compare_checkpoints(tmp_path / "base", tmp_path / "tuned", text, **FEW)
    ropes = {**settings["rope_parameters"], "rope_theta": 2.0}
    place.write_text(json.dumps({**settings, "rope_parameters": ropes}))
    with pytest.raises(SaddlesError, match=r"another function of the same weights.*rope_parameters"):
        compare_checkpoints(tmp_path / "base", tmp_path / "tuned", text, **FEW)
    _saved("mamba", tmp_path / "mamba", state_size=4)
    words = ["regime", str(tmp_path / "mamba" / "base"), str(tmp_path / "mamba" / "tuned"), "--data", text]
    done = CliRunner().invoke(app, [*words, "--samples", "1", "--length", "8", "--probes", "0"])
    assert done.exit_code == 0, done.output
    assert "No numbers of heads" in done.output
    assert "linearity e" in done.output


def test_all_of_a_text_is_used_and_what_is_none_is_refused(pair, tmp_path):
    folder, *_ = pair
    (tmp_path / "one.txt").write_text("a")
    whole, _ = compare_checkpoints(folder / "base", folder / "tuned", str(tmp_path / "one.txt"), probes=0)
    assert (whole.attrs["samples"], whole.attrs["length"]) == (1, 1)
    with pytest.raises(SaddlesError, match=r"is not a text: \d+ % of it"):
        as_text(bytes(range(256)) * 4, "noise.bin")
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(SaddlesError, match="holds no text"):
        compare_checkpoints(folder / "base", folder / "tuned", str(tmp_path / "none.txt"))


def test_nothing_changed_and_bad_input(pair, tmp_path):
    folder, *_ = pair
    text = str(folder / "text.txt")
    whole, _ = compare_checkpoints(folder / "base", folder / "base", text, probes=0)
    assert verdict(whole) == "On this text the outputs did not change at all."
    with pytest.raises(SaddlesError, match="There is no data set or text file"):
        compare_checkpoints(folder / "base", folder / "tuned", "nowhere.txt")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "model.safetensors").write_bytes((folder / "base" / "model.safetensors").read_bytes())
    with pytest.raises(SaddlesError, match=r"no config\.json that says its model_type"):
        compare_checkpoints(alone / "model.safetensors", folder / "tuned", text)
    with pytest.raises(SaddlesError, match="`samples` must be at least 1"):
        compare_checkpoints(folder / "base", folder / "tuned", text, samples=0)
