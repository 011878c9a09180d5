"""Experts that a model keeps in one tensor: the ΔW of each."""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import numpy as np
import pytest
import small_models
import torch
from safetensors.torch import load_file, save_file

from saddles.probe import heads, inspect, record, spectra

NAME = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def models():
    import transformers

    config = transformers.MixtralConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=12,
        num_local_experts=3, vocab_size=30,
    )  # fmt: skip
    torch.manual_seed(0)
    start = transformers.MixtralForCausalLM(config)
    return start, small_models.nudge(start, 0.1)


def test_every_expert_is_a_matrix_of_its_own(models):
    start, late = models
    before, after = (dict(model.named_parameters())[NAME].detach().double() for model in models)
    found = spectra(late, start)["modules"].to_dataset()
    for expert in range(3):
        values = found["singular_value"].sel(module=f"{NAME}[{expert}]").values[0]
        dense = torch.linalg.svdvals(after[expert] - before[expert]).numpy()
        np.testing.assert_allclose(values[: len(dense)], dense, atol=1e-6 * dense[0])
        assert np.isnan(values[len(dense) :]).all()
    assert not any("experts" in name for name, _ in heads(late).skipped)


def test_files_and_recordings_hold_the_same_experts(models, tmp_path):
    start, late = models
    expected = spectra(late, start)["modules"]["stable_rank"].values[0]
    for name, model in (("checkpoint-0", start), ("checkpoint-5", late)):
        model.save_pretrained(tmp_path / name)
        tensors = {key: value.detach().contiguous() for key, value in model.named_parameters()}  # names as they run
        save_file(tensors, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    assert load_file(tmp_path / "checkpoint-0" / "model.safetensors")[NAME].ndim == 3
    tree = inspect(tmp_path)
    assert f"{NAME}[2]" in tree["modules"]["module"].values
    np.testing.assert_allclose(tree["modules"]["stable_rank"].values[-1], expected, rtol=1e-5)
    only = inspect(tmp_path, only=r"experts\.down_proj\[1\]")["modules"]
    assert [str(name) for name in only["module"].values] == [
        f"model.layers.{layer}.mlp.experts.down_proj[1]" for layer in (0, 1)
    ]
    moving = small_models.nudge(start, 0.0)
    with record(moving, every=1, modules=True) as run:
        moving.load_state_dict(late.state_dict())
        run.step()
    np.testing.assert_allclose(run.result["modules"]["stable_rank"].values[-1], expected, rtol=1e-5)
