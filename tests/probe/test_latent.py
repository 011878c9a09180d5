"""Multi-head latent attention: a factor of a head is a chain of two matrices."""

# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import numpy as np
import pytest
import small_models
import torch

from saddles.errors import SaddlesError
from saddles.networks import invariants
from saddles.probe import find_layout, heads, inspect, record, spectra, verify
from saddles.probe.layouts.adapters import LATENT, Attention, adapters, latent
from saddles.probe.layouts.layout import PRODUCTS, Layout

KEY, VALUE, ROTARY, RANK = 8, 8, 4, 12


@pytest.fixture(scope="module", params=["queries from a latent", "plain queries"])
def model(request):
    import transformers

    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "kv_lora_rank": RANK, "qk_rope_head_dim": ROTARY, "qk_nope_head_dim": KEY,
        "v_head_dim": VALUE, "head_dim": ROTARY, "pad_token_id": 0, "first_k_dense_replace": 1,
    }  # fmt: skip
    rank = 16 if request.param == "queries from a latent" else None
    torch.manual_seed(0)
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes, q_lora_rank=rank)).float()


def by_hand(weights, layer, head):
    """The four d × d_h factors of a head, in double precision, from the weights' own names."""
    part = {
        name.removeprefix(f"model.layers.{layer}.self_attn.").removesuffix(".weight"): tensor.detach().double()
        for name, tensor in weights.items()
        if f"layers.{layer}.self_attn." in name
    }
    both = part["kv_b_proj"].view(4, KEY + VALUE, RANK)[head] @ part["kv_a_proj_with_mqa"][:RANK]
    query = part["q_b_proj"] @ part["q_a_proj"] if "q_b_proj" in part else part["q_proj"]
    return {
        "K": both[:KEY].T,
        "Q": query.view(4, KEY + ROTARY, -1)[head, :KEY].T,
        "V": both[KEY:].T,
        "O": part["o_proj"].view(-1, 4, VALUE)[:, head],
    }


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_spectra_are_those_of_the_products_through_the_latent(model, scale):
    late = small_models.nudge(model, scale)
    found = spectra(late, model)["heads"]["singular_value"]
    for layer in (0, 1):
        for head in range(4):
            for product, (one, other) in PRODUCTS.items():
                now, start = (by_hand(dict(one.named_parameters()), layer, head) for one in (late, model))
                dense = torch.linalg.svdvals(now[one] @ now[other].T - start[one] @ start[other].T).numpy()
                values = found.sel(layer=layer, head=head, product=product).values[0]
                np.testing.assert_allclose(values, dense[: len(values)], atol=1e-6 * dense[0])


def test_a_forward_pass_confirms_every_link(model):
    result = verify(model, {"input_ids": torch.randint(1, 50, (8, 5))})
    assert set(result["verdict"].values) == {"right up to a norm"}
    assert float(result["error"].max()) < 1e-5
    layout = heads(model)
    assert all(head.normalised and not head.rotary for head in layout.heads)
    assert "through a latent, without its rotary part" in str(layout)
    assert Layout.from_json(layout.to_json()) == layout


def test_a_wrong_link_is_wrong(model, monkeypatch):
    """Values read before keys, and the shared part of the keys read as part of the latent."""

    def swapped(shapes, config, counts):
        queries = ("q_a_proj.weight", "q_b_proj.weight") if "q_b_proj" in str(shapes) else ("q_proj.weight",)
        for block in latent("DeepSeek", queries, LATENT, "o_proj.weight")(shapes, config, counts):
            turned = [{**factors, "K": factors["V"], "V": factors["K"]} for factors in block.heads]
            yield Attention(block.name, block.family, tuple(turned))

    monkeypatch.setattr("saddles.probe.layouts.adapters._registry", [swapped, *adapters()])
    result = verify(model, {"input_ids": torch.randint(1, 50, (8, 5))})
    assert set(result["verdict"].values) == {"wrong"}


def test_a_latent_that_the_layout_does_not_know_of_is_wrong(model, monkeypatch):
    plain = model.model.layers[0].self_attn
    result = plain.kv_a_layernorm.forward
    monkeypatch.setattr(plain.kv_a_layernorm, "forward", lambda x: result(x).cumsum(-1))
    checked = verify(model, {"input_ids": torch.randint(1, 50, (8, 5))})
    assert checked["verdict"].values.tolist() == ["wrong", "right up to a norm"]
    assert "its latent differs by" in str(checked["detail"].values[0])


def test_rounding_is_told_by_the_noise_floor(model):
    """Weights rounded to bfloat16 against themselves: the change is noise, near the floor."""
    rounded = small_models.nudge(model, 0.0).bfloat16()
    exact = {name: tensor.detach() for name, tensor in model.named_parameters()}
    measured = spectra(rounded, exact)["heads"]
    ratio = (measured["singular_value"].isel(index=0) / measured["noise_floor"]).values
    assert (ratio > 0.25).all()
    assert (ratio < 2).all()


def test_it_is_recorded_and_inspected(model, tmp_path):
    moving = small_models.nudge(model, 0.0)
    with record(moving, every=1) as run:
        with torch.no_grad():
            for weight in moving.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
        run.step()
    expected = spectra(moving, model)["heads"]["stable_rank"].values[0]
    np.testing.assert_allclose(run.result["heads"]["stable_rank"].values[-1], expected, rtol=1e-9)
    for name, one in (("checkpoint-0", model), ("checkpoint-1", moving)):
        one.save_pretrained(tmp_path / name)
    stored = inspect(tmp_path, modules=False)["heads"]["stable_rank"].values[-1]
    np.testing.assert_allclose(stored, expected, rtol=1e-6)


def test_laws_of_plain_factors_are_not_claimed_of_chains(model):
    with pytest.raises(SaddlesError, match="reads keys and values from a latent"):
        invariants(model, model)


def test_another_form_is_refused():
    shapes = {"a.kv_a_proj_with_mqa.weight": (16, 32), "a.kv_b_proj.weight": (64, 12), "a.o_proj.weight": (32, 32)}
    layout = find_layout(shapes | {"a.q_proj.weight": (52, 32)}, {"num_attention_heads": 4})
    assert layout.heads == ()
    assert "queries of width 13, keys of 8, a shared part of 4" in layout.skipped[0][1]
