"""Spectra of a plan on other processes, and kept for the next time."""

import pytest
import torch
from planted import planted, tiny

from saddles.errors import SaddlesError
from saddles.probe.lora import spectra
from saddles.probe.lora.planning import lora_plan


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    place = tmp_path_factory.mktemp("pair")
    base = tiny("gpt2")
    base.save_pretrained(place / "base")
    planted(base, 3).save_pretrained(place / "tuned")
    return place / "base", place / "tuned"


def test_worker_processes_give_the_same_plan(pair):
    here = lora_plan(*pair, budget=2000)
    assert lora_plan(*pair, budget=2000, on="embedded", workers=1) == here


def test_an_interrupted_plan_resumes_and_other_rules_cost_nothing(pair, tmp_path, monkeypatch):
    honest, made = spectra.one_spectrum, []

    def stop(change, leading, exact):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(change.name)
        return honest(change, leading, exact)

    monkeypatch.setattr(spectra, "one_spectrum", stop)
    with pytest.raises(KeyboardInterrupt):
        lora_plan(*pair, parts=tmp_path / "parts")
    again: list[str] = []
    monkeypatch.setattr(spectra, "one_spectrum", lambda c, *rest: again.append(c.name) or honest(c, *rest))
    plan = lora_plan(*pair, parts=tmp_path / "parts")
    assert len(again) == len(plan.modules) - 4
    assert not set(made) & set(again)
    assert plan == lora_plan(*pair)
    again.clear()
    assert lora_plan(*pair, max_rank=2, parts=tmp_path / "parts").carried
    assert not again
    # Other files under the same names are computed anew.
    planted(tiny("gpt2"), 2).save_pretrained(tmp_path / "tuned")
    lora_plan(pair[0], tmp_path / "tuned", parts=tmp_path / "parts")
    assert len(again) == len(plan.modules)


def test_arguments_that_have_no_meaning_are_refused(pair, tmp_path):
    live = tiny("gpt2")
    for given, words in (
        ({"on": "embedded", "device": "cuda"}, "device"),
        ({"workers": 2}, "`workers` counts worker processes"),
        ({"on": "embedded", "data": torch.arange(10)[None]}, "plain changes"),
        ({"on": "cluster"}, "`on` must be 'embedded' or a scheduler's address"),
    ):
        with pytest.raises(SaddlesError, match=words):
            lora_plan(*pair, **given)
    with pytest.raises(SaddlesError, match="models in files"):
        lora_plan(live, planted(live, 2), parts=tmp_path / "parts")
    with pytest.raises(SaddlesError, match="cannot be sent to other processes"):
        lora_plan(live, planted(live, 2), on="embedded", workers=1)
