"""Every adapter against the model's own attention: the products must give its scores and its output."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import small_models
import torch

import saddles
from saddles.errors import SaddlesError
from saddles.probe import find_layout, fused, heads, register, separate
from saddles.probe.layouts.adapters import adapters
from saddles.probe.layouts.layout import Layout
from saddles.probe.layouts.no_heads import need_heads

spectra: Any = saddles.probe.spectra

FAMILIES = (
    "gpt2",
    "neox",
    "llama",
    "mistral",
    "qwen2",
    "phi3",
    "opt",
    "bert",
    "vit",
    "timm_like",
    "multihead",
)
ROTARY = {"neox", "llama", "mistral", "qwen2", "phi3"}
CAUSAL = {"gpt2", "neox", "llama", "mistral", "qwen2", "phi3", "opt"}


def products(model):
    """W_K W_Qᵀ and W_V W_Oᵀ of every head in float64, and d_h, as the layout finds them."""
    weights = dict(model.named_parameters())
    found = {}
    for head in heads(model).heads:
        cut = {kind: f.cut(weights[f.parameter]).detach().double() for kind, f in head.factors.items()}
        found[head.layer, head.head] = (cut["K"] @ cut["Q"].T, cut["V"] @ cut["O"].T, cut["K"].shape[1])
    return found


class Watch:
    """What each attention block is given, its weights and its output, in a real forward pass."""

    def __init__(self, model):
        self.seen = {}
        modules = dict(model.named_modules())
        for layer, block in heads(model).layers().items():
            name = block[0].attention
            scores = modules.get(f"{name}.self", modules[name])
            out = (
                modules[name] if name == "attend" else modules[block[0].factors["O"].parameter.removesuffix(".weight")]
            )
            scores.register_forward_hook(self._scores(layer), with_kwargs=True)
            out.register_forward_hook(self._output(layer))
        kwargs = {"output_attentions": True} if hasattr(model, "config") else {}
        with torch.no_grad():
            model(**small_models.inputs(model), **kwargs)

    def _scores(self, layer):
        def hook(module, args, kwargs, output):
            given = args[0] if args else kwargs["hidden_states"] if "hidden_states" in kwargs else kwargs["x"]
            self.seen.setdefault(layer, {}).update(given=given.double(), scores=output[1].double())

        return hook

    def _output(self, layer):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            self.seen.setdefault(layer, {})["output"] = output.double()

        return hook


@pytest.mark.parametrize("family", FAMILIES)
def test_products_give_the_models_own_scores_and_output(family):
    model = getattr(small_models, family)()
    found, seen = products(model), Watch(model).seen
    number = small_models.HEADS
    assert len(found) == len(seen) * number
    assert all(head.rotary == (family in ROTARY) for head in heads(model).heads)
    for layer, block in seen.items():
        x, total = block["given"], torch.zeros(())
        for head in range(number):
            kq, vo, width = found[layer, head]
            logits = x @ kq.T @ x.mT / width**0.5
            if family in CAUSAL:
                logits = logits + torch.full_like(logits, -torch.inf).triu(1)
            expected = logits.softmax(-1)
            torch.testing.assert_close(block["scores"][:, head], expected, rtol=0, atol=2e-5)
            assert expected.max(-1).values.mean() > 0.5, "a uniform attention would prove nothing"
            total = total + expected @ x @ vo
        scale = float(total.abs().max())
        torch.testing.assert_close(block["output"], total, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_spectra_are_those_of_the_products(family):
    model = getattr(small_models, family)()
    nothing = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    tree = spectra(model, nothing)["heads"]
    for (layer, head), (kq, vo, _) in products(model).items():
        for product, matrix in (("KQ", kq), ("VO", vo)):
            values = tree["singular_value"].sel(layer=layer, head=head, product=product).values[0]
            exact = torch.linalg.svdvals(matrix)[: len(values)].numpy()
            np.testing.assert_allclose(values, exact[: len(values)], rtol=0, atol=1e-6 * exact[0])


@pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm is not installed (it needs a torchvision that fits torch)"
)
def test_timm_vit():
    import timm  # pyright: ignore[reportMissingImports]

    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=3).eval()
    attention = model.blocks[1].attn
    attention.fused_attn = False
    with torch.no_grad():
        for module in (attention.qkv, attention.proj):
            module.weight.normal_(0, 0.1)
            module.bias.zero_()
    seen = {}
    attention.attn_drop.register_forward_hook(lambda module, args, output: seen.update(scores=output.double()))
    attention.register_forward_hook(
        lambda module, args, output: seen.update(x=args[0].double(), output=output.double())
    )
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    found, total = products(model), torch.zeros(())
    for head in range(attention.num_heads):
        kq, vo, width = found[1, head]
        expected = (seen["x"] @ kq.T @ seen["x"].mT / width**0.5).softmax(-1)
        torch.testing.assert_close(seen["scores"][:, head], expected, rtol=0, atol=2e-5)
        total = total + expected @ seen["x"] @ vo
    torch.testing.assert_close(seen["output"], total, rtol=0, atol=2e-5 * float(total.abs().max()))


def test_transformer_encoder_of_torch_is_found():
    layer = torch.nn.TransformerEncoderLayer(24, 4, 32, batch_first=True)
    assert len(heads(torch.nn.TransformerEncoder(layer, 2)).heads) == 8


def test_multihead_with_separate_matrices():
    """Keys and values of their own width: each product maps between two different spaces."""
    model = small_models.Torch(kdim=10, vdim=12, bias=False)
    assert heads(model).heads[0].factors["K"].shape((24, 10)) == (10, 6)
    query, key, value = (torch.randn(2, 7, width, dtype=torch.float64) for width in (24, 10, 12))
    given = [part.float() for part in (query, key, value)]
    output, scores = model.attend(*given, need_weights=True, average_attn_weights=False)
    total = torch.zeros(())
    for head in range(4):
        kq, vo, width = products(model)[0, head]
        expected = (query @ kq.T @ key.mT / width**0.5).softmax(-1)
        torch.testing.assert_close(scores[:, head].double(), expected, rtol=0, atol=1e-6)
        total = total + expected @ value @ vo
    torch.testing.assert_close(output.double(), total, rtol=0, atol=1e-6)


def test_names_of_older_versions_and_checkpoints_give_the_same_heads():
    """ViT was `attention.attention.query` before; GPT-2's files have no `transformer.` in front."""
    new = small_models.vit()
    shapes = {name: tuple(tensor.shape) for name, tensor in new.state_dict().items()}
    old = {}
    for name, shape in shapes.items():
        for now, before in (("q_proj", "attention.query"), ("k_proj", "attention.key"), ("v_proj", "attention.value")):
            name = name.replace(now, before)
        old[f"vit.{name.replace('o_proj', 'output.dense')}"] = shape
    layout = find_layout(old, new.config.to_dict())
    assert [head.family for head in layout.heads] == ["ViT"] * 8
    assert [h.factors["K"].rows for h in layout.heads] == [h.factors["K"].rows for h in heads(new).heads]
    model = small_models.gpt2()
    bare = {name.removeprefix("transformer."): tuple(t.shape) for name, t in model.state_dict().items()}
    assert len(find_layout(bare, {"n_head": 4}).heads) == 8


def test_matrices_stored_the_other_way_are_marked():
    layout = heads(small_models.gpt2())
    turned = {module.parameter for module in layout.modules if module.conv1d}
    ends = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert turned == {f"transformer.h.{layer}.{end}.weight" for layer in (0, 1) for end in ends}
    assert not any(module.conv1d for module in heads(small_models.llama()).modules)


def test_joint_matrix_of_linear_layers_is_told_from_its_shape():
    """NanoGPT names its layers as GPT-2 does, but stores them as (out, in)."""
    shapes = {"h.0.attn.c_attn.weight": (72, 24), "h.0.attn.c_proj.weight": (24, 24), "h.0.mlp.c_fc.weight": (96, 24)}
    layout = find_layout(shapes, {"n_head": 4})
    assert layout.heads[1].factors["K"].rows == (30, 36)
    assert not any(module.conv1d for module in layout.modules)


def test_layers_are_counted_in_natural_order():
    shapes = {f"layers.{n}.attn.qkv.weight": (72, 24) for n in (10, 9, 2)}
    shapes |= {f"layers.{n}.attn.proj.weight": (24, 24) for n in (10, 9, 2)}
    layout = find_layout(shapes, {"num_heads": 4})
    assert [heads[0].attention for heads in layout.layers().values()] == [f"layers.{n}.attn" for n in (2, 9, 10)]


def test_parts_of_a_configuration_serve_their_own_blocks():
    shapes = {}
    for tower, width in (("vision_model", 32), ("text_model", 48)):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{tower}.layers.0.self_attn.{name}.weight"] = (width, width)
    config = {"vision_config": {"num_attention_heads": 2}, "text_config": {"num_attention_heads": 6}}
    assert {b[0].attention.split(".")[0]: len(b) for b in find_layout(shapes, config).layers().values()} == {
        "text_model": 6,
        "vision_model": 2,
    }


def test_a_norm_between_queries_and_keys_is_said():
    layout = heads(small_models.qwen3())
    assert all(head.normalised and head.rotary for head in layout.heads)
    assert "norm left out" in str(layout)


def test_unknown_attention_is_skipped_with_a_reason():
    shapes = {"h.0.attention.mixer.weight": (9, 7), "h.0.norm.weight": (7,), "conv.weight": (4, 3, 2, 2)}
    layout = find_layout(shapes)
    reasons = dict(layout.skipped)
    assert "unknown structure" in reasons["h.0.attention.mixer.weight"]
    assert "vector" in reasons["h.0.norm.weight"]
    assert "4 axes" in reasons["conv.weight"]


@pytest.mark.parametrize(
    ("shapes", "config", "reason"),
    [
        ({"a.qkv.weight": (72, 24), "a.proj.weight": (24, 24)}, {}, "number of heads is not known"),
        ({"a.qkv.weight": (72, 24), "a.proj.weight": (24, 24)}, {"num_heads": 5}, "cannot be divided by 5"),
        ({"a.query_key_value.weight": (44, 24), "a.dense.weight": (24, 24)}, {"n_head": 6}, "cannot be divided by 8"),
        (
            {f"a.{n}_proj.weight": (36 if n == "q" else 24, 24) for n in "qkvo"},
            {"num_attention_heads": 4, "head_dim": 6},
            "head_dim = 6",
        ),
        (
            {f"a.{n}_proj.weight": (24, 24) for n in "qkvo"},
            {"num_attention_heads": 4, "num_key_value_heads": 2},
            "num_key_value_heads = 2",
        ),
    ],
)
def test_a_block_that_cannot_be_read_is_refused_with_a_reason(shapes, config, reason):
    layout = find_layout(shapes, config)
    assert not layout.heads
    assert reason in dict(layout.skipped)["a"]


def test_a_state_space_model_has_no_attention():
    shapes = {"layers.0.mixer.A_log": (48, 16), "layers.0.mixer.in_proj.weight": (96, 32)}
    with pytest.raises(SaddlesError, match=r"no attention: layers\.0\.mixer\.A_log belongs to a state-space"):
        need_heads(find_layout(shapes, {}))


def test_peft_layers_are_named_as_such():
    shapes = {"m.q_proj.base_layer.weight": (24, 24), "m.q_proj.lora_A.default.weight": (2, 24)}
    assert all("PEFT" in reason for _, reason in find_layout(shapes, {}).skipped)


@pytest.fixture
def _own_registry(monkeypatch):
    monkeypatch.setattr("saddles.probe.layouts.adapters._registry", list(adapters()))


@pytest.mark.usefixtures("_own_registry")
def test_registration_takes_two_lines():
    shapes = {f"l.0.{name}.weight": (24, 24) for name in ("my_q", "my_k", "my_v", "my_o")}
    assert not find_layout(shapes, {"n_head": 4}).heads
    register(separate("mine", q="my_q.weight", k="my_k.weight", v="my_v.weight", o="my_o.weight"))
    assert [head.family for head in find_layout(shapes, {"n_head": 4}).heads] == ["mine"] * 4
    register(fused("joint", "packed.weight", "out.weight", order="interleaved"))
    assert len(find_layout({"x.packed.weight": (72, 24), "x.out.weight": (24, 24)}, {"n_head": 3}).heads) == 3


def test_layout_as_text_and_back():
    layout = heads(small_models.llama())
    assert Layout.from_json(layout.to_json()) == layout
    assert "8 heads, 16 matrices" in str(layout)


def test_probe_is_part_of_the_package():
    assert saddles.probe.heads is heads
