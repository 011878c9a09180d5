"""The lab's measures in the recorder: the numbers they give afterwards, and a training that is not disturbed."""

import copy
import json

import numpy as np
import pytest
import small_models
import torch

from saddles import networks, probe
from saddles.errors import SaddlesError
from saddles.probe.recording.measures import check_measures
from saddles.probe.recording.snapshot import Copier

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
        ([wrong({"rank": "high"})], "`rank` is not a number"),
        ([wrong(5)], "must return a mapping"),
        ([wrong({"stable_rank": np.zeros((2, 4, 2))})], "recorded already"),
        ([wrong({"a": 1.0}), wrong({"a": 2.0})], "Two measures give `a`"),
        ([fails], r"The measure fails fails \(ValueError: no\)"),
    ]
    for measures, words in cases:
        with pytest.raises(SaddlesError, match=words):
            probe.record(model, measures=measures).__enter__()


def fails_at(*steps):
    """A measure that gives 1 at the start and fails at these measurements, counted from 1."""
    calls = iter(range(100))

    def a(model, start):
        if next(calls) in steps:
            raise ZeroDivisionError("division by zero")
        return {"a": 1.0, "b": np.ones((2, 4, 2))}

    return a


@pytest.mark.parametrize(("steps", "values"), [((1,), [np.nan, 1.0]), ((1, 2), [np.nan, np.nan])])
def test_a_measure_that_fails_is_nan_and_the_others_are_there(steps, values, tmp_path):
    with pytest.warns(UserWarning, match="gap at step 2") as told:
        run, _, _ = recorded([fails_at(*steps), networks.LiveRegime({"input_ids": WORDS})], out=tmp_path / "run")
    assert len([one for one in told if "gap at step" in str(one.message)]) == 1
    gaps = json.loads(run.result.attrs["gaps"])
    assert [*gaps] == [str(2 * step) for step in steps]
    assert all(why == "The measure a fails (ZeroDivisionError: division by zero)." for why in gaps.values())
    found, heads = run.result["measures"].to_dataset(), run.result["heads"].to_dataset()
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(heads["b"][:, 1, 2, 0], values)
    assert np.isfinite(found["linearity"]).all()
    assert np.isfinite(heads["stable_rank"]).all()
    assert probe.recorded(tmp_path / "run")["measures"].to_dataset().equals(found)


def test_measures_stay_where_the_ranks_of_a_step_fail(monkeypatch):
    def broken(self, copy):
        raise RuntimeError("no memory")

    monkeypatch.setattr("saddles.probe.recording.backends.ThreadBackend.measure", broken)
    with pytest.warns(UserWarning, match="gap at step 2"):
        run, _, _ = recorded([networks.LiveRegime({"input_ids": WORDS}), networks.LiveHeads()])
    assert json.loads(run.result.attrs["gaps"])["4"] == "RuntimeError: no memory"
    assert np.isfinite(run.result["measures"].to_dataset()["linearity"]).all()
    assert np.isfinite(run.result["heads"].to_dataset()["balance"]).all()
    monkeypatch.undo()
    monkeypatch.setattr("saddles.probe.recording.snapshot.Copier.gather", copying_fails_once())
    with pytest.warns(UserWarning, match="gap at step 2"):
        run, _, _ = recorded([networks.LiveRegime({"input_ids": WORDS})])
    found = run.result["heads"].to_dataset()["stable_rank"][:, 0, 0, 0]
    np.testing.assert_array_equal(np.isfinite(found), [False, True])
    assert np.isfinite(run.result["measures"].to_dataset()["linearity"]).all()


def copying_fails_once():
    """At the first step; the call before it takes the start."""
    gather, calls = Copier.gather, iter(range(100))

    def once(self):
        if next(calls) == 1:
            raise RuntimeError("no memory")
        return gather(self)

    return once


def test_measures_are_a_list():
    with pytest.raises(SaddlesError, match=r"`measures` must be a list of .*; got LiveHeads\(\)\. Put it into a list"):
        check_measures(networks.LiveHeads())
    with pytest.raises(SaddlesError, match=r"`measures` must be a list of .*; got 5"):
        check_measures(5)
    for given, words in (([networks.LiveHeads], r"Write LiveHeads\(…\)"), ([3], "got 3"), (["a"], "got 'a'")):
        with pytest.raises(SaddlesError, match=words):
            check_measures(given)
    with pytest.raises(SaddlesError, match="Write LiveHeads"):
        probe.SaddlesCallback(measures=[networks.LiveHeads])  # pyright: ignore[reportArgumentType]
    assert check_measures(one for one in [networks.LiveHeads()]) == (networks.LiveHeads(),)


def perceptron(out=None, steps=3, step=0, seed=0, dies=False, **words):
    """A network without heads, recorded while it trains."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    inputs, start = torch.randn(4, 3), copy.deepcopy(model)
    with probe.record(model, 1, out=out, step=step, measures=[networks.LiveRegime(inputs)], **words) as run:
        for _ in range(steps):
            model(inputs).square().sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            run.step()
        if dies:
            raise KeyError("out")
    return run, start, model, inputs


@pytest.mark.parametrize("modules", [False, True])
def test_a_network_without_heads_is_recorded_without_them(modules, tmp_path):
    run, start, model, inputs = perceptron(tmp_path / "run", modules=modules)
    found = run.result["measures"].to_dataset()
    expected = networks.linearity(model, start.state_dict(), model, inputs)
    assert float(found["linearity"][-1]) == pytest.approx(expected, rel=1e-12)
    assert run.result["heads"].sizes["layer"] == 0
    assert "singular_value" not in run.result["heads"]
    if modules:
        change = (model.state_dict()["0.weight"] - start.state_dict()["0.weight"]).double()
        values = run.result["modules"].to_dataset()["singular_value"].sel(module="0.weight").values[-1]
        np.testing.assert_allclose(values, torch.linalg.svdvals(change), rtol=1e-6)
    assert dict(run.drain_metrics())[3]["saddles/linearity"] == float(found["linearity"][-1])
    assert probe.recorded(tmp_path / "run")["measures"].to_dataset().equals(found)
    again, *_ = perceptron(tmp_path / "run", steps=1, step=3, modules=modules)
    assert again.result["measures"].to_dataset()["step"].values.tolist() == [1, 2, 3, 4]
    other = torch.nn.Linear(5, 5)
    with pytest.raises(SaddlesError, match="a recording of another model"):
        probe.record(
            other, 1, out=tmp_path / "run", step=2, modules=modules, measures=[networks.LiveRegime(torch.ones(1, 5))]
        ).__enter__()
    assert len([*(tmp_path / "run" / "rows").iterdir()]) == 4, "nothing was put aside"


def test_recordings_of_measures_alone_are_never_overwritten(tmp_path):
    with pytest.raises(KeyError):
        perceptron(tmp_path, dies=True)
    with pytest.raises(SaddlesError, match="never overwritten"):
        perceptron(tmp_path, seed=1)
    run, *_ = perceptron(tmp_path)  # the same training, which died
    assert run.result["measures"].sizes["time"] == 3
    assert len([*(tmp_path / "superseded" / "1").iterdir()]) == 3
    with pytest.raises(SaddlesError, match="never overwritten"):
        perceptron(tmp_path)


def test_heads_that_are_not_there_are_told():
    with pytest.raises(SaddlesError, match="No attention heads were found"):
        probe.record(torch.nn.Linear(3, 3), measures=[networks.LiveHeads()]).__enter__()
    with pytest.raises(SaddlesError, match="No attention head"):
        probe.record(torch.nn.Linear(3, 3))


def merged(model):
    """The weights that a model with an adapter computes with, in double precision."""
    return copy.deepcopy(model).double().merge_and_unload()


@pytest.mark.parametrize("kind", ["LoRA", "rsLoRA", "DoRA"])
def test_heads_of_a_model_that_peft_trains_are_those_of_its_merged_weights(kind):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    more = {"use_rslora": kind == "rsLoRA", "use_dora": kind == "DoRA", "target_modules": ["q_proj", "v_proj"]}
    model = peft.get_peft_model(small_models.llama(), peft.LoraConfig(r=3, **more))
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "lora_B" in name:
                part.normal_()
    early = merged(model)
    optimiser = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], 0.5)
    measures = [networks.LiveHeads(), networks.LiveRegime({"input_ids": WORDS})]
    with probe.record(model, 2, measures=measures) as run:
        for _ in range(2):
            model(input_ids=WORDS, labels=WORDS).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            run.step()
    late, heads = merged(model), run.result["heads"].to_dataset()
    closed = networks.closure(early, late)
    assert float(closed["factor_change"].min()) > 1e-3
    for name in ("balance", "memory", "linearity", "outside"):
        np.testing.assert_allclose(heads[name][-1], closed[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.isnan(heads["drift"]).all()
    assert float(run.result["measures"].to_dataset()["linearity"][-1]) > 0
    numbers = dict(run.drain_metrics())[2]
    assert numbers["saddles/KQ/balance"] == pytest.approx(float(np.median(closed["balance"][..., 0])))
    assert "saddles/KQ/drift" not in numbers


def test_drifts_of_a_product_that_the_adapter_leaves_alone_are_there():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small_models.llama(), peft.LoraConfig(r=3, target_modules=["v_proj"]))
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    name = "base_model.model.model.layers.1.self_attn.q_proj.weight"
    dict(model.named_parameters())[name].data *= 1.5
    found = networks.LiveHeads()(model, start)
    assert np.isnan(found["drift"][..., 1]).all()
    assert (found["drift"][0, :, 0] == 0).all()
    assert (found["drift"][1, :, 0] > 0.1).all()


def test_heads_that_an_adapter_of_a_model_without_configuration_changes():
    """Only the module of torch knows its number of heads."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = peft.get_peft_model(torch.nn.Sequential(layer), peft.LoraConfig(r=2, target_modules=["linear1"]))
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    found = networks.LiveHeads()(model, start)
    assert found["balance"].shape == (1, 4, 2)
    np.testing.assert_allclose(found["balance"], networks.closure(layer, layer)["balance"], rtol=1e-6)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    without = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["0"]))
    with pytest.raises(SaddlesError, match=r"No attention heads were found beside the adapter \(.*Leave LiveHeads out"):
        networks.LiveHeads()(without, dict(without.named_parameters()))


def with_bare_norms():
    """A Llama that has norms without parameters between keys and queries, which its tensors do not show."""
    model = small_models.llama()
    for layer in model.model.layers:
        layer.self_attn.q_norm = torch.nn.Sequential()
    return model


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("make", [small_models.qwen3, with_bare_norms])
def test_drifts_are_nan_where_gradient_flow_keeps_nothing(make, adapted):
    """Norms stand between keys and queries, and nothing between values and outputs."""
    model = make()
    if adapted:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=["up_proj"]))
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    with torch.no_grad():
        for part in model.parameters():
            part *= 1.1
    found = networks.LiveHeads()(model, start)
    for name in ("drift", "drift_of_change"):
        assert np.isnan(found[name][..., 0]).all()
        assert np.isfinite(found[name][..., 1]).all()
    assert np.isfinite(found["balance"]).all()


def test_gradient_checkpointing_changes_no_number_and_stays_on():
    measures = [networks.LiveRegime({"input_ids": WORDS}, probes=1)]
    plain, _, _ = recorded(measures)
    model, step = trainer()
    model.gradient_checkpointing_enable()
    with probe.record(model, every=2, measures=measures) as run:
        for _ in range(4):
            step()
            run.step()
    assert json.loads(run.result.attrs["gaps"]) == {}
    expected, found = plain.result["measures"].to_dataset(), run.result["measures"].to_dataset()
    for name in expected.data_vars:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=str(name))
    assert model.is_gradient_checkpointing
