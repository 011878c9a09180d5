"""Adapters that stand for their base with the adapter on it, against PEFT's own merge."""

import json
from typing import Any

import pytest
import torch
from planted import tiny

from saddles.errors import SaddlesError
from saddles.probe.lora.on_base import open_model
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.reshape import lora_compress

TOKENS = [7, 3, 20]


@pytest.fixture(params=[{"embed_tokens": TOKENS}, TOKENS], ids=["by module", "a list"])
def folder(request, tmp_path):
    """A base, and an adapter that trains the rows of three tokens beside its factors."""
    from peft import LoraConfig, get_peft_model

    base: Any = tiny("llama")
    base.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, trainable_token_indices=request.param)
    model: Any = get_peft_model(base, config)
    with torch.no_grad():
        model.get_input_embeddings().token_adapter.trainable_tokens_delta["default"].mul_(3.0)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path


def test_rows_of_single_tokens_are_those_of_peft(folder):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), folder / "adapter")
    wanted = merged.merge_and_unload().state_dict()
    weights = open_model(folder / "adapter")
    for name in weights.shapes:
        torch.testing.assert_close(weights.read(name).double(), wanted[name].double(), atol=1e-6, rtol=0)
    name = "model.embed_tokens.weight"
    torch.testing.assert_close(weights.read(name, slice(4, 21)), weights.read(name)[4:21], atol=0, rtol=0)
    plan = lora_plan(folder / "base", folder / "adapter", energy=1.0)
    rows = torch.zeros(3, 1)
    for at, token in enumerate(TOKENS):
        rows[at] = (wanted[name][token] - tiny("llama").state_dict()[name][token]).norm()
    (left,) = plan.left_out
    assert (left.name, left.norm) == (name, pytest.approx(float(rows.norm()), rel=1e-5))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, "does not say which tokens"),
        ([7, 3], r"tokens of model\.embed_tokens that do not fit"),
        ([7, 3, 10**6], "token 1000000, which"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(folder, table, words):
    place = folder / "adapter" / "adapter_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"trainable_token_indices": table}))
    with pytest.raises(SaddlesError, match=words):
        open_model(folder / "adapter")


def test_ranks_of_an_adapter_of_tokens_are_not_chosen_by_loss(folder):
    with pytest.raises(SaddlesError, match=r"which .* does not have. Choose the ranks by `energy`"):
        lora_compress(folder / "adapter", folder / "out", loss=0.1, evaluate=torch.arange(10)[None])


def test_an_adapter_that_brings_a_larger_vocabulary(tmp_path):
    """PEFT stores its embedding three times: as the model names it, as it is wrapped, and as it was."""
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    base: Any = tiny("llama")
    base.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")
    rows = len(base.get_input_embeddings().weight) + 8
    base.resize_token_embeddings(rows)
    settings: Any = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    model: Any = get_peft_model(base, LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **settings))
    with pytest.warns(UserWarning, match="embedding layer has been resized"):
        model.save_pretrained(tmp_path / "adapter")
    plan = lora_plan(tmp_path / "base", tmp_path / "adapter", energy=1.0)
    assert {row.module for row in plan.carried} == {f"model.layers.{at}.self_attn.q_proj" for at in range(2)}
    assert {row.name for row in plan.left_out} == {"model.embed_tokens.weight", "lm_head.weight"}
    text = torch.arange(10)[None]
    with pytest.raises(SaddlesError, match=f"of {rows}×32, where its base has {rows - 8}×32, .*Merge the adapter"):
        lora_plan(tmp_path / "base", tmp_path / "adapter", evaluate=text)
    with pytest.raises(SaddlesError, match=r"`loss` cannot be measured. Choose the ranks by `energy`"):
        lora_compress(tmp_path / "adapter", tmp_path / "out", loss=0.1, evaluate=text)
    made = lora_compress(tmp_path / "adapter", tmp_path / "same", energy=1.0)
    assert made.error < 1e-6
    wide: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    wide.resize_token_embeddings(rows)
    with torch.no_grad():
        wanted = model.eval()(text).logits
        found = PeftModel.from_pretrained(wide, tmp_path / "same").eval()(text).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
