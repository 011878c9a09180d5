"""The self-check: what it confirms, what it names, and that it says "wrong" of a wrong layout."""

from typing import Any

import every_family
import pytest
import small_models
import torch
from torch import nn
from torch.nn import functional

from saddles.errors import SaddlesError
from saddles.probe import fused, heads, register, separate, spectra, verify
from saddles.probe.layouts.adapters import adapters
from saddles.probe.layouts.layout import Layout

WIDTH, HEADS, EACH = 24, 4, 6

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is")  # DeBERTa and GPT-BigCode use it


@pytest.fixture
def _own_registry(monkeypatch):
    monkeypatch.setattr("saddles.probe.layouts.adapters._registry", list(adapters()))


class Block(nn.Module):
    """Attention by hand, with what may lie between."""

    def __init__(self, between: str = "", eager: bool = False) -> None:
        super().__init__()
        self.num_heads, self.between, self.eager, self.first = HEADS, between, eager, 0
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH, bias=between == "bias") for _ in range(4)
        )
        if between == "gate":
            self.gate = nn.Linear(WIDTH, WIDTH)
        if between == "norm":
            self.q_norm, self.k_norm = nn.RMSNorm(EACH), nn.LayerNorm(EACH)
            nn.init.normal_(self.q_norm.weight)
            nn.init.normal_(self.k_norm.bias)

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (HEADS, EACH)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.between == "norm":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.between == "square":
            q = q * q
        if self.between == "rotary":
            angles = torch.arange(self.first, x.shape[1] + self.first)[:, None] * torch.tensor([1.0, 0.1, 0.01])
            q, k = (turned(part, angles) for part in (q, k))
        if self.eager:
            out = torch.softmax(q @ k.transpose(-1, -2) / EACH**0.5, -1) @ v
        else:
            out = functional.scaled_dot_product_attention(q, k, v)
        out = out.transpose(1, 2).flatten(2)
        if self.between == "gate":
            out = out * torch.sigmoid(self.gate(x))
        if self.between == "add":
            out = out + x
        return self.o_proj(out)


def turned(x, angles):
    left, right = x.chunk(2, -1)
    return torch.cat([left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()], -1)


def inputs(samples=8):
    return torch.randn(samples, 5, WIDTH)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("between", "verdict", "positional"),
    [
        ("", "right", False),
        ("bias", "right up to a bias", False),
        ("norm", "right up to a norm", False),
        ("gate", "right up to a gate", False),
        ("rotary", "right", True),
        ("square", "wrong", False),
        ("add", "wrong", False),
    ],
)
def test_what_lies_between_is_named(between, verdict, positional, eager):
    result = verify(Block(between, eager), inputs())
    assert result["verdict"].values.tolist() == [verdict]
    assert result["positional"].values.tolist() == [positional]
    at = {"square": "Q", "add": "O"}.get(between)
    if at:
        assert result["detail"].values[0].startswith(f"{at}: differs by")
        assert float(result["error"].sel(factor=at, layer=0)) > 0.1
    else:
        assert float(result["error"].drop_sel(factor="O").max()) < 1e-5


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize("at", ["QKV", "heads"])
def test_a_wrong_layout_is_wrong(at):
    """Projections under each other's names, and heads in another order."""
    model = small_models.gpt2()
    assert set(verify(model, small_models.inputs(model))["verdict"].values) == {"right"}
    if at == "QKV":
        model = Block()
        register(separate("swapped", "k_proj.weight", "q_proj.weight", "v_proj.weight", "o_proj.weight"))
        given = inputs()
    else:
        register(fused("mistaken", "c_attn.weight", "c_proj.weight", order="interleaved"))
        given = small_models.inputs(model)
    assert set(verify(model, given)["verdict"].values) == {"wrong"}


def test_tokens_that_are_all_alike_confirm_nothing():
    """Their queries are a constant, which "a bias" would explain whatever the matrix is."""
    alike = inputs()[:1, :1].expand(8, 5, WIDTH)
    assert verify(Block(), alike)["verdict"].values.tolist() == ["right"]
    assert verify(Block("square"), alike)["verdict"].values.tolist() == ["wrong"]


def test_attention_without_a_softmax_is_not_confirmed(monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, k, v: q * k * v)
    result = verify(Block(), inputs())
    assert result["verdict"].values.tolist() == ["unconfirmed"]
    assert "no softmax attention was seen" in str(result["detail"].values[0])


def test_too_few_sequences_confirm_no_norm_behind_a_rotary_embedding():
    model = every_family.build("qwen3")
    few = {name: value[:2] for name, value in every_family.inputs(model).items()}
    assert verify(model, every_family.inputs(model))["verdict"].values[0] == "right up to a norm"
    assert verify(model, few)["verdict"].values[0] == "wrong"


def test_inputs_of_another_kind_are_refused_and_the_model_stays_as_it_was():
    model = Block().train()
    with pytest.raises(SaddlesError, match="`inputs` must be a mapping of arguments"):
        verify(model, 3)
    verify(model, (inputs(),))
    assert model.training
    with pytest.raises(SaddlesError, match="No attention head was found"):
        verify(nn.Linear(3, 3), inputs())


EVERY_DAY = {
    "albert": "right up to a bias",
    "bitnet": "right up to a norm",
    "codegen": "right",
    "cohere2": "right",
    "deberta": "right up to a bias",
    "distilbert": "right up to a bias",
    "falcon": "right",
    "gpt_bigcode": "right up to a bias",
    "llama4_text": "right up to a norm",
    "modernbert": "right",
    "mpt": "right",
    "phi": "right up to a bias",
    "qwen3_next": "right up to a norm, a gate",
    "t5": "right",
    "xlnet": "right up to a bias",
}


@pytest.mark.parametrize("model_type", EVERY_DAY)
def test_a_sample_of_families(model_type):
    model = every_family.build(model_type)
    result = verify(model, every_family.inputs(model))
    assert EVERY_DAY[model_type] in result["verdict"].values
    assert not set(result["verdict"].values) & {"wrong"}
    confirmed = result["verdict"].str.startswith("right").values
    said = [block[0].rotary for block in heads(model).layers().values()]
    assert [one for one, sure in zip(said, confirmed, strict=True) if sure] == result["positional"].values[
        confirmed
    ].tolist()


def test_a_model_with_an_empty_parameter_is_read():
    model = Block()
    model.register_tokens = nn.Parameter(torch.empty(1, 0, WIDTH))
    assert len(heads(model).heads) == HEADS


@pytest.mark.parametrize("queries", [True, False])
def test_gpt_bigcode_is_read_in_both_of_its_layouts(queries):
    import transformers

    config = transformers.GPTBigCodeConfig(
        n_layer=1, n_head=HEADS, n_embd=WIDTH, vocab_size=30, n_positions=16, multi_query=queries
    )
    model = transformers.GPTBigCodeModel(config)
    assert verify(model, {"input_ids": torch.randint(0, 30, (8, 5))})["verdict"].values.tolist() == ["right"]


def test_cross_attention_of_gpt2_is_read():
    import transformers

    config = transformers.GPT2Config(
        n_layer=1, n_head=HEADS, n_embd=WIDTH, vocab_size=30, n_positions=16, add_cross_attention=True
    )
    model = transformers.GPT2Model(config)
    given = {"input_ids": torch.randint(0, 30, (8, 5)), "encoder_hidden_states": torch.randn(8, 3, WIDTH)}
    result = verify(model, given)
    assert result["verdict"].values.tolist() == ["right", "right"]
    assert [str(name) for name in result["attention"].values] == ["h.0.attn", "h.0.crossattention"]


def test_results_say_what_was_confirmed():
    model, given = Block("bias"), inputs()
    plain: Any = spectra(model, small_models.nudge(model, 0.1))
    assert plain["heads"]["verdict"].values.tolist() == ["unconfirmed"]
    checked: Any = spectra(model, small_models.nudge(model, 0.1), inputs=given)
    assert checked["heads"]["verdict"].values.tolist() == ["right up to a bias"]
    layout = heads(model)
    assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", every_family.model_types())
def test_every_family_is_read_right_or_refused(model_type):
    row = every_family.within(every_family.LIMIT, every_family.checked, model_type)
    if "skipped" in row:
        pytest.skip(row["skipped"])
    assert every_family.disagreements(row) == []


def test_positions_may_begin_anywhere():
    model = Block("rotary")
    model.first = 3
    result = verify(model, inputs())
    assert result["verdict"].values.tolist() == ["right"]
    assert result["positional"].values.tolist() == [True]


def test_keys_of_another_input_are_found_in_a_joint_matrix():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x, other):
            return self.attend(x, other, other)[0]

    assert verify(Cross(), (inputs(), torch.randn(8, 3, WIDTH)))["verdict"].values.tolist() == ["right"]


def test_a_norm_and_a_gate_together_are_not_confirmed():
    model = Block("add")
    model.o_norm = nn.LayerNorm(WIDTH)
    result = verify(model, inputs())
    assert result["verdict"].values.tolist() == ["unconfirmed"]
    assert "o_norm" in str(result["detail"].values[0])
