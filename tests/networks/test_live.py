"""The lab's measures in the recorder: the numbers they give afterwards, and a training that is not disturbed."""

import copy
import json

import numpy as np
import pytest
import small_models
import torch

from saddles import networks, probe
from saddles.errors import SaddlesError

WORDS = torch.randint(0, small_models.WORDS, (3, 8), generator=torch.Generator().manual_seed(1))


def trainer():
    torch.manual_seed(0)
    model = small_models.gpt2(attn_pdrop=0.1)
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    model.train()

    def step():
        model(WORDS, labels=WORDS).loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return model, step


def recorded(measures, steps=4, out=None, **words):
    model, step = trainer()
    start, kept = copy.deepcopy(model), []
    with probe.record(model, every=2, out=out, measures=measures, **words) as run:
        for _ in range(steps):
            step()
            run.step()
            kept.append(copy.deepcopy(model))
    return run, start, kept


def test_live_numbers_are_those_of_the_measures_afterwards(tmp_path):
    measures = [networks.LiveRegime({"input_ids": WORDS}, probes=2), networks.LiveHeads()]
    run, start, kept = recorded(measures, out=tmp_path / "run")
    before = dict(start.named_parameters())
    found, heads = run.result["measures"].to_dataset(), run.result["heads"].to_dataset()
    for place, model in enumerate(kept[1::2]):
        after = networks.regime(model, before, model, {"input_ids": WORDS}, probes=2)
        for name in after.data_vars:
            assert float(found[name][place]) == float(after[name]), name
        closed, laws = networks.closure(start, model), networks.invariants(start, model)
        np.testing.assert_array_equal(heads["balance"][place], closed["balance"])
        np.testing.assert_array_equal(heads["drift"][place], laws["drift"])
    assert found["linearity"].dims == ("time",)
    assert found["step"].values.tolist() == [2, 4]
    assert run.result.attrs["measures_s"] > 0
    numbers = dict(run.drain_metrics())
    assert numbers[2]["saddles/linearity"] == float(found["linearity"][0])
    assert probe.recorded(tmp_path / "run")["measures"].to_dataset().equals(found)


def test_training_is_the_same_with_measures():
    _, _, alone = recorded([])
    run, _, watched = recorded([networks.LiveRegime({"input_ids": WORDS}, probes=1)])
    assert "measures" in run.result
    assert watched[-1].training
    for one, other in zip(alone[-1].parameters(), watched[-1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_resumed_recording_measures_from_the_first_start(tmp_path):
    live = [networks.LiveRegime({"input_ids": WORDS})]
    whole, _, kept = recorded(live, steps=6)
    half, _, _ = recorded(live, steps=4, out=tmp_path / "run")
    again = copy.deepcopy(kept[3])
    with probe.record(again, every=2, out=tmp_path / "run", step=4, measures=live) as run:
        again.load_state_dict(kept[5].state_dict())
        run.step(6)
    np.testing.assert_array_equal(run.result["measures"]["linearity"], whole.result["measures"]["linearity"])
    assert half.result["measures"].sizes["time"] == 2
    recorded([], out=tmp_path / "without")
    with pytest.raises(SaddlesError, match="recorded without measures"):
        probe.record(again, out=tmp_path / "without", step=4, measures=live).__enter__()


def test_what_cannot_be_measured_is_told_before_training_and_is_a_gap_later(tmp_path):
    model, _ = trainer()

    def wrong(value):
        return lambda model, start: value

    def fails(model, start):
        raise ValueError("no")

    cases = [
        ([networks.LiveRegime({"input_ids": WORDS[:0]})], "at least one sample"),
        ([wrong({"rank": np.zeros(3)})], r"of shape \(2, 4, 2\); its `rank` is of shape \(3,\)"),
        ([wrong({"rank": "high"})], "`rank` is no number"),
        ([wrong(5)], "must return a mapping"),
        ([wrong({"stable_rank": np.zeros((2, 4, 2))})], "recorded already"),
        ([wrong({"a": 1.0}), wrong({"a": 2.0})], "Two measures give `a`"),
        ([fails], r"The measure fails fails \(ValueError: no\)"),
    ]
    for measures, words in cases:
        with pytest.raises(SaddlesError, match=words):
            probe.record(model, measures=measures).__enter__()
    with pytest.warns(UserWarning, match="gap at step 2"):
        run, _, _ = recorded([once_broken()])
    assert "division" in json.loads(run.result.attrs["gaps"])["2"]
    np.testing.assert_array_equal(run.result["measures"].to_dataset()["a"], [np.nan, 1.0])
    assert np.isfinite(run.result["heads"]["stable_rank"]).all()


def once_broken():
    calls = iter((1, 0, 1))
    return lambda model, start: {"a": 1 / next(calls)}
