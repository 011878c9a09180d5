"""Readers of weights and checks of a series: what is read, what is refused, and in which words."""

import json
import os
import pickle
import struct

import pytest
import torch
from planted import planted, tiny, trained
from safetensors.torch import load_file, save_file

import saddles
from saddles.errors import SaddlesError
from saddles.probe.weights.checkpoint_series import open_series
from saddles.probe.weights.checkpoints import open_weights
from saddles.probe.weights.folders import step_of_name


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a saved model: whole, in shards, and as torch files."""
    place = tmp_path_factory.mktemp("saved")
    model = tiny("llama")
    model.save_pretrained(place / "whole")
    model.save_pretrained(place / "shards", max_shard_size="20KB")
    torch.save(model.state_dict(), place / "model.pt")
    torch.save(
        {"state_dict": {f"module.{n}": t for n, t in model.state_dict().items()}, "epoch": 3}, place / "nested.ckpt"
    )
    torch.save(model.state_dict(), place / "old.bin", _use_new_zipfile_serialization=False)
    return place, model


@pytest.mark.parametrize("name", ["whole", "shards", "whole/model.safetensors", "model.pt", "nested.ckpt", "old.bin"])
def test_every_form_gives_the_same_tensors(home, name):
    place, model = home
    weights = open_weights(place / name)
    for tensor_name, tensor in model.state_dict().items():
        assert weights.shapes[tensor_name] == tuple(tensor.shape)
        assert weights.types[tensor_name] == "float32"
        torch.testing.assert_close(weights.read(tensor_name), tensor, rtol=0, atol=0)
        torch.testing.assert_close(weights.read(tensor_name, slice(3, 7)), tensor[3:7], rtol=0, atol=0)
    assert bool(weights.config) == ("." not in name or name.startswith("whole"))


def test_a_live_model_and_half_precision_are_read(tmp_path):
    model = tiny("gpt2").bfloat16()
    live = open_weights(model)
    assert set(live.types.values()) == {"bfloat16"}
    model.save_pretrained(tmp_path / "m")
    stored = open_weights(tmp_path / "m")
    assert set(stored.shapes) == set(live.shapes)
    for name in stored.shapes:
        assert torch.equal(stored.read(name), live.read(name))


def test_nothing_is_read_before_it_is_asked_for(home, monkeypatch):
    place, _ = home
    asked = []
    monkeypatch.setattr(
        "saddles.probe.weights.checkpoints._read", lambda homes, name, rows: asked.append(name) or torch.ones(1)
    )
    weights = open_weights(place / "shards")
    assert asked == []
    weights.read("lm_head.weight")
    assert asked == ["lm_head.weight"]


class _Trap:
    """A pickle that would make a file if it were executed."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return (os.mkdir, (self.file,))


def _copy(home, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    for file in (home[0] / name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def _edit_header(file, change):
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def _break_truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "truncated or damaged"


def _break_cut_header(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:40])
    return "truncated or damaged"


def _break_shape(folder):
    _edit_header(folder / "model.safetensors", lambda h: h["lm_head.weight"].update(shape=[51, 32]))
    return "truncated or damaged"


def _break_offsets(folder):
    _edit_header(folder / "model.safetensors", lambda h: h["lm_head.weight"].update(data_offsets=[0, 10**9]))
    return "truncated or damaged"


def _break_not_json(folder):
    (folder / "config.json").write_text("{")
    return "cannot be read as JSON"


def _break_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(folder / "executed")))
    return r"wants to run code .* torch\.load\(.*save_file\(weights, 'pytorch_model\.safetensors'\)"


def _break_pickle_in_torch_file(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(2), "extra": _Trap(folder / "executed")}, folder / "pytorch_model.bin")
    return "wants to run code"


def _break_garbage(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not a model at all")
    return "pytorch_model.bin"


def _break_no_tensors(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"epoch": 3}, folder / "pytorch_model.bin")
    return "holds no state_dict"


def _break_empty(folder):
    (folder / "model.safetensors").unlink()
    return "holds no weights"


def _break_adapter_only(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    return "Merge it first"


WHOLE = [value for name, value in list(globals().items()) if name.startswith("_break")]


@pytest.mark.parametrize("spoil", WHOLE, ids=lambda f: f.__name__.removeprefix("_break_"))
def test_damaged_files_get_one_sentence_and_run_nothing(home, tmp_path, spoil):
    folder = _copy(home, tmp_path, "whole")
    words = spoil(folder)
    with pytest.raises(SaddlesError, match=words) as error:
        open_weights(folder)
    assert "\n" not in str(error.value)
    assert not (folder / "executed").exists()


def test_shards_must_be_complete_and_agree_with_their_index(home, tmp_path):
    folder = _copy(home, tmp_path, "shards")
    shards = sorted(folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    kept = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(SaddlesError, match=f"lacks 1 of {len(shards)} shards .{shards[1].name}"):
        open_weights(folder)
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(SaddlesError, match="twice"):
        open_weights(folder)
    shards[1].write_bytes(kept)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index["weight_map"] | {"new": shards[0].name}})
    )
    with pytest.raises(SaddlesError, match="the shards lack 1 tensors of the index"):
        open_weights(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    with pytest.raises(SaddlesError, match="beside their index"):
        open_weights(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(SaddlesError, match="no index"):
        open_weights(folder)
    with pytest.raises(SaddlesError, match="does not exist"):
        open_weights(tmp_path / "nowhere")


def test_steps_are_read_from_names():
    words = ["checkpoint-500", "step_20.pt", "model-7.safetensors", "global_step1000", "epoch=3-step=40.ckpt", "final"]
    assert [step_of_name(word) for word in words] == [500, 20, 7, 1000, 40, None]


@pytest.fixture
def series(tmp_path):
    """checkpoint-0, -10, -20, each a little further."""
    base = tiny("gpt2")
    models = [base, planted(base, 1), planted(base, 2)]
    for step, model in zip((0, 10, 20), models, strict=True):
        model.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"


def test_a_healthy_series_is_found_in_order(series):
    found = open_series(series)
    assert (found.steps, found.notes) == ((10, 20), ())
    assert found.start.step == 0
    assert len(found.layout.heads) == 4


def test_numbered_things_inside_a_checkpoint_are_no_series(series):
    """The trainer's state of each process and DeepSpeed's folder lie inside; a final model may lie beside."""
    one = series / "checkpoint-10"
    for name in ("rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"):
        (one / name).write_bytes(b"")
    (one / "global_step10").mkdir()
    assert open_series(one, reference=series / "checkpoint-0").steps == (10,)
    tiny("gpt2").save_pretrained(series)
    assert open_series(series).steps == (10, 20)
    assert any("has no step and was left out" in note for note in open_series(series).notes)


def test_a_folder_of_files_is_a_series(series, tmp_path):
    for step in (0, 10, 20):
        whole = load_file(series / f"checkpoint-{step}" / "model.safetensors")
        (tmp_path / "files").mkdir(exist_ok=True)
        torch.save(whole, tmp_path / "files" / f"step_{step}.pt")
    with pytest.raises(SaddlesError, match="No attention head"):
        saddles.probe.inspect(tmp_path / "files")  # nothing says how many heads there are
    assert open_series(tmp_path / "files").steps == (10, 20)
    shards = tmp_path / "shards"
    shards.mkdir()
    for part in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (shards / part).write_bytes((series / "checkpoint-0" / "model.safetensors").read_bytes())
    with pytest.raises(SaddlesError, match="no index"):
        open_series(shards)


def test_oddities_are_noted(series, tmp_path):
    turned = open_series([series / "checkpoint-20", series / "checkpoint-0", series / "checkpoint-10"])
    assert turned.steps == (10, 20)
    assert any("out of order" in note for note in turned.notes)
    late = open_series([series / "checkpoint-10", series / "checkpoint-20"])
    assert any("not the start of training" in note for note in late.notes)
    planted(tiny("gpt2"), 2).save_pretrained(series / "checkpoint-30")
    assert "step 20 and step 30 hold identical weights" in open_series(series).notes
    (series / "checkpoint-30" / "trainer_state.json").write_text('{"global_step": 31}')
    told = open_series(series)
    assert told.steps == (10, 20, 31)
    assert any("31 in trainer_state.json" in note for note in told.notes)
    whole = load_file(series / "checkpoint-20" / "model.safetensors")
    save_file(whole | {"extra.scale": torch.zeros(2)}, series / "checkpoint-20" / "model.safetensors")
    assert any("unmeasured tensors (extra.scale)" in note for note in open_series(series).notes)
    assert any("no checkpoint states its step" in n for n in open_series([tiny("gpt2"), trained(tiny("gpt2"))]).notes)


def test_a_series_that_would_mislead_is_refused(series, tmp_path):
    base = tiny("gpt2")
    with pytest.raises(SaddlesError, match="A change needs two"):
        open_series(series / "checkpoint-10")
    base.save_pretrained(series / "checkpoint-30")
    with pytest.raises(SaddlesError, match="holds the weights of step 30"):
        open_series(series)
    assert any("step 0, step 30 equal the reference" in note for note in open_series(series, reference=base).notes)
    with pytest.raises(SaddlesError, match="holds the same weights"):
        open_series(series / "checkpoint-0", reference=series / "checkpoint-30")
    trained(base).save_pretrained(tmp_path / "other" / "checkpoint-10")
    with pytest.raises(SaddlesError, match="both step 10 and differ"):
        open_series([series / "checkpoint-0", series / "checkpoint-10", tmp_path / "other" / "checkpoint-10"])
    tiny("llama").save_pretrained(tmp_path / "other" / "checkpoint-11")
    with pytest.raises(SaddlesError, match="must have the names"):
        open_series([series / "checkpoint-0", tmp_path / "other" / "checkpoint-11"])
    whole = load_file(series / "checkpoint-20" / "model.safetensors")
    whole["transformer.h.1.mlp.c_fc.weight"] = torch.zeros(32, 100)
    save_file(whole, series / "checkpoint-20" / "model.safetensors")
    with pytest.raises(SaddlesError, match="has shape"):
        open_series([series / "checkpoint-0", series / "checkpoint-20"])
    with pytest.raises(SaddlesError, match="at least one checkpoint"):
        open_series([])
