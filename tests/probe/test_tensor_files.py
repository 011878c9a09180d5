"""Tensors that are written one at a time."""

import errno
import weakref

import pytest
import torch
from planted import planted, tiny
from safetensors.torch import load_file, save_file

from saddles.errors import SaddlesError
from saddles.probe.lora import adapter, spectra, tensor_files
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.peft_files import write_adapter
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.tensor_files import SetAside, write_tensors
from saddles.probe.measuring import read_row
from saddles.probe.pieces import made

ODD = {
    "b.weight": torch.arange(6.0).reshape(2, 3).T,
    "a.weight": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "half": torch.ones(2, 2, 2, dtype=torch.float16),
    "double": torch.ones(3, dtype=torch.float64),
    'gewöhnlich "\n\\ 层': torch.ones(1),
    "one number": torch.tensor(3.0),
    "nothing": torch.ones(0, 4),
    "whole": torch.arange(5),
    "bytes": torch.arange(3, dtype=torch.uint8),
    "truth": torch.tensor([True, False, True]),
    "eight": torch.ones(4).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("names", [list(ODD), ["a.weight"], []], ids=len)
def test_the_bytes_are_those_of_safetensors(tmp_path, names):
    tensors = {name: ODD[name] for name in names}
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "theirs", metadata={"format": "pt"})
    with (tmp_path / "ours").open("wb") as stream:
        write_tensors(stream, tensors)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_what_is_set_aside_comes_back(tmp_path):
    tied = torch.arange(4.0)
    aside = SetAside(tmp_path)
    aside.add(ODD)
    aside.add({"tied": tied, "to it": tied})
    assert list(aside) == [*ODD, "tied", "to it"]
    for name, tensor in (ODD | {"tied": tied, "to it": tied}).items():
        assert aside[name].dtype == tensor.dtype
        assert torch.equal(aside[name].float(), tensor.float())
    with pytest.raises(KeyError):
        aside["another"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    place = tmp_path_factory.mktemp("pair")
    base = tiny("gpt2")
    base.save_pretrained(place / "base")
    planted(base, 3).save_pretrained(place / "tuned")
    return place / "base", place / "tuned"


class Alive:
    """How many of the results of a function are alive when it is called again, at most."""

    def __init__(self, work, parts):
        self.work, self.parts, self.seen, self.most = work, parts, [], 0

    def __call__(self, *given, **more):
        self.most = max(self.most, sum(any(part() is not None for part in one) for one in self.seen))
        made = self.work(*given, **more)
        self.seen.append([weakref.ref(part) for part in self.parts(made)])
        return made


@pytest.mark.parametrize("kept", [True, False])
def test_the_factors_of_one_module_are_held_at_a_time(pair, tmp_path, monkeypatch, kept):
    plan = lora_plan(*pair, max_rank=2)
    assert len(plan.carried) > 4
    makers = {
        "made": Alive(made, lambda one: one.row.values()),
        "read_row": Alive(read_row, lambda row: row.values()),
    }
    for name, alive in makers.items():
        monkeypatch.setattr(spectra, name, alive)
    parts = Alive(adapter._parts, lambda found: found.values())
    monkeypatch.setattr(adapter, "_parts", parts)
    back = Alive(SetAside.__getitem__, lambda tensor: [tensor])
    monkeypatch.setattr(SetAside, "__getitem__", lambda self, name: back(self, name))
    left, write = [], write_adapter
    monkeypatch.setattr(
        adapter, "write_adapter", lambda *given: left.extend(tmp_path.glob(".*/*.npz")) or write(*given)
    )
    if not kept:  # as worker processes without `parts` would have it
        monkeypatch.setattr(spectra.Workshop, "elsewhere", True)
    lora_extract(pair[0], pair[1], plan, tmp_path / "out", parts=tmp_path / "parts" if kept else None)
    assert {name: len(alive.seen) for name, alive in makers.items()} == dict.fromkeys(makers, len(plan.carried))
    # The one before is let go when the next one takes its name.
    assert max(one.most for one in (*makers.values(), parts, back)) <= 1
    assert not left  # room on the disk is given back with each module
    assert sorted(place.name for place in tmp_path.iterdir()) == (["out", "parts"] if kept else ["out"])
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert sum("lora_A" in name for name in stored) == len(plan.carried)


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_is_left_where_an_extraction_ends_early(pair, tmp_path, monkeypatch, problem):
    plan, honest, written = lora_plan(*pair, max_rank=2), tensor_files.write_tensors, []

    def stop(stream, tensors):
        if len(written) == 5:
            raise problem
        written.append(tensors)
        honest(stream, tensors)

    monkeypatch.setattr(tensor_files, "write_tensors", stop)
    with pytest.raises((KeyboardInterrupt, SaddlesError)) as told:
        lora_extract(pair[0], pair[1], plan, tmp_path / "out")
    assert isinstance(told.value, KeyboardInterrupt) or "cannot be written (No space left" in str(told.value)
    assert not list(tmp_path.iterdir())
