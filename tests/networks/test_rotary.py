"""What gradient flow keeps of heads with a rotary embedding, of real models of several families."""

import every_family
import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from saddles import networks
from saddles.probe import heads

TOKENS = 24
SIZES = {"vocab_size": TOKENS, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
LLAMA = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 16}
FAMILIES = {
    "llama": (LLAMA, 8, False),
    "qwen2": (LLAMA, 8, False),  # with biases of queries, keys and values
    "gpt_neox": ({**SIZES, "intermediate_size": 24, "rotary_pct": 0.5}, 4, False),
    "gptj": ({"vocab_size": TOKENS, "n_embd": 32, "n_head": 4, "n_layer": 1, "n_inner": 24, "rotary_dim": 4}, 4, True),
    "glm": ({**LLAMA, "head_dim": 8, "pad_token_id": 0}, 4, True),
}


def _model(kind, extra):
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **extra, **ends)).double().eval()
    with torch.no_grad():  # large enough that attention learns
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "emb" not in name and "wte" not in name:
                weight.mul_(8)
            elif name.endswith("bias"):
                weight.add_(0.3 * torch.randn_like(weight))
    return model


WORDS = torch.randint(0, TOKENS, (4, 10), generator=torch.Generator().manual_seed(1))


def _loss(model):
    return functional.cross_entropy(model(input_ids=WORDS).logits[:, :-1].flatten(0, 1), WORDS[:, 1:].flatten())


def _trained(model, start, rate, steps, decay=0.0):
    """Descent with full batches."""
    model.load_state_dict(start)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(steps):
        optimiser.zero_grad()
        _loss(model).backward()
        optimiser.step()
    return _state(model)


def _state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def _drift(start, end, config):
    return float(networks.invariants(start, end, config)["drift_of_change"].sel(product="KQ").max())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_short_step_keeps_the_trace_of_each_pair_and_nothing_finer(kind):
    """dC/dt of what is kept is 0 at any weights: a step of length h changes it by h², and the rest by h."""
    extra, turned, neighbours = FAMILIES[kind]
    model = _model(kind, extra)
    first = heads(model).heads[0]
    assert (first.rotary, first.turned, first.neighbours) == (True, turned, neighbours)
    start, config = _state(model), model.config.to_dict()
    end = _trained(model, start, 1e-5, 1)
    assert _drift(start, end, config) < 1e-4
    assert float(networks.closure(start, end, config)["memory"].max()) < 1e-9
    # Nulls: the law of heads without positions, and the pairs of another family.
    plain = {name: value for name, value in config.items() if not name.startswith(("rope", "rotary", "model_type"))}
    other = {**config, "model_type": "llama" if neighbours else "cohere"}
    assert _drift(start, end, plain) > 0.1
    assert _drift(start, end, other) > 0.01
    # A family that is not known: the trace of the whole is kept all the same.
    assert _drift(start, end, {**config, "model_type": "unheard-of"}) < 1e-4


def test_decay_makes_the_invariants_fall_as_it_says():
    """C falls as e^(−2λt), of keys and queries with a rotary embedding as of values and outputs."""
    model = _model("llama", LLAMA)
    start = _state(model)
    rate, steps, decay = 0.01, 80, 0.2
    moved = networks.invariants(start, _trained(model, start, rate, steps, decay), model.config.to_dict())
    expected = 1 - (1 - rate * decay) ** (2 * steps)
    assert expected > 0.2
    assert moved["drift"].values == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("model_type", ["llama", "gptj"])
def test_pairs_are_those_of_the_model(model_type):
    """Scaling a pair up in keys and down in queries leaves the outputs as they are; another pair does not."""
    model = every_family.build(model_type)
    given, layout = every_family.inputs(model), heads(model)
    assert every_family.pairs_turn_together(model, layout.layers()[0], given)
    other = [every_family.swapped(head) for head in layout.layers()[0]]
    assert every_family.pairs_turn_together(model, other, given) is False
