"""Invariants, closure and Adam's first step of attention heads, against flows, dense matrices and torch's own Adam."""

import numpy as np
import pytest
import torch
from torch import nn

from saddles import networks
from saddles.errors import SaddlesError

DIM, HEADS = 12, 3


class Block(nn.Module):
    """One attention layer, with or without biases, that sees its heads through their products alone."""

    def __init__(self, bias: bool):
        super().__init__()
        self.num_heads = HEADS
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=bias)
        self.proj = nn.Linear(DIM, DIM, bias=bias)

    def forward(self, x):
        count, length, _ = x.shape
        q, k, v = self.qkv(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.mT, -1)
        return self.proj((weights @ v).transpose(1, 2).reshape(x.shape))


class Model(nn.Module):
    def __init__(self, bias: bool):
        super().__init__()
        self.attn = Block(bias)

    def forward(self, x):
        return self.attn(x)


def _trained(bias, make, steps, seed=0):
    torch.manual_seed(seed)
    model = Model(bias).double()
    inputs, targets = torch.randn(4, 6, DIM).double(), torch.randn(4, 6, DIM).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = make(model.parameters())
    for _ in range(steps):
        optimiser.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimiser.step()
    return start, model


def _descent(rate):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def test_small_steps_keep_the_invariants_and_the_drift_is_of_the_size_of_the_step():
    found = []
    for rate, steps in ((0.4, 60), (0.1, 240)):
        start, model = _trained(True, _descent(rate), steps)
        kept = networks.invariants(start, model)
        found.append(float(kept["drift"].max()))
        assert bool(kept["applies"].all())
        assert kept.sizes == {"layer": 1, "head": HEADS, "product": 2}
        # The same change, by the weights alone: the biases carry a part of the law.
        assert float(kept["drift_without_bias"].max()) > 5 * found[-1]
    assert found[1] == pytest.approx(found[0] / 4, rel=0.25)  # a quarter of the rate, over the same time
    assert found[1] < 0.02


def test_adam_breaks_the_invariants():
    start, model = _trained(False, lambda p: torch.optim.Adam(p, lr=1e-2), 100)
    kept = networks.invariants(start, model)
    assert float(kept["drift"].min()) > 0.02
    assert float(kept["drift_of_change"].min()) > 0.1
    still = networks.invariants(start, start, {"num_attention_heads": HEADS})
    assert float(still["drift"].max()) < 1e-15


def test_shared_keys_keep_the_sum_over_their_group():
    """Gradient flow of Σ_g tr(B_gᵀ W_K W_Q,gᵀ)-like losses keeps W_KᵀW_K − Σ_g W_Q,gᵀW_Q,g."""
    torch.manual_seed(1)
    shapes = {"q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8), "o_proj": (8, 8)}
    names = {f"model.layers.0.self_attn.{name}.weight": shape for name, shape in shapes.items()}
    state = {name: (0.5 * torch.randn(shape)).double().requires_grad_() for name, shape in names.items()}
    target = torch.randn(2, 8, 8).double()
    start = {name: value.detach().clone() for name, value in state.items()}
    optimiser = torch.optim.SGD(list(state.values()), lr=2e-3)
    for _ in range(300):
        optimiser.zero_grad()
        query, key, value, out = (state[name] for name in names)
        products = torch.stack([key.T @ part for part in query.split(4)]) - target
        outs = torch.stack([part @ value for part in out.split(4, dim=1)]) - target
        (products.square().sum() + outs.square().sum()).backward()
        optimiser.step()
    config = {"num_attention_heads": 2, "num_key_value_heads": 1}
    end = {name: value.detach() for name, value in state.items()}
    kept = networks.invariants(start, end, config)
    assert kept.sizes["head"] == 2
    assert float(kept["drift"].max()) < 0.02
    assert bool(kept["applies"].all())
    beside = {
        "model.layers.0.self_attn.q_norm.weight": torch.ones(4),
        "model.layers.0.self_attn.gate.weight": target[0],
    }
    broken = networks.invariants({**start, **beside}, {**end, **beside}, config)
    assert not bool(broken["applies"].any())  # a norm between queries and keys, a gate between values and outputs
    assert bool(networks.closure({**start, **beside}, {**end, **beside}, config)["memory"].isnull().all())
    assert float(networks.closure(start, end, config)["memory"].max()) < 0.01  # of the group
    # As if each query had a key of its own: the law of a head alone does not hold here.
    query, key, value, out = names
    first, last = (
        {query: state[query][:4], key: state[key], value: state[value], out: state[out][:, :4]}
        for state in (start, end)
    )
    assert float(networks.closure(first, last, {"num_attention_heads": 1})["memory"].max()) > 0.03


def test_closure_is_that_of_dense_matrices():
    start, model = _trained(False, lambda p: torch.optim.Adam(p, lr=1e-2), 60)
    measured = networks.closure(start, model).sel(layer=0, head=1, product="KQ")
    early, late = start["attn.qkv.weight"].numpy(), model.attn.qkv.weight.detach().numpy()
    width = DIM // HEADS
    query_0, query = (w[width : 2 * width].T for w in (early, late))
    key_0, key = (w[DIM + width : DIM + 2 * width].T for w in (early, late))
    change = key @ query.T - key_0 @ query_0.T
    norm = np.linalg.norm
    assert float(measured["linearity"]) == pytest.approx(
        norm((key - key_0) @ (query - query_0).T) / norm(change), rel=1e-9
    )
    out_k, out_q = (np.eye(DIM) - np.linalg.qr(w)[0] @ np.linalg.qr(w)[0].T for w in (key_0, query_0))
    assert float(measured["outside"]) == pytest.approx(norm(out_k @ change @ out_q) / norm(change), rel=1e-9)
    smallest = np.linalg.svd(key_0 @ query_0.T, compute_uv=False)[width - 1]
    assert float(measured["outside_strength"]) == pytest.approx(norm(out_k @ change @ out_q, 2) / smallest, rel=1e-8)
    product = key @ query.T
    values, vectors = np.linalg.eigh(product @ product.T)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T  # √(AAᵀ), d × d
    assert float(measured["balance"]) == pytest.approx(norm(key @ key.T - root) / norm(key @ key.T), rel=1e-6)
    assert float(measured["stable_rank"]) == pytest.approx(norm(change) ** 2 / norm(change, 2) ** 2, rel=1e-9)


def test_a_start_without_full_rank_spans_what_it_spans():
    """W_O = 0, as some models begin, and keys of rank 1: the projections are those of the dense matrices."""
    draw = np.random.default_rng(3)
    start = {f"attn.{name}.weight": draw.normal(size=(4, 12)) for name in ("q_proj", "k_proj", "v_proj")}
    start["attn.k_proj.weight"] = np.outer(draw.normal(size=4), draw.normal(size=12))
    start["attn.o_proj.weight"] = np.zeros((12, 4))
    end = {name: value + 0.1 * draw.normal(size=value.shape) for name, value in start.items()}
    found = networks.closure(start, end, {"num_attention_heads": 1})
    assert bool(found["outside_strength"].isnull().all())  # of a start without full rank
    found = found["outside"]
    sides = {"KQ": ("k_proj", "q_proj"), "VO": ("v_proj", "o_proj")}
    for product, names in sides.items():
        pair = [[state[f"attn.{name}.weight"] for state in (start, end)] for name in names]
        (left_0, left), (right_0, right) = (
            [w if name == "o_proj" else w.T for w in ws] for name, ws in zip(names, pair, strict=True)
        )
        change = left @ right.T - left_0 @ right_0.T
        rest = [np.eye(12) - w @ np.linalg.pinv(w) for w in (left_0, right_0)]
        expected = np.linalg.norm(rest[0] @ change @ rest[1]) / np.linalg.norm(change)
        assert found.sel(product=product).item() == pytest.approx(expected, rel=1e-9)


def test_memory_of_the_start_lasts_under_flow_and_not_under_adam():
    flow = networks.closure(*_trained(False, _descent(0.05), 200))
    adam = networks.closure(*_trained(False, lambda p: torch.optim.Adam(p, lr=1e-2), 100))
    assert float(flow["memory"].max()) < 1e-3
    assert float(adam["memory"].min()) > 0.02
    assert float(flow["balance"].min()) > 0.05  # so the memory is of something


def test_memory_counts_biases_and_groups():
    """It is 0 under flow where the law needs them, and would not be without them."""
    start, model = _trained(True, _descent(0.05), 200)
    assert float(networks.closure(start, model)["memory"].max()) < 2e-3
    late = {name: value.detach() for name, value in model.state_dict().items()}
    first, last = ({name: value for name, value in at.items() if "bias" not in name} for at in (start, late))
    assert float(networks.closure(first, last, {"num_attention_heads": HEADS})["memory"].max()) > 0.01


def test_balance_of_a_gaussian_head_is_half_of_the_invariant():
    draw = np.random.default_rng(0)
    state = {f"attn.{name}.weight": draw.normal(size=(64, 512)) for name in ("q_proj", "k_proj", "v_proj")}
    state["attn.o_proj.weight"] = draw.normal(size=(512, 64))
    found = networks.closure(state, state, {"num_attention_heads": 1})
    assert found["balance"].sel(product="KQ").item() == pytest.approx(0.25, abs=0.02)
    assert np.isnan(found["linearity"].sel(product="KQ").item())
    assert float(found["memory"].max()) < 1e-8


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_first_step_of_adam(decay):
    torch.manual_seed(2)
    model = Model(True).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    rate = 3e-3
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    (model(torch.randn(4, 6, DIM).double()) - 1.0).square().mean().backward()
    predicted = networks.adam_start(model, None, rate=rate, decay=decay)
    optimiser.step()
    measured = networks.closure(start, model)["stable_rank"]
    np.testing.assert_allclose(predicted["stable_rank"], measured, rtol=1e-6)
    assert float((predicted["gradient_stable_rank"] / measured).max()) < 1  # signs have a higher rank


@pytest.mark.parametrize("zero", ["", "q", "k", "v", "o"])
def test_rank_of_the_first_step_of_descent(zero):
    """By dense matrices; a factor that is 0 at the start moves all the same."""
    draw = np.random.default_rng(7)
    names = {name: f"h.0.attn.{name}_proj.weight" for name in "qkvo"}
    weights = {full: draw.normal(size=(6, 3) if name == "o" else (3, 6)) for name, full in names.items()}
    slopes = {full: draw.normal(size=value.shape) for full, value in weights.items()}
    if zero:
        weights[names[zero]][:] = 0.0
    config = {"num_attention_heads": 1, "head_dim": 3}
    found = networks.adam_start(weights, slopes, rate=0.1, config=config)["gradient_stable_rank"].values.ravel()
    for value, (one, other) in zip(found, ("kq", "vo"), strict=True):
        (left, down), (right, turn) = (
            [part[names[name]] if name == "o" else part[names[name]].T for part in (weights, slopes)]
            for name in (one, other)
        )
        sizes = np.linalg.svd(down @ right.T + left @ turn.T, compute_uv=False)
        assert value == pytest.approx(np.sum(sizes**2) / sizes[0] ** 2, rel=1e-9)


def test_bad_input():
    start, model = _trained(False, _descent(0.1), 1)
    with pytest.raises(SaddlesError, match="No attention heads were found"):
        networks.invariants({"a.weight": np.ones((3, 3))}, {"a.weight": np.ones((3, 3))})
    with pytest.raises(SaddlesError, match="one model at two times"):
        networks.closure({**start, "attn.qkv.weight": torch.zeros(2, 2)}, model)
    with pytest.raises(SaddlesError, match="not finite"):
        networks.invariants(model, {**start, "attn.qkv.weight": start["attn.qkv.weight"] * float("nan")})
    with pytest.raises(SaddlesError, match="`rate` must be positive"):
        networks.adam_start(model, None, rate=0.0)
    with pytest.raises(SaddlesError, match=r"no attn\.qkv\.weight"):
        networks.adam_start(model, {"attn.proj.weight": torch.zeros(DIM, DIM)}, rate=0.1)
