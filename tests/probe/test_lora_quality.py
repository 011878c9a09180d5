"""The loss of base + adapter, against PEFT's own forward pass."""

import copy
import gzip
from typing import Any

import numpy as np
import pytest
import torch
from planted import tiny, trained

from saddles.errors import SaddlesError
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.quality import smallest_within
from saddles.probe.lora.ranks import Sized

TEXT = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(5))


def _loss(model: Any, reference: Any = None) -> float:
    """Cross-entropy of the next token, or KL to a reference."""
    with torch.no_grad():
        found = model(TEXT).logits
        if reference is None:
            return float(torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), TEXT[:, 1:].flatten()))
        wanted = reference(TEXT).logits.log_softmax(-1)
        return float((wanted.exp() * (wanted - found.log_softmax(-1))).sum(-1).mean())


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("save_modules", [False, True])
def test_measured_values_are_those_of_the_loaded_adapter(family, save_modules, tmp_path):
    from peft import PeftModel

    base = tiny(family)
    tuned = trained(base)
    reference = tuned if family == "bert" else None
    plan = lora_plan(base, tuned, energy=0.6, save_modules=save_modules, evaluate=TEXT)
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    rows = {row.what: row for row in plan.measured}
    adapted = PeftModel.from_pretrained(copy.deepcopy(base), str(made.folder)).eval()
    assert rows["tuned"].value == pytest.approx(_loss(tuned, reference), abs=1e-5)
    assert rows["energy=0.6"].value == pytest.approx(_loss(adapted, reference), abs=1e-5)
    if not save_modules:
        assert rows["base"].value == pytest.approx(_loss(base, reference), abs=1e-5)
    else:
        assert rows["rank 32"].value == pytest.approx(rows["tuned"].value, abs=1e-5)
    assert rows["energy=0.6"].parameters == plan.parameters


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_with_fewer_ranks_is_within_the_loss(seed):
    """Against every threshold, for spectra that fall fast: the last ranks carry less than 1e-6 of the energy."""
    draw = np.random.default_rng(seed)
    sized = [Sized(np.sort(10 ** draw.uniform(-4, 0, count))[::-1], 0.0, 9, 9) for count in (3, 7, 5)]
    every = sorted((value for one in sized for value in one.values), reverse=True)

    def missed(ranks: list[int]) -> float:
        return sum(float((one.values[rank:] ** 2).sum()) for one, rank in zip(sized, ranks, strict=True))

    for most in (1e-1, 1e-3, 1e-7):
        ways = [[int((one.values >= least).sum()) for one in sized] for least in every]
        fewest = min((ranks for ranks in ways if missed(ranks) <= most), key=sum)
        assert smallest_within(sized, missed, most) == fewest


def test_the_smallest_adapter_within_a_loss():
    base = tiny("llama")
    tuned = trained(base)
    with torch.no_grad():  # a text that the tuned model knows
        known = tuned.generate(torch.tensor([[3]]), max_new_tokens=20, do_sample=False)
    whole = lora_plan(base, tuned, energy=1.0, save_modules=True, evaluate=known)
    base_loss, tuned_loss = (row.value for row in whole.measured[:2])
    allowed = 0.3 * (base_loss - tuned_loss)
    assert allowed > 0
    plan = lora_plan(base, tuned, loss=allowed, evaluate=known, save_modules=True)
    assert plan.measured[-1].value <= tuned_loss + allowed
    assert plan.parameters < whole.parameters
    assert plan.asked == f"loss={allowed:g}"
    fewer = lora_plan(base, tuned, energy=plan.energy_above - 0.02, save_modules=True, evaluate=known)
    assert fewer.parameters < plan.parameters
    assert fewer.measured[-1].value > tuned_loss + allowed
    with pytest.raises(SaddlesError, match="no rank carries"):
        lora_plan(base, tuned, loss=1e-9, evaluate=known)
    with pytest.raises(SaddlesError, match="needs `evaluate`"):
        lora_plan(base, tuned, loss=0.1)
    with pytest.raises(SaddlesError, match="by itself"):
        lora_plan(base, tuned, loss=0.1, energy=0.9, evaluate=known)


def test_a_text_file_and_a_function(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast
    from typer.testing import CliRunner

    from saddles.cli import app

    base = tiny("llama")
    tuned = trained(base)
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    (tmp_path / "text").write_text(" ".join(f"w{int(k)}" for k in TEXT[0]))
    with pytest.raises(SaddlesError, match="give token ids or a function instead") as caught:
        lora_plan(base, tuned, data=tmp_path / "text")
    assert "save_pretrained" not in str(caught.value)
    args = ["lora", "plan", str(tmp_path / "base"), str(tmp_path / "tuned"), "--data", str(tmp_path / "text")]
    refused = CliRunner().invoke(app, args).exception
    assert f"tokenizer.save_pretrained('{tmp_path / 'base'}')" in str(refused)
    assert "or give token ids from Python" in str(refused)
    words = Tokenizer(WordLevel({f"w{k}": k for k in range(50)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tuned")
    stored = lora_plan(tmp_path / "base", tmp_path / "tuned", evaluate=tmp_path / "text")
    live = lora_plan(base, tuned, evaluate=TEXT[:1])
    for one, other in zip(stored.measured, live.measured, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-5)
    asked = lora_plan(base, tuned, evaluate=lambda model: 7.0)
    assert {row.value for row in asked.measured} == {7.0}
    args[-2] = "--eval"
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert f"{stored.measured[1].value:.4f}" in result.output
    (tmp_path / "packed").write_bytes(gzip.compress((tmp_path / "text").read_bytes()))
    for name in ("data", "evaluate"):
        with pytest.raises(SaddlesError, match=r"packed is not a text: \d+ % of it"):
            lora_plan(tmp_path / "base", tmp_path / "tuned", **{name: tmp_path / "packed"})
