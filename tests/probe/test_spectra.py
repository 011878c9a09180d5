"""One pair of models: names and axes of the result, an explicit loop over heads, ragged models, bad input."""

import copy
import weakref
from typing import Any

import numpy as np
import pytest
import small_models
import torch
import xarray as xr

from saddles import probe
from saddles.core.store import load, save
from saddles.errors import SaddlesError
from saddles.probe import find_layout, heads
from saddles.probe.weights import live_model
from saddles.probe.weights.live_model import parameters

join: Any = probe.join
measure: Any = probe.measure
spectra: Any = probe.spectra

RANKS = {"stable_rank", "effective_rank", "energy_rank_90", "energy_rank_99", "frobenius_norm"}


def explicit(model, reference):
    """ΔKQ and ΔVO of GPT-2, written out from its documentation: Conv1D holds (in, out), Q then K then V."""
    found = {}
    size, side = small_models.WIDTH, small_models.WIDTH // small_models.HEADS
    for layer in range(2):
        for head in range(small_models.HEADS):
            changes = []
            for state in (model, reference):
                joint = state.transformer.h[layer].attn.c_attn.weight.detach().double()
                out = state.transformer.h[layer].attn.c_proj.weight.detach().double()
                q, k, v = (joint[:, at * size + head * side :][:, :side] for at in range(3))
                changes.append((k @ q.T, v @ out[head * side : (head + 1) * side]))
            for product, now, start in zip(("KQ", "VO"), *changes, strict=True):
                found[layer, head, product] = torch.linalg.svdvals(now - start).numpy()
    return found


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
def test_an_explicit_loop_over_heads_agrees(scale):
    reference = small_models.gpt2()
    model = small_models.nudge(reference, scale)
    tree = spectra(model, reference, step=7)
    for (layer, head, product), exact in explicit(model, reference).items():
        values = tree["heads"]["singular_value"].sel(layer=layer, head=head, product=product).values[0]
        assert np.abs(values - exact[: len(values)]).max() <= 1e-6 * exact[0]
    for module in heads(model).modules:
        exact = torch.linalg.svdvals(
            model.get_parameter(module.parameter).double() - reference.get_parameter(module.parameter).double()
        ).detach()
        values = tree["modules"]["singular_value"].sel(module=module.parameter).values[0]
        assert np.abs(values[: len(exact)] - exact.numpy()).max() <= 1e-6 * exact[0]
        assert np.isnan(values[len(exact) :]).all()


def test_names_axes_and_storage(tmp_path):
    reference = small_models.llama()
    tree = spectra(small_models.nudge(reference, 0.1), reference, step=7)
    found = tree["heads"]
    assert found["singular_value"].dims == ("time", "layer", "head", "product", "index")
    assert found["singular_value"].shape == (1, 2, 4, 2, 20)
    assert set(found.data_vars) >= RANKS | {"noise_floor", "initial_singular_value", "initial_stable_rank"}
    assert all(found[name].dims == ("time", "layer", "head", "product") for name in RANKS)
    assert all(tree["modules"][name].dims == ("time", "module") for name in RANKS)
    assert list(found["product"].values) == ["KQ", "VO"]
    assert list(found["layer"].values) == [0, 1]
    assert list(found["head"].values) == [0, 1, 2, 3]
    assert found["step"].values == [7]
    assert bool(found["rotary"].all())
    stored = load(save(tree, tmp_path / "t.zarr"))
    assert stored.equals(tree)
    assert np.isnan(stored["heads"]["initial_singular_value"].values[..., 10:]).all()


def test_time_joins():
    reference = small_models.gpt2()
    trees = [spectra(small_models.nudge(reference, scale), reference, step=at) for at, scale in ((3, 0.1), (9, 0.2))]
    joined = join(trees)
    assert list(joined["heads"]["step"].values) == [3, 9]
    assert joined["modules"]["stable_rank"].shape[0] == 2
    assert joined["heads"]["initial_stable_rank"].dims == ("layer", "head", "product")
    np.testing.assert_array_equal(joined["heads"]["stable_rank"].values[1], trees[1]["heads"]["stable_rank"].values[0])


def test_no_change_has_rank_zero():
    model = small_models.bert()
    tree = spectra(model, model.state_dict())
    assert all(float(abs(tree["heads"][name]).max()) == 0.0 for name in RANKS)


def test_grouped_query_heads_share_their_key():
    """Moving one key head moves exactly the query heads that use it."""
    reference = small_models.llama()
    model = copy.deepcopy(reference)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[10:20] += 0.1
    norms = spectra(model, reference)["heads"]["frobenius_norm"].values[0]
    assert norms[1, :, 0].tolist() == pytest.approx([0, 0, *norms[1, 2:, 0]])
    assert np.all(norms[1, 2:, 0] > 0)
    assert norms[..., 1].max() == 0
    assert norms[0].max() == 0


def test_blocks_of_different_size_are_padded():
    draw = np.random.default_rng(0)
    sizes = {"a.0.qkv": (36, 12), "a.0.proj": (12, 12), "a.1.qkv": (72, 24), "a.1.proj": (24, 24)}
    weights = {f"{name}.weight": draw.normal(size=shape) for name, shape in sizes.items()}
    layout = find_layout({n: w.shape for n, w in weights.items()}, counts={"a.0": 2, "a.1": 3})
    tree = measure(layout, weights.__getitem__, lambda name: 0 * weights[name])
    values = tree["heads"]["singular_value"]
    assert values.shape == (1, 2, 3, 2, 16)
    assert np.isnan(values.values[0, 0, 2]).all()
    assert np.isnan(values.values[0, 0, :2, :, 12:]).all()
    assert np.isfinite(values.values[0, 0, :2, :, :12]).all()
    assert np.isnan(tree["heads"]["stable_rank"].values[0, 0, 2]).all()


def test_reading_is_tensor_by_tensor():
    """No more than one product's tensors of one layer are asked for before the first of them is let go."""
    model = small_models.llama()
    weights, alive, most = dict(model.named_parameters()), [], 0

    def read(name):
        nonlocal most
        copied = weights[name].detach().clone()
        alive.append(weakref.ref(copied))
        most = max(most, sum(ref() is not None for ref in alive))
        return copied

    measure(heads(model), read, read)
    assert most <= 4


def test_bf16_reports_its_floor():
    reference = small_models.gpt2()
    model = small_models.nudge(reference, 1e-5)
    wide = spectra(model, reference)["heads"]
    narrow = spectra(model.bfloat16(), copy.deepcopy(reference).bfloat16())["heads"]
    assert float((wide["noise_floor"] / wide["singular_value"].isel(index=0)).max()) < 0.1
    below = narrow["singular_value"].isel(index=0) <= narrow["noise_floor"]
    assert bool(below.all()), "a change far below the spacing of bf16 is all noise"


def test_wrappers_do_not_matter():
    reference = small_models.gpt2()
    model = small_models.nudge(reference, 0.1)
    wrapped = torch.nn.DataParallel(model)
    assert len(heads(wrapped).heads) == 8
    assert spectra(wrapped, reference)["heads"].equals(spectra(model, reference)["heads"])


@pytest.mark.parametrize(
    ("model", "reference", "words"),
    [
        (torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), "No attention head was found"),
        (small_models.gpt2(), {}, "has no transformer.h.0.attn.c_attn.weight"),
        (small_models.llama(), small_models.llama(head_dim=12), r"has shape \(20, 24\) .* \(24, 24\)"),
        (small_models.Torch().to("meta"), {}, "on the meta device"),
    ],
    ids=["no attention", "no weights", "width", "meta"],
)
def test_bad_input_is_one_sentence(model, reference, words):
    with pytest.raises(SaddlesError, match=words) as caught:
        spectra(model, reference)
    assert "\n" not in str(caught.value)


def test_the_reason_is_in_the_refusal_of_a_model_without_heads():
    with pytest.raises(SaddlesError, match="number of heads is not known"):
        measure(find_layout({"a.qkv.weight": (72, 24), "a.proj.weight": (24, 24)}), lambda n: n, lambda n: n)


def test_a_path_is_not_a_model():
    with pytest.raises(SaddlesError, match=r"`model` must be a torch\.nn\.Module; got 'gpt2'"):
        parameters("gpt2")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_a_gpu_is_measured_by_one_thread(monkeypatch, device):
    """Torch fails where several threads are the first to use a GPU's linear algebra; no GPU is needed to see it."""

    class Elsewhere(torch.Tensor):
        device = property(lambda self: torch.device(device))  # pyright: ignore[reportAssignmentType]

    model, seen = small_models.gpt2(), {}
    elsewhere = {name: tensor.detach().as_subclass(Elsewhere) for name, tensor in model.named_parameters()}
    layout = heads(model)
    monkeypatch.setattr(live_model, "parameters", lambda model: elsewhere)
    monkeypatch.setattr(live_model, "heads", lambda model: layout)
    monkeypatch.setattr(live_model, "spare_cores", lambda: 5)
    monkeypatch.setattr(live_model, "measure", lambda *args, **options: seen.update(options) or xr.DataTree())
    spectra(model, model)
    assert seen["workers"] == (5 if device == "cpu" else 1)
