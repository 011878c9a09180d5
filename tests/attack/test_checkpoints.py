"""Checkpoints, and folders of inspections, that are damaged or that someone else wrote: one sentence each."""

import json
import shutil

import pytest
import small_models
import torch

from saddles.errors import SaddlesError
from saddles.probe import inspect
from saddles.probe.inspection import Store

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two checkpoints of a training, as torch files with a configuration."""
    home = tmp_path_factory.mktemp("two")
    torch.manual_seed(0)
    model = small_models.gpt2()
    for step in (1, 2):
        folder = home / f"checkpoint-{step}"
        folder.mkdir()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps({"n_head": small_models.HEADS}))
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.mul_(1.01)
    return home


@pytest.fixture
def series(two, tmp_path):
    shutil.copytree(two, tmp_path / "x")
    return tmp_path / "x"


CASES = {
    "no heads": ("config.json", '{"n_head": 0}', "number of heads is not known"),
    "minus heads": ("config.json", '{"n_head": -4}', "number of heads is not known"),
    "true heads": ("config.json", '{"n_head": true}', "number of heads is not known"),
    "half heads": ("config.json", '{"n_head": 3.5}', "number of heads is not known"),
    "heads of no width": ("config.json", '{"num_attention_heads": 4, "head_dim": 0}', None),
    "many heads": ("config.json", '{"n_head": 1' + "0" * 30 + "}", "cannot be divided"),
    "deep configuration": ("config.json", DEEP, r"config\.json cannot be read as JSON"),
    "deep objects": ("config.json", '{"a":' * 50_000, r"config\.json cannot be read as JSON"),
    "deep state": ("trainer_state.json", DEEP, r"trainer_state\.json cannot be read as JSON"),
    "long step": ("trainer_state.json", '{"global_step": 1' + "0" * 200 + "}", None),
    "true step": ("trainer_state.json", '{"global_step": true}', None),
    "deep index": ("model.safetensors.index.json", DEEP, r"index\.json cannot be read as JSON"),
    "ten bytes": ("pytorch_model.bin", "ten bytes!", r"pytorch_model\.bin cannot be read as a torch file"),
    "other bytes": ("pytorch_model.bin", "xyzxyzxyzx", r"pytorch_model\.bin cannot be read as a torch file"),
    "no bytes": ("pytorch_model.bin", "", r"pytorch_model\.bin cannot be read as a torch file"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_checkpoints_are_one_sentence(series, case):
    name, text, words = CASES[case]
    for folder in series.iterdir():
        (folder / name).write_text(text)
    if words is None:  # what is no step, or no width, is as good as nothing
        assert inspect(series, modules=False)["heads"]["step"].values.tolist() == [2]  # pyright: ignore[reportAttributeAccessIssue]
        return
    with pytest.raises(SaddlesError, match=words) as told:
        inspect(series, modules=False)
    assert "\n" not in str(told.value)


def test_a_step_of_200_digits_in_a_name_is_no_step(series):
    (series / "checkpoint-2").rename(series / f"checkpoint-{'9' * 200}")
    with pytest.raises(SaddlesError, match="A change needs two checkpoints") as told:
        inspect(series, modules=False)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", [DEEP, "[]", "{}", "null", "\x00", '{"identity": 3, "status": "running"}',
                                  '{"identity": {}, "status": 7}'])  # fmt: skip
def test_records_of_inspections_are_one_sentence(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(SaddlesError, match=r"run\.json"):
        Store(tmp_path, {"steps": [1]})


def test_a_damaged_piece_of_an_inspection_is_told(series, tmp_path, monkeypatch):
    def stop(self, tree, status):
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "end", stop)
    with pytest.raises(KeyboardInterrupt):
        inspect(series, modules=False, out=tmp_path / "out")
    monkeypatch.undo()
    piece = sorted((tmp_path / "out" / "parts").glob("*.npz"))[0]
    piece.write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(SaddlesError, match=rf"{piece.name} is damaged.*measured again"):
        inspect(series, modules=False, out=tmp_path / "out")
    piece.unlink()
    assert inspect(series, modules=False, out=tmp_path / "out")["heads"].sizes["time"] == 1
