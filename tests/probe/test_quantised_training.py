"""Adapters on quantised bases: the numbers of bitsandbytes where it is installed, and a stand-in for its 8 bits."""

# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import types

import numpy as np
import pytest
import torch
import transformers

import saddles.probe
from saddles.probe.weights.adapted import find_adapted

peft = pytest.importorskip("peft")

WIDTH, HEADS, KEYS, EACH = 64, 4, 2, 16


def base() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


class Int8Params(torch.nn.Parameter):
    """Named as in bitsandbytes, and kept like it: whole numbers, and a scale for each row."""

    def __new__(cls, weight):
        scale = weight.abs().amax(1)
        new = torch.Tensor._make_subclass(cls, (127 * weight / scale[:, None]).round().to(torch.int8), False)
        new.SCB = scale
        return new


class StandIn(torch.nn.Linear):
    def __init__(self, plain: torch.nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False)
        self.weight = Int8Params(plain.weight.data)
        self.state = types.SimpleNamespace(SCB=None, CB=None)

    def forward(self, x):
        if self.state.SCB is None:
            self.state.SCB, self.weight.SCB = self.weight.SCB, None
        return x @ (self.weight.data * self.state.SCB[:, None] / 127).T


def quantised(kind: str) -> torch.nn.Module:
    model = base()
    library = None if kind == "stand-in" else pytest.importorskip("bitsandbytes")
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, torch.nn.Linear) and name != "lm_head":
                setattr(parent, name, packed(layer, kind, library))
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = kind == "4 bits", kind == "8 bits"
    return model


def packed(layer: torch.nn.Linear, kind: str, library) -> torch.nn.Module:
    sizes = (layer.in_features, layer.out_features, False)
    if kind == "stand-in":
        return StandIn(layer)
    if kind == "4 bits":
        new = library.nn.Linear4bit(*sizes, compute_dtype=torch.float32, quant_type="nf4")
        new.weight = library.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
    else:
        new = library.nn.Linear8bitLt(*sizes, has_fp16_weights=False)
        new.weight = library.nn.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
    return new.to("cpu")


@pytest.mark.parametrize("kind", ["4 bits", "8 bits", "stand-in"])
def test_heads_are_measured_with_the_weights_that_the_model_computes_with(kind):
    model = peft.get_peft_model(quantised(kind), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    optimiser = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    tokens = torch.randint(0, 64, (4, 8))
    adapted = find_adapted(model)
    assert adapted is not None
    assert len(adapted.layout.heads) == 2 * HEADS
    with saddles.probe.record(model, every=3) as run:
        for _ in range(3):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            run.step()
    # What a layer does to the identity is its weights; its adapter is the difference to the frozen layer.
    with torch.no_grad():
        block = model.base_model.model.model.layers[1].self_attn
        late = {name: getattr(block, f"{name}_proj")(torch.eye(WIDTH)).T.double() for name in "qk"}
        start = {"q": block.q_proj.base_layer(torch.eye(WIDTH)).T.double(), "k": late["k"]}
    for head in range(HEADS):
        key = late["k"].view(KEYS, EACH, WIDTH)[head // (HEADS // KEYS)]
        change = key.T @ (late["q"] - start["q"]).view(HEADS, EACH, WIDTH)[head]
        values = torch.linalg.svdvals(change).numpy()
        found = run.result["heads"]["singular_value"].isel(time=-1).sel(layer=1, head=head, product="KQ").values
        np.testing.assert_allclose(found[:4], values[:4], rtol=2e-2 if kind == "8 bits" else 1e-4)
    assert run.result["modules"]["used_rank"].values[-1].min() >= 1
