"""What PEFT adapts besides linear modules, and models that are given as adapters on a base."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from planted import planted, tiny, trained
from safetensors.torch import load_file, save_file

from saddles.errors import SaddlesError
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.planning import lora_plan

TOKENS = torch.arange(12)[None]
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 50, "max_position_embeddings": 32,
}  # fmt: skip
MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "head_dim": 16},
    "DeepseekV3": {
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "GptOss": {"num_local_experts": 4, "head_dim": 16, "num_experts_per_tok": 2},
}  # fmt: skip


def _mixture(family: str) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **MIXTURES[family])
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def _moved(base: Any, rank: int, names: tuple[str, ...] = ()) -> Any:
    """A change of a rank in every matrix, also of each expert, or in those whose names have a part."""
    tuned, draw = copy.deepcopy(base), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if p.ndim >= 2 and "embed" not in name and ".gate.weight" not in name and "router" not in name:
                if "bias" in name or (names and not any(part in name for part in names)):
                    continue
                left = torch.randn(*p.shape[:-1], rank, generator=draw)
                right = torch.randn(*p.shape[:-2], rank, p.shape[-1], generator=draw)
                p += 0.02 * left @ right
    return tuned


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def _loaded(base: Any, folder: Any) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(copy.deepcopy(base), str(folder)).eval()


@pytest.mark.parametrize("family", list(MIXTURES))
def test_fused_experts_are_adapted_through_peft(family, tmp_path):
    base = _mixture(family)
    tuned = _moved(base, 2)
    plan = lora_plan(base, tuned, energy=0.99999)
    experts = [row for row in plan.modules if row.experts]
    assert {row.module.rpartition(".")[2] for row in experts} == {"gate_up_proj", "down_proj"}
    assert {row.rank for row in plan.modules} == {2}
    for row in experts:
        apart = (tuned.get_parameter(row.module) - base.get_parameter(row.module)).detach().double()
        assert row.norm == pytest.approx(float(apart.norm()), rel=1e-6)
        assert row.cost == row.experts * (apart.shape[1] + apart.shape[2])
    assert not any("experts" in row.name for row in plan.left_out)
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    assert made.loaded
    assert made.parameters == plan.parameters
    torch.testing.assert_close(_logits(_loaded(base, made.folder)), _logits(tuned), atol=2e-5, rtol=1e-4)
    assert not torch.allclose(_logits(base), _logits(tuned), atol=1e-2)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "DeepseekV3"])
def test_experts_that_are_stored_one_by_one_are_the_fused_ones(family, tmp_path):
    base = _mixture(family)
    tuned = _moved(base, 1)
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    live, stored = (
        lora_plan(one, other, energy=0.99999) for one, other in ((base, tuned), (tmp_path / "base", tmp_path / "tuned"))
    )
    assert [row.module for row in stored.modules] == [row.module for row in live.modules]
    np.testing.assert_allclose([r.norm for r in stored.modules], [r.norm for r in live.modules], rtol=1e-9)
    made = lora_extract(tmp_path / "base", tmp_path / "tuned", stored, tmp_path / "adapter")
    torch.testing.assert_close(_logits(_loaded(base, made.folder)), _logits(tuned), atol=2e-5, rtol=1e-4)


def test_ranks_of_experts_and_truncation(tmp_path):
    """One rank for the experts of a tensor: the error is that of all their own truncations."""
    base = _mixture("Mixtral")
    tuned = _moved(base, 4, names=("experts",))
    plan = lora_plan(base, tuned, max_rank=2, evaluate=TOKENS)
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    for row in plan.carried:
        apart = (tuned.get_parameter(row.module) - base.get_parameter(row.module)).detach().double()
        values = torch.linalg.svdvals(apart)
        assert row.error == pytest.approx(float(values[:, 2:].norm()), rel=1e-6)
        assert made.errors[row.module] == pytest.approx(row.error, rel=1e-5)
    loaded = _logits(_loaded(base, made.folder))
    wanted = torch.nn.functional.cross_entropy(loaded[0, :-1], TOKENS[0, 1:])
    assert plan.measured[-1].value == pytest.approx(float(wanted), abs=1e-4)
    few = lora_plan(base, tuned, max_rank=2, leading=2)
    assert few.energy == pytest.approx(plan.energy, rel=1e-6)
    with pytest.raises(SaddlesError, match="single experts"):
        lora_plan(base, tuned, data=TOKENS)
    with pytest.raises(SaddlesError, match="does not load"):
        lora_extract(base, tuned, plan, tmp_path / "other", target="vllm")


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_tuned_model_given_as_an_adapter_on_the_base(family, tmp_path):
    """The plan of base and adapter is that of base and merged model; nothing of it is taken for rounding."""
    base = tiny(family)
    tuned = trained(base)
    base.save_pretrained(tmp_path / "base")
    plan = lora_plan(tmp_path / "base", tuned, energy=0.8, save_modules=family != "bert")
    made = lora_extract(tmp_path / "base", tuned, plan, tmp_path / "adapter")
    merged = _loaded(base, made.folder).merge_and_unload()
    for start in (tmp_path / "base", base):
        given = lora_plan(start, made.folder, energy=1.0)
        assert [row.rank for row in given.modules] == [row.rank for row in plan.modules]
        for row, old in zip(given.modules, plan.modules, strict=True):
            apart = merged.get_submodule(row.module).weight - base.get_submodule(row.module).weight
            assert row.norm == pytest.approx(float(apart.detach().double().norm()), rel=1e-4, abs=1e-6)
            assert row.floor == 0
            assert row.bias == pytest.approx(old.bias if row.rank else 0.0, rel=1e-5, abs=1e-9)
        lost = {row.name for row in given.left_out}
        assert lost == ({row.name for row in lora_plan(base, tuned).left_out} if family != "bert" else set())
    again = lora_extract(tmp_path / "base", made.folder, given, tmp_path / "again")
    one, other = (_loaded(base, folder).merge_and_unload() for folder in (again.folder, made.folder))
    for row in given.carried:
        torch.testing.assert_close(
            one.get_submodule(row.module).weight, other.get_submodule(row.module).weight, atol=1e-6, rtol=0
        )


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("save_modules", [False, True])
def test_an_adapter_runs_on_a_text_as_peft_runs_it(family, save_modules, tmp_path):
    """GPT-2's embedding and head are tied, and the adapter holds both; here they differ."""
    base = tiny(family)
    base.save_pretrained(tmp_path / "base")
    tuned = trained(base)
    plan = lora_plan(tmp_path / "base", tuned, max_rank=6, save_modules=save_modules)
    made = lora_extract(tmp_path / "base", tuned, plan, tmp_path / "adapter")
    if save_modules:
        file = made.folder / "adapter_model.safetensors"
        save_file({k: t * (1.1 if "lm_head" in k else 1) for k, t in load_file(file).items()}, file)
    text = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(5))

    def loss(model):
        with torch.no_grad():
            logits = model(text).logits
        return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), text[:, 1:].flatten()))

    given = lora_plan(tmp_path / "base", made.folder, max_rank=6, evaluate=text)
    rows = {row.what: row.value for row in given.measured}
    assert rows["tuned"] == pytest.approx(loss(_loaded(base, made.folder)), abs=1e-5)
    assert abs(rows["tuned"] - rows["base"]) > 1e-3
    if not save_modules:
        assert rows["base"] == pytest.approx(loss(base), abs=1e-5)
        assert rows["max_rank=6"] == pytest.approx(rows["tuned"], abs=1e-5)
        weighted = lora_plan(tmp_path / "base", made.folder, max_rank=2, data=text)
        live = lora_plan(base, _loaded(base, made.folder).merge_and_unload(), max_rank=2, data=text)
        for row, other in zip(weighted.modules, live.modules, strict=True):
            assert row.missed == pytest.approx(other.missed, rel=1e-3, abs=1e-6)


def test_an_adapter_on_an_adapter_says_how_it_is_loaded(tmp_path):
    base = tiny("llama")
    base.save_pretrained(tmp_path / "base")
    first = lora_extract(
        tmp_path / "base", planted(base, 1), lora_plan(tmp_path / "base", planted(base, 1)), tmp_path / "first"
    )
    assert first.notes == ()
    second = planted(base, 3)
    made = lora_extract(first.folder, second, lora_plan(first.folder, second), tmp_path / "second")
    assert f"its base is {tmp_path / 'base'} with {first.folder} merged into it" in made.notes[0]


def test_small_adapters_on_a_coarse_base_and_two_adapters(tmp_path):
    """BA far below the spacing of a bfloat16 base is found whole; from one adapter to another is their difference."""
    base = tiny("llama")
    for p in base.parameters():
        p.data = p.data.bfloat16().float()
    base.save_pretrained(tmp_path / "base")
    places = []
    for rank in (1, 2):
        tuned = planted(base, rank=rank)
        made = lora_extract(tmp_path / "base", tuned, lora_plan(base, tuned, max_rank=rank), tmp_path / f"a{rank}")
        file = made.folder / "adapter_model.safetensors"
        save_file({k: t * (1e-5 if "lora_B" in k else 1) for k, t in load_file(file).items()}, file)
        places.append(made.folder)
    given = lora_plan(tmp_path / "base", places[1], energy=0.999)
    assert {row.rank for row in given.modules} == {2}
    apart = lora_plan(places[0], places[1], energy=0.999)
    assert max(row.rank for row in apart.modules) == 3
    with pytest.raises(SaddlesError, match="does not have"):
        lora_plan(tiny("gpt2"), places[0])
    config = places[0] / "adapter_config.json"
    config.write_text(config.read_text().replace(str(tmp_path / "base"), "someone/else"))
    with pytest.raises(SaddlesError, match="which is not here"):
        lora_plan(places[0], places[1])


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_get_factors(tied, tmp_path):
    """An embedding, and a head that is tied to it: base + adapter of full rank equals the tuned model."""
    settings = copy.deepcopy(tiny("llama").config)
    settings.tie_word_embeddings = tied
    torch.manual_seed(0)
    base = type(tiny("llama"))(settings).eval()
    tuned, draw = copy.deepcopy(base), torch.Generator().manual_seed(0)
    with torch.no_grad():
        matrix = tuned.get_input_embeddings().weight
        matrix += 0.02 * torch.randn(len(matrix), 2, generator=draw) @ torch.randn(2, 32, generator=draw)
    with pytest.raises(SaddlesError, match="other tensors changed"):
        lora_plan(base, tuned, energy=0.9999)
    plan = lora_plan(base, tuned, energy=0.9999, embeddings=True)
    names = ["model.embed_tokens", *(["lm_head"] if tied else [])]
    assert {row.module: row.rank for row in plan.carried} == dict.fromkeys(names, 2)
    assert plan.left_out == ()
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    assert made.parameters == plan.parameters == len(names) * 2 * (len(matrix) + 32)
    torch.testing.assert_close(_logits(_loaded(base, made.folder)), _logits(tuned), atol=2e-6, rtol=1e-5)
    assert not torch.allclose(_logits(base), _logits(tuned), atol=1e-3)
    with pytest.raises(SaddlesError, match="not a vector"):
        lora_plan(base, tuned, embeddings=True, data=TOKENS)


class _Attending(torch.nn.Module):
    """torch's MultiheadAttention in a block of its own, as in open_clip, or in torch's layer."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.attn = torch.nn.MultiheadAttention(16, 4, batch_first=True) if own else torch.nn.Identity()
        self.layer = torch.nn.Linear(16, 16) if own else torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.attn(x, x, x)[0] if self.own else x)


def _attending(own: bool, names: tuple[str, ...]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    base = _Attending(own).eval()
    return base, _moved(base, 2, names)


INPUT = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3))


def test_queries_keys_and_values_of_multihead_attention_get_factors(tmp_path):
    base, tuned = _attending(True, ("in_proj", "layer"))
    plan = lora_plan(base, tuned, energy=1)
    assert {row.module: row.rank for row in plan.modules} == {"attn.in_proj_weight": 2, "layer": 2}
    lora_extract(base, tuned, plan, tmp_path / "a")
    for model in (adapted := _loaded(base, tmp_path / "a"), adapted.merge_and_unload()):
        with torch.no_grad():
            torch.testing.assert_close(model(INPUT), tuned(INPUT), rtol=0, atol=1e-5)
    # Others do not load them.
    made = lora_extract(base, tuned, plan, tmp_path / "v", target="vllm")
    assert made.dropped == ("attn.in_proj_weight (MultiheadAttention)",)
    # PEFT applies factors of its output twice: it is left out, or the attention is saved whole.
    base, tuned = _attending(True, ("attn", "layer"))
    plan = lora_plan(base, tuned, energy=1)
    assert [(row.name, row.reason) for row in plan.left_out] == [
        ("attn.out_proj.weight", "inside torch's MultiheadAttention")
    ]
    for names in (("attn", "layer"), ("out_proj", "layer")):
        base, tuned = _attending(True, names)
        plan = lora_plan(base, tuned, energy=1, save_modules=True)
        assert [one.name for one in plan.saved] == ["attn"]
        assert [row.module for row in plan.modules] == ["layer"]
        lora_extract(base, tuned, plan, tmp_path / names[0])
        with torch.no_grad():
            torch.testing.assert_close(_loaded(base, tmp_path / names[0])(INPUT), tuned(INPUT), rtol=0, atol=1e-5)


def test_adapters_that_torch_computes_past_are_told(tmp_path):
    base, tuned = _attending(False, ("linear",))
    made = lora_extract(base, tuned, lora_plan(base, tuned, energy=1), tmp_path / "a")
    assert "merge_and_unload" in made.notes[0]
    adapted = _loaded(base, tmp_path / "a")
    with torch.no_grad():
        assert torch.equal(adapted(INPUT), base(INPUT))  # PEFT's adapter does nothing here, which the note says
        torch.testing.assert_close(adapted.merge_and_unload()(INPUT), tuned(INPUT), rtol=0, atol=1e-5)
    base, tuned = _attending(False, ("linear", "self_attn"))
    plan = lora_plan(base, tuned, energy=1, save_modules=True)
    assert [one.name for one in plan.saved] == ["layer.self_attn"]
    lora_extract(base, tuned, plan, tmp_path / "w")
    merged = _loaded(base, tmp_path / "w").merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(merged(INPUT), tuned(INPUT), rtol=0, atol=1e-5)
