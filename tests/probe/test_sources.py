"""Pairs and series that people have: other heads, prefixes, vocabularies, names and formats."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed_checkpoint
import numpy as np
import pytest
import small_models
import torch
import xarray as xr
from planted import planted, tiny
from safetensors.torch import load_file, save_file

import saddles
from saddles.errors import SaddlesError
from saddles.probe import heads, spectra
from saddles.probe.inspection import inspect
from saddles.probe.weights import checkpoints
from saddles.probe.weights.checkpoint_series import open_series
from saddles.probe.weights.checkpoints import open_weights
from saddles.probe.weights.matching import layout_of


def _bert(kind: str, **more: Any) -> Any:
    import transformers

    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, vocab_size=30, **more
    )
    torch.manual_seed(0)
    return getattr(transformers, kind)(config)


def _moved(model: Any, of: Any) -> Any:
    """The second model with the weights that both share, a little further."""
    there = of.state_dict()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            ends = [n for n in there if n.endswith(name) or name.endswith(n)]
            if ends and there[ends[0]].shape == tensor.shape:
                tensor.copy_(there[ends[0]] + 0.01 * torch.randn_like(tensor))
    return model


def test_a_base_without_a_prefix_and_another_head_are_matched_by_structure(tmp_path):
    base = _bert("BertForMaskedLM")
    tuned = _moved(_bert("BertForSequenceClassification"), base)
    bare = base.bert
    bare.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    tree: Any = inspect(tmp_path / "tuned", reference=tmp_path / "base")
    exact: Any = spectra(tuned.bert, {name: p.detach() for name, p in bare.named_parameters()})
    np.testing.assert_allclose(tree["heads"]["stable_rank"].values, exact["heads"]["stable_rank"].values, rtol=1e-5)
    assert exact["heads"]["stable_rank"].min() > 1
    notes = json.loads(tree.attrs["notes"])
    assert any("matched by structure" in note and "is bert.encoder.layer.0" in note for note in notes)
    live: Any = spectra(tuned, base)  # bert.… in both, and another head
    np.testing.assert_allclose(live["heads"]["stable_rank"].values, exact["heads"]["stable_rank"].values, rtol=1e-5)
    assert "classifier.weight" not in live["modules"]["module"].values
    assert "bert.encoder.layer.1.output.dense.weight" in live["modules"]["module"].values
    assert any("classifier.weight is left out" in note for note in json.loads(live.attrs["notes"]))
    prefixed: Any = spectra(tuned, bare)
    np.testing.assert_allclose(prefixed["heads"]["stable_rank"].values, exact["heads"]["stable_rank"].values, rtol=1e-5)


def test_another_vocabulary_is_left_out(tmp_path):
    small, large = small_models.llama(), _moved(small_models.llama(vocab_size=54), small_models.llama())
    small.save_pretrained(tmp_path / "base")
    large.save_pretrained(tmp_path / "tuned")
    tree: Any = inspect(tmp_path / "tuned", reference=tmp_path / "base")
    live: Any = spectra(large, small)
    for one in (tree, live):
        assert not [name for name in one["modules"]["module"].values if "embed" in str(name) or "head" in str(name)]
        assert any("shape" in note and "became" in note for note in json.loads(one.attrs["notes"]))
    np.testing.assert_allclose(tree["heads"]["stable_rank"].values, live["heads"]["stable_rank"].values, rtol=1e-4)


def test_names_that_transformers_converts_on_loading_are_matched(tmp_path):
    """Mixtral is stored expert by expert and runs with one tensor: stored and live are the same model."""
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=3, vocab_size=30,
    )  # fmt: skip
    base = transformers.MixtralForCausalLM(config)
    tuned = _moved(transformers.MixtralForCausalLM(config), base)
    base.save_pretrained(tmp_path / "base")
    assert any(".experts.0." in name for name in load_file(tmp_path / "base" / "model.safetensors"))
    mixed: Any = inspect(tuned, reference=tmp_path / "base")
    live: Any = inspect(tuned, reference=base)
    xr.testing.assert_allclose(mixed["heads"].to_dataset(), live["heads"].to_dataset())
    np.testing.assert_allclose(mixed["modules"]["stable_rank"].values, live["modules"]["stable_rank"].values)
    assert "matched by structure" in mixed.attrs["notes"]


STAGES = {
    "swin": {"embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4], "image_size": 32, "patch_size": 4},
    "segformer": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [1, 4], "num_encoder_blocks": 2,
                  "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
                  "decoder_hidden_size": 8},
    "pvt": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [2, 4], "num_encoder_blocks": 2,
            "sequence_reduction_ratios": [2, 1], "patch_sizes": [4, 2], "strides": [4, 2], "mlp_ratios": [2, 2],
            "image_size": 32},
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["built", "by names"])
@pytest.mark.parametrize("kind", STAGES)
def test_counts_that_are_lists_are_those_of_the_stage(kind, known, tmp_path, monkeypatch):
    from transformers import CONFIG_MAPPING, AutoModel

    model = AutoModel.from_config(CONFIG_MAPPING[kind](**STAGES[kind]))
    model.save_pretrained(tmp_path / "stored")
    if not known:
        monkeypatch.setattr("saddles.probe.lora.skeleton.empty_model", lambda *_: None)
    stored = layout_of(open_weights(tmp_path / "stored"), {})
    live = heads(model)
    assert len({len(block) for block in live.layers().values()}) == 2
    # Files may have other names than the running model: the counts must be the same, in order.
    assert [len(block) for block in stored.layers().values()] == [len(block) for block in live.layers().values()]


def test_a_vision_tower_has_its_own_count(tmp_path, monkeypatch):
    """Also where config.json leaves out what equals the default of its part."""
    import transformers

    text: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 30}
    vision: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1, "image_size": 16}
    config = transformers.CLIPConfig(
        text_config=text | {"num_attention_heads": 4}, vision_config=vision | {"patch_size": 8}, projection_dim=8
    )
    model = transformers.CLIPModel(config)
    model.save_pretrained(tmp_path / "clip")
    said = json.loads((tmp_path / "clip" / "config.json").read_text())
    del said["vision_config"]["num_attention_heads"]  # as older versions of transformers stored it
    (tmp_path / "clip" / "config.json").write_text(json.dumps(said))
    counts = {
        b[0].attention.split("_")[0]: len(b) for b in layout_of(open_weights(tmp_path / "clip"), {}).layers().values()
    }
    assert counts == {"text": 4, "vision": 12}
    monkeypatch.setattr("saddles.probe.lora.skeleton.empty_model", lambda *_: None)
    alone = layout_of(open_weights(tmp_path / "clip"), {})
    assert {b[0].attention.split("_")[0]: len(b) for b in alone.layers().values()} == {"text": 4}
    assert any("number of heads is not known" in reason for _, reason in alone.skipped)


def test_one_empty_parameter_refuses_nothing(tmp_path):
    model = small_models.gpt2()
    model.register_parameter("memory", torch.nn.Parameter(torch.empty(0)))
    assert len(heads(model).heads) == len(heads(small_models.gpt2()).heads)
    tensors = {name: p.detach().clone() for name, p in small_models.gpt2().named_parameters()}
    tensors["memory"] = torch.empty(0, 8)
    save_file(tensors, tmp_path / "a.safetensors")
    save_file({n: t + 0.01 * torch.randn_like(t) for n, t in tensors.items()}, tmp_path / "b.safetensors")
    tree: Any = inspect(tmp_path / "b.safetensors", tmp_path / "a.safetensors", config={"n_head": 4})
    assert "memory" not in tree["modules"]["module"].values


def _steps(folder: Path, write: Any) -> Any:
    """Two states of one small GPT-2 through a function (step, model), and what is measured of them alive."""
    folder.mkdir(exist_ok=True)
    base = tiny("gpt2")
    late = planted(base, 1)
    write(0, base)
    write(10, late)
    return inspect(late, reference=base, modules=False)


def test_numbered_files_beside_a_config_are_a_series(tmp_path):
    base = tiny("gpt2")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(base.config.to_json_string())
    live: Any = _steps(tmp_path / "run", lambda n, m: torch.save(m.state_dict(), tmp_path / "run" / f"model_{n}.pth"))
    tree: Any = inspect(tmp_path / "run", modules=False)
    assert tree["heads"]["step"].values.tolist() == [10]
    np.testing.assert_array_equal(tree["heads"]["stable_rank"].values, live["heads"]["stable_rank"].values)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_of_torch_distributed_are_read(tmp_path):
    config = tiny("gpt2").config.to_json_string()

    def write(step: int, model: Any) -> None:
        place = tmp_path / "run" / f"step-{step}"
        names = {"model": model.state_dict(), "optim": {"state": {"lm_head.weight": torch.zeros(3, 3)}}, "step": step}
        distributed_checkpoint.write(names, place)
        (place / "config.json").write_text(config)

    live: Any = _steps(tmp_path / "run", write)
    tree: Any = inspect(tmp_path / "run", modules=False)
    assert tree["heads"]["step"].values.tolist() == [10]
    np.testing.assert_array_equal(tree["heads"]["stable_rank"].values, live["heads"]["stable_rank"].values)
    # Without the key of the model before every name, and without the optimiser's state.
    assert set(open_weights(tmp_path / "run" / "step-0").shapes) == set(tiny("gpt2").state_dict())


class _Trap:
    """A pickle that would make a file if it were executed."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_metadata_of_torch_distributed_runs_nothing(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Trap(tmp_path / "ran")))
    with pytest.raises(SaddlesError, match="was not opened"):
        open_weights(tmp_path)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "good").mkdir()
    distributed_checkpoint.write({"model": {"w": torch.zeros(2)}}, tmp_path / "good")
    stored = pickle.loads((tmp_path / "good" / ".metadata").read_bytes())
    for part in stored.storage_data.values():
        part.relative_path = "../elsewhere.distcp"
    (tmp_path / "good" / ".metadata").write_bytes(pickle.dumps(stored))
    with pytest.raises(SaddlesError, match="outside its folder"):
        open_weights(tmp_path / "good")


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["latest", "zero_to_fp32.py", "global_step5/mp_rank_00_model_states.pt"], "zero_to_fp32.py {} OUT --safe_ser"),
        (["iter_0000010/mp_rank_00/model_optim_rng.pt"], "AutoBridge.from_hf_pretrained('NAME').export_ckpt('{}/iter"),
        (
            ["params.json", "consolidated.00.pth", "consolidated.01.pth"],
            "convert_llama_weights_to_hf.py --input_dir {}",
        ),
    ],
    ids=["DeepSpeed", "Megatron", "Meta"],
)
def test_other_formats_are_refused_with_the_command_that_converts_them(tmp_path, files, command):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(SaddlesError) as caught:
        inspect(tmp_path, reference=small_models.gpt2())
    assert command.format(tmp_path) in str(caught.value)


def test_names_of_meta_are_read(tmp_path):
    live = small_models.llama()
    words = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
             "self_attn.o_proj": "attention.wo", "model.": ""}  # fmt: skip
    for step, model in enumerate((live, small_models.nudge(live, 0.1))):
        tensors = {}
        for name, tensor in model.state_dict().items():
            for old, new in words.items():
                name = name.replace(old, new)
            tensors[name] = tensor
        place = tmp_path / f"step-{step}"
        place.mkdir()
        torch.save(tensors, place / "consolidated.00.pth")
        facts = {"n_heads": live.config.num_attention_heads, "n_kv_heads": live.config.num_key_value_heads}
        (place / "params.json").write_text(json.dumps(facts))
    tree: Any = inspect(tmp_path, modules=False)
    exact: Any = spectra(small_models.nudge(live, 0.1), live)
    assert tree["heads"].sizes["head"] == live.config.num_attention_heads
    assert tree["heads"]["stable_rank"].shape == exact["heads"]["stable_rank"].shape


def test_an_old_file_is_opened_once(tmp_path, monkeypatch):
    """torch's format before 1.6 cannot be mapped: opening it reads all of it."""
    loads: list[str] = []
    honest = checkpoints._load
    monkeypatch.setattr(checkpoints, "_load", lambda file: loads.append(file.name) or honest(file))
    base = small_models.gpt2()
    for name, model in (("a.bin", base), ("b.bin", small_models.nudge(base, 0.1))):
        torch.save(model.state_dict(), tmp_path / name, _use_new_zipfile_serialization=False)
    inspect(tmp_path / "b.bin", tmp_path / "a.bin", config={"n_head": 4})
    assert sorted(loads) == ["a.bin", "b.bin"]


def test_a_shard_of_another_step_is_named(tmp_path):
    """A public series had single shards of another step: the file and both steps are in the message."""
    model = tiny("gpt2")
    for step in (0, 10, 20, 30):
        model.save_pretrained(tmp_path / f"checkpoint-{step}", max_shard_size="30KB")
        model = small_models.nudge(model, 0.01)
    assert open_series(tmp_path).notes == ()
    name = sorted(file.name for file in (tmp_path / "checkpoint-30").glob("*.safetensors"))[1]
    right = (tmp_path / "checkpoint-30" / name).read_bytes()
    (tmp_path / "checkpoint-30" / name).write_bytes((tmp_path / "checkpoint-10" / name).read_bytes())
    with pytest.raises(
        SaddlesError, match=rf"{name} of .*checkpoint-30 \(step 30\) holds the numbers of .*\(step 10\)"
    ):
        saddles.probe.inspect(tmp_path)
    (tmp_path / "checkpoint-30" / name).write_bytes((tmp_path / "checkpoint-20" / name).read_bytes())
    assert any(f"{name} of step 30 holds the numbers of step 20" in note for note in open_series(tmp_path).notes)
    (tmp_path / "checkpoint-30" / name).write_bytes(right)
    assert open_series(tmp_path).notes == ()


def test_counts_that_no_name_tells_are_those_of_the_modules():
    """X-CLIP counts the heads across frames apart (`mit_num_attention_heads`), in blocks called `mit.…`."""
    from transformers import XCLIPConfig, XCLIPModel

    sizes: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1}
    frames = {"mit_hidden_size": 24, "mit_intermediate_size": 24, "mit_num_hidden_layers": 1}
    vision = sizes | frames | {"num_attention_heads": 4, "mit_num_attention_heads": 6, "image_size": 16}
    text = sizes | {"num_attention_heads": 3, "vocab_size": 30, "projection_dim": 24}
    config = XCLIPConfig(text_config=text, vision_config=vision | {"patch_size": 8}, projection_dim=24)
    model = XCLIPModel(config)
    said = json.loads(config.to_json_string()) | {"architectures": ["XCLIPModel"]}
    stored = replace(open_weights(model), model=None, config=said)
    counts = {block[0].attention: len(block) for block in layout_of(stored, {}).layers().values()}
    assert counts == {block[0].attention: len(block) for block in heads(model).layers().values()}
    assert counts["mit.encoder.layers.0.self_attn"] == 6
