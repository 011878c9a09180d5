"""Spectra of a plan and factors of an adapter on other processes, and kept for the next time."""

from typing import Any

import pytest
import torch
from planted import planted, tiny
from safetensors.torch import load_file

from saddles.errors import SaddlesError
from saddles.probe.lora import spectra
from saddles.probe.lora.adapter import lora_extract
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


def test_a_cluster_gives_the_same_plan_and_factors(pair, tmp_path):
    distributed: Any = pytest.importorskip("distributed", reason="Dask is not installed: pip install saddles[sweep]")
    here = lora_plan(*pair, max_rank=2)
    _extract(pair, here, tmp_path / "here")
    local = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", processes=False)
    with local as cluster:
        there = lora_plan(*pair, max_rank=2, on=cluster.scheduler_address)
        _extract(pair, there, tmp_path / "there", on=cluster.scheduler_address)
    assert there == here
    _same_adapters(tmp_path / "here", tmp_path / "there")


@pytest.mark.parametrize("leading", [None, 4])
def test_worker_processes_give_the_same_factors(pair, tmp_path, leading):
    plan = lora_plan(*pair, max_rank=2, leading=leading)
    here = _extract(pair, plan, tmp_path / "here")
    there = _extract(pair, plan, tmp_path / "there", on="embedded", workers=1)
    assert there.errors == here.errors
    _same_adapters(tmp_path / "here", tmp_path / "there")


def test_an_interrupted_extraction_resumes(pair, tmp_path, monkeypatch):
    plan = lora_plan(*pair, max_rank=2)
    _extract(pair, plan, tmp_path / "here")
    honest, made = spectra.best_pair, []

    def stop(change, rank, leading):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(change.name)
        return honest(change, rank, leading)

    monkeypatch.setattr(spectra, "best_pair", stop)
    with pytest.raises(KeyboardInterrupt):
        _extract(pair, plan, tmp_path / "there", parts=tmp_path / "parts")
    assert not (tmp_path / "there").exists()
    again: list[str] = []
    monkeypatch.setattr(spectra, "best_pair", lambda c, *rest: again.append(c.name) or honest(c, *rest))
    _extract(pair, plan, tmp_path / "there", parts=tmp_path / "parts")
    assert len(again) == len(plan.carried) - 4
    assert not set(made) & set(again)
    _same_adapters(tmp_path / "here", tmp_path / "there")
    # Another rank is other factors.
    again.clear()
    _extract(pair, lora_plan(*pair, max_rank=1), tmp_path / "less", parts=tmp_path / "parts")
    assert len(again) == len(plan.carried)


def _extract(pair, *given, **more):
    base, tuned = pair
    return lora_extract(base, tuned, *given, **more)


def _same_adapters(one, other):
    first, second = (load_file(place / "adapter_model.safetensors") for place in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-6, atol=1e-8)


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
    live, plan = tiny("gpt2"), lora_plan(*pair, max_rank=2)
    for given, words in (
        ({"on": "embedded", "device": "cuda"}, "device"),
        ({"workers": 2}, "`workers` counts worker processes"),
        ({"on": "embedded", "data": torch.arange(10)[None]}, "plain changes"),
        ({"on": "cluster"}, "`on` must be 'embedded' or a scheduler's address"),
    ):
        with pytest.raises(SaddlesError, match=words):
            lora_plan(*pair, **given)
        with pytest.raises(SaddlesError, match=words):
            _extract(pair, plan, tmp_path / "out", **given)
    with pytest.raises(SaddlesError, match="models in files"):
        lora_plan(live, planted(live, 2), parts=tmp_path / "parts")
    with pytest.raises(SaddlesError, match="cannot be sent to other processes"):
        lora_plan(live, planted(live, 2), on="embedded", workers=1)
