"""`saddles regime` on a small GPT-2 over bytes, saved before and after a change."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from saddles import networks
from saddles.cli import app
from saddles.errors import SaddlesError
from saddles.networks.practice import compare_checkpoints, rows_of, verdict
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
    assert "beyond the linear part" in done.output
    stored = json.loads((tmp_path / "out" / "regime.json").read_text())
    assert (tmp_path / "out" / "regime.png").stat().st_size > 1000
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


def test_a_model_with_rotary_positions_and_shared_keys(tmp_path):
    """Weights that are read are the only ones: neither those of a model being built nor its buffers are left over."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=256))
    model.save_pretrained(tmp_path / "base")
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.05 * torch.randn_like(part))
    model.save_pretrained(tmp_path / "tuned")
    (tmp_path / "text.txt").write_text("All happy families are alike. " * 40)
    settings = {"samples": 2, "length": 16, "probes": 0}
    whole, heads = compare_checkpoints(tmp_path / "base", tmp_path / "tuned", str(tmp_path / "text.txt"), **settings)
    text = (tmp_path / "text.txt").read_bytes()[:32]
    batch = torch.tensor(np.frombuffer(text, np.uint8).astype(np.int64)).reshape(2, 16)
    expected = networks.linearity(model, start, dict(model.named_parameters()), {"input_ids": batch})
    assert float(whole["linearity"]) == pytest.approx(expected, rel=1e-5)
    assert heads["drift"].shape == (2, 4, 2)
    assert bool(heads["applies"].all())
    unlawful = heads.assign(drift=heads["drift"].where(heads["product"] == "VO", 1e9), applies=heads["product"] == "VO")
    row = next(row for row in rows_of(whole, unlawful) if row[0] == "drift of invariants")
    assert float(row[1]) == pytest.approx(float(heads["drift"].sel(product="VO").median()), rel=1e-2)


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
