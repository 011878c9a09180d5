"""Quantised bases: the numbers of bitsandbytes, ranks above quantisation, and what quantising again destroys."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import tiny
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from saddles.cli import app
from saddles.errors import SaddlesError
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.plan import LoraPlan
from saddles.probe.lora.planning import lora_plan
from saddles.probe.weights.checkpoints import open_weights
from saddles.probe.weights.quantised import dequantised

STORED = Path(__file__).parents[1] / "support" / "anchors" / "bitsandbytes.safetensors"
FORMATS = ("nf4", "double", "fp4", "int8")
TOKENS = torch.arange(12)[None]


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_are_those_that_bitsandbytes_reads(name):
    weights, expected = dequantised(open_weights(STORED)), load_file(STORED)[f"{name}.expected"]
    assert set(weights.quantised) == {f"{one}.weight" for one in FORMATS}
    assert not any("quant" in key or "SCB" in key or "absmax" in key for key in weights.shapes)
    torch.testing.assert_close(weights.read(f"{name}.weight"), expected, rtol=1e-6, atol=0)
    # 33 columns: rows begin in the middle of bytes and of blocks.
    assert torch.equal(weights.read(f"{name}.weight", slice(3, 8)), weights.read(f"{name}.weight")[3:8])
    assert weights.shapes[f"{name}.weight"] == (17, 33)


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_again_as_by_bitsandbytes(name):
    stored = load_file(STORED)
    grid = dequantised(open_weights(STORED)).quantised[f"{name}.weight"]
    matrix = stored["matrix"].to({"fp4": torch.bfloat16, "int8": torch.float16}.get(name)).float()  # as it was given
    ours, theirs = grid.again(matrix).float(), stored[f"{name}.expected"].float()
    assert float(torch.isclose(ours, theirs, rtol=1e-5).float().mean()) > 0.98  # ties, and sizes near a boundary
    errors = [float((one - matrix).norm()) for one in (ours, theirs)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)
    # The variance h²/12 predicts that error.
    assert errors[1] == pytest.approx(float(grid.variance().sum()) ** 0.5, rel=0.15)


def _nf4(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix as bitsandbytes stores it, by nearest codes."""
    code = load_file(STORED)["nf4.weight.quant_map"]
    blocks = matrix.float().reshape(-1, 64)
    sizes = blocks.abs().amax(dim=1)
    codes = (blocks[:, :, None] / sizes[:, None, None] - code).abs().argmin(dim=-1).flatten()
    facts = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(matrix.shape)})
    return {
        "": (codes[::2] * 16 + codes[1::2]).to(torch.uint8)[:, None],
        ".absmax": sizes, ".quant_map": code,
        ".quant_state.bitsandbytes__nf4": torch.tensor(list(facts.encode()), dtype=torch.uint8),
    }  # fmt: skip


def _pair(folder: Path, size: float, on_quantised: bool) -> tuple[Any, Any]:
    """A base in NF4 in a folder, the same as it computes, and that or the base before with a change of rank 2."""
    plain, draw = tiny("llama"), torch.Generator().manual_seed(5)
    plain.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    matrices = [name for name, p in plain.named_parameters() if p.ndim == 2 and "layers" in name]
    for name in matrices:
        tensors |= {f"{name}{end}": part for end, part in _nf4(tensors.pop(name)).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    base = copy.deepcopy(plain)
    weights = dequantised(open_weights(folder))
    with torch.no_grad():
        for name in matrices:
            base.get_parameter(name).copy_(weights.read(name))
        tuned = copy.deepcopy(base if on_quantised else plain)
        for name in matrices:
            matrix = tuned.get_parameter(name)
            change = torch.randn(len(matrix), 2, generator=draw) @ torch.randn(2, matrix.shape[1], generator=draw)
            matrix += size * change * matrix.norm() / change.norm()
    return base, tuned


@pytest.mark.parametrize(("size", "on_quantised"), [(1.0, False), (1.0, True), (0.02, True)])
def test_planted_rank_is_found_on_a_quantised_base(size, on_quantised, tmp_path):
    base, tuned = _pair(tmp_path / "base", size, on_quantised)
    plan = lora_plan(tmp_path / "base", tuned, energy=1)
    changed = [row for row in plan.modules if "lm_head" not in row.module]
    assert all(1 <= row.rank <= 2 for row in changed), [row.rank for row in changed]
    assert np.mean([row.rank for row in changed]) > 1.8
    assert plan.quantised == "NF4"
    assert LoraPlan.from_json(plan.to_json()) == plan
    extraction = lora_extract(tmp_path / "base", tuned, plan, tmp_path / "adapter")
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        found, wanted = adapted(TOKENS).logits, tuned(TOKENS).logits
    off = float((found - wanted).norm() / wanted.norm())
    assert off < 1e-5 if on_quantised else off < 0.5
    # What merging and quantising again destroys: all of a change that is small against the codes' distances.
    merged = adapted.merge_and_unload()
    apart = 0.0
    for name, matrix in merged.named_parameters():
        if "layers" in name and matrix.ndim == 2:
            folder = tmp_path / name
            folder.mkdir()
            save_file({f"w{end}": part for end, part in _nf4(matrix.detach()).items()}, folder / "model.safetensors")
            apart += float((dequantised(open_weights(folder)).read("w") - matrix.detach()).norm()) ** 2
    assert extraction.requantised == pytest.approx(apart**0.5, rel=1e-3)
    share = extraction.requantised / plan.norm
    assert share > 0.9 if size < 0.1 else share < 0.3


def test_quantisation_in_the_difference_is_not_bought(tmp_path):
    _, tuned = _pair(tmp_path / "base", 0.3, False)
    plan = lora_plan(tmp_path / "base", tuned, energy=1)
    rows = [row for row in plan.modules if row.rank]
    assert max(row.rank for row in rows) <= 2
    assert all(row.floor > 0.05 * row.norm for row in rows)
    leading = lora_plan(tmp_path / "base", tuned, max_rank=100, leading=20)
    assert [row.rank for row in leading.modules] == [row.rank for row in plan.modules]


def test_other_formats_and_damage_are_refused_in_one_sentence(tmp_path):
    _, tuned = _pair(tmp_path / "base", 1.0, True)
    tuned.save_pretrained(tmp_path / "tuned")
    result = CliRunner().invoke(app, ["lora", "plan", str(tmp_path / "base"), str(tmp_path / "tuned")])
    assert "the base is stored as NF4" in result.output.replace("\n", " ")
    with pytest.raises(SaddlesError, match="is quantised and is not run on a text"):
        lora_plan(tuned, tmp_path / "base", data=TOKENS)

    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "tuned" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SaddlesError, match=r"quantised by gptq; .* Give the model before quantisation"):
        lora_plan(tmp_path / "tuned", tuned)

    tensors = load_file(tmp_path / "base" / "model.safetensors")
    name = next(name for name in tensors if "quant_state" in name)
    for broken in (tensors[name][:-5], torch.tensor(list(b"{}"), dtype=torch.uint8)):
        save_file({**tensors, name: broken.clone()}, tmp_path / "base" / "model.safetensors")
        with pytest.raises(SaddlesError, match="Save the model again"):
            lora_plan(tmp_path / "base", tuned)

    live = torch.nn.Sequential(torch.nn.Linear(4, 4))
    live[0].weight = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(SaddlesError, match="Save it with save_pretrained"):
        lora_plan(live, live)
