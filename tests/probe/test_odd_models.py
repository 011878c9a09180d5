"""Models as people have them: wrapped, of types and parts that cannot be measured, and files that hold no numbers."""

import copy
import json

import pytest
import small_models
import torch
from torch import nn

from saddles.errors import SaddlesError
from saddles.probe import heads, record, spectra
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.planning import lora_plan


def compiled(part):
    """Compiled by name: nothing runs here."""
    return torch.compile(part, backend="eager")


def with_a_compiled_part(model):
    model[1] = compiled(model[1])
    return model


WRAPPERS = {
    "compiled": compiled,
    "compiled twice": lambda model: compiled(with_a_compiled_part(model)),
    "a compiled part": with_a_compiled_part,
    "DataParallel": nn.DataParallel,
    "compiled DataParallel": lambda model: compiled(nn.DataParallel(model)),
    "averaged": torch.optim.swa_utils.AveragedModel,
}


def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8, bias=False), nn.Sequential(nn.Linear(8, 10, bias=False)))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_has_the_plan_of_the_model_inside(wrapper, tmp_path):
    base, tuned = parts(), parts()
    with torch.no_grad():
        for tensor in tuned.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    expected = lora_plan(base, tuned)
    wrapped = WRAPPERS[wrapper](copy.deepcopy(tuned))
    for pair in ((base, wrapped), (WRAPPERS[wrapper](copy.deepcopy(base)), wrapped)):
        plan = lora_plan(*pair, evaluate=lambda model: model(torch.ones(1, 12)).square().mean().item())
        assert [(row.module, row.rank) for row in plan.modules] == [(row.module, row.rank) for row in expected.modules]
        assert not plan.left_out
    lora_extract(base, wrapped, plan, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == {"0", "1.0"}


def test_a_model_shared_between_processes_is_planned(tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        base, tuned = parts(), parts()
        with torch.no_grad():
            tuned.get_parameter("0.weight").add_(torch.randn(8, 12))
        plan = lora_plan(base, nn.parallel.DistributedDataParallel(tuned), energy=1)
        assert {row.module: row.rank for row in plan.modules} == {"0": 8, "1.0": 0}
    finally:
        dist.destroy_process_group()


def test_a_part_called_module_beside_others_is_no_wrapper():
    model = small_models.timm_like()
    model.module = small_models.timm_like()
    with pytest.raises(SaddlesError, match=r"are one name, for `module\.` is taken for what DataParallel adds"):
        heads(model)
    alone = nn.Module()
    alone.module, alone.head = small_models.timm_like(), nn.Linear(3, 3)
    assert [head.attention for head in heads(alone).heads] == [
        head.attention for head in heads(small_models.timm_like()).heads
    ]


def test_a_model_with_a_part_called_module_is_planned_whole():
    base = nn.ModuleDict({"module": parts(), "head": nn.Linear(10, 6, bias=False)})
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for tensor in tuned.parameters():
            tensor.add_(torch.randn_like(tensor))
    plan = lora_plan(base, tuned, energy=1)
    assert {row.module: row.rank for row in plan.modules} == {"module.0": 8, "module.1.0": 8, "head": 6}


def test_weights_without_a_shape_are_told():
    with pytest.raises(SaddlesError, match=r"0\.weight has no shape yet.* Call the model once first"):
        heads(nn.Sequential(nn.LazyLinear(3)))


def test_a_weight_that_is_computed_from_others_is_named():
    model = small_models.timm_like()
    nn.utils.parametrizations.spectral_norm(model.blocks[0]["attn"].qkv)
    found = heads(model)
    assert {head.attention for head in found.heads} == {"blocks.1.attn"}
    assert "remove_parametrizations" in dict(found.skipped)["blocks.0.attn.qkv.parametrizations.weight.original"]


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8", "uint8"])
def test_weights_of_8_bits_are_refused(kind):
    """Their scales lie elsewhere."""
    model = small_models.timm_like()
    start = copy.deepcopy(model)
    for part in (model, start):
        layer = part.blocks[0]["attn"].qkv
        layer.weight = nn.Parameter(layer.weight.detach().to(getattr(torch, kind)), requires_grad=False)
    with pytest.raises(SaddlesError, match=rf"blocks\.0\.attn\.qkv\.weight must have 16 bits or more; it is {kind}"):
        spectra(model, start)
    with pytest.raises(SaddlesError, match=f"16 bits or more; it is {kind}"):
        record(model)


@pytest.mark.parametrize(
    ("change", "words"), [(lambda t: t.to("meta"), "no values"), (torch.Tensor.to_sparse, "sparse")]
)
def test_a_file_without_numbers_is_told(tmp_path, change, words):
    torch.save({"layer.weight": torch.eye(4)}, tmp_path / "base.pt")
    torch.save({"layer.weight": change(2 * torch.eye(4))}, tmp_path / "tuned.pt")
    with pytest.raises(SaddlesError, match=f"layer.weight of .* has (a )?{words}"):
        lora_plan(tmp_path / "base.pt", tmp_path / "tuned.pt")
