"""Adapters made smaller, merged and larger: dense singular value decompositions, PEFT itself, kohya's names."""

import copy
import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from planted import tiny
from safetensors.torch import load_file, save_file

from saddles.errors import SaddlesError
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.reshape import lora_compress, lora_grow, lora_merge
from saddles.probe.lora.stored import open_adapter

TOKENS = torch.arange(10)[None]
TEXT = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(5))


def _trained_adapter(folder, seed=0, family="llama", **settings: Any) -> Any:
    """An adapter as PEFT saves it, with random factors."""
    from peft import LoraConfig, get_peft_model

    defaults: dict[str, Any] = {"r": 6, "lora_alpha": 9, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    model = get_peft_model(copy.deepcopy(tiny(family)), LoraConfig(**defaults | settings))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                fall = 1 / torch.arange(1, parameter.shape[0 if "lora_A" in name else -1] + 1)
                noise = torch.randn(parameter.shape, generator=draw)
                parameter.copy_(0.3 * noise * (fall[:, None] if "lora_A" in name else fall))
    model.save_pretrained(str(folder))
    return model.eval()


def _changes(folder) -> dict[str, torch.Tensor]:
    """ΔW of each adapted module, as PEFT merges it."""
    from peft import PeftModel

    base = tiny("llama")
    merged: Any = PeftModel.from_pretrained(copy.deepcopy(base), str(folder)).double().merge_and_unload()
    start = dict(base.named_parameters())
    found = {name: (p - start[name]).detach().double() for name, p in merged.named_parameters()}
    return {name: change for name, change in found.items() if float(change.norm())}


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rsLoRA": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"down_proj": 2, "layers.0.self_attn.v_proj": 30}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_is_the_best_approximation_of_each_module(kind, tmp_path):
    _trained_adapter(tmp_path / "whole", **KINDS[kind])
    dense = _changes(tmp_path / "whole")
    made = lora_compress(tmp_path / "whole", tmp_path / "small", max_rank=2)
    small = _changes(tmp_path / "small")
    assert set(small) == set(dense)
    for name, change in dense.items():
        values = torch.linalg.svdvals(change)
        module = f"base_model.model.{name.removesuffix('.weight')}"
        best = float(values[2:].norm())
        assert made.ranks[module][1] == 2
        assert made.errors[module] == pytest.approx(best, rel=1e-5)
        assert float((small[name] - change).norm()) == pytest.approx(best, rel=1e-3)
        assert made.norms[module] == pytest.approx(float(change.norm()), rel=1e-5)
    exact = lora_compress(tmp_path / "whole", tmp_path / "same", energy=1.0)
    assert exact.error < 1e-6
    again = _changes(tmp_path / "same")
    for name, change in dense.items():
        torch.testing.assert_close(again[name], change, atol=1e-6, rtol=0)


def test_compress_by_energy_and_budget(tmp_path):
    _trained_adapter(tmp_path / "whole")
    by_energy = lora_compress(tmp_path / "whole", tmp_path / "a", energy=0.9)
    assert by_energy.error**2 <= 0.1
    assert by_energy.parameters[1] < by_energy.parameters[0]
    by_budget = lora_compress(tmp_path / "whole", tmp_path / "b", budget=700)
    assert by_budget.parameters[1] <= 700
    assert (
        sum(t.numel() for t in load_file(tmp_path / "b" / "adapter_model.safetensors").values())
        == (by_budget.parameters[1])
    )
    assert list(by_energy.table()["new_rank"]) == [after for _, after in by_energy.ranks.values()]


def test_merged_change_is_the_weighted_sum(tmp_path):
    """Different ranks, scales and modules; exact without a limit, and optimal with one."""
    _trained_adapter(tmp_path / "one")
    _trained_adapter(tmp_path / "two", seed=1, r=3, lora_alpha=5, target_modules=["q_proj", "up_proj"])
    first, second = _changes(tmp_path / "one"), _changes(tmp_path / "two")
    wanted = {
        name: 0.7 * first.get(name, torch.zeros(1)) - 0.4 * second.get(name, torch.zeros(1)) for name in first | second
    }
    places = [tmp_path / "one", tmp_path / "two"]
    whole = lora_merge(places, [0.7, -0.4], tmp_path / "both")
    merged = _changes(tmp_path / "both")
    for name, change in wanted.items():
        torch.testing.assert_close(merged[name], change, atol=1e-6, rtol=0)
    assert whole.error < 1e-6
    cut = lora_merge(places, [0.7, -0.4], tmp_path / "cut", max_rank=4)
    small = _changes(tmp_path / "cut")
    for name, change in wanted.items():
        best = float(torch.linalg.svdvals(change)[4:].norm())
        assert float((small[name] - change).norm()) == pytest.approx(best, rel=1e-3, abs=1e-6)
    assert cut.overlap is not None
    q = "model.layers.0.self_attn.q_proj"
    cosine = float((first[f"{q}.weight"] * -second[f"{q}.weight"]).sum())
    cosine /= float(first[f"{q}.weight"].norm() * second[f"{q}.weight"].norm())
    assert cut.overlap[f"base_model.model.{q}"] == pytest.approx(cosine, rel=1e-4)
    assert cut.overlap["base_model.model.model.layers.0.mlp.up_proj"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_grown_adapter_is_the_same_function(kind, tmp_path):
    from peft import PeftModel

    model = _trained_adapter(tmp_path / "small", **KINDS[kind])
    made = lora_grow(tmp_path / "small", 9, tmp_path / "large")
    assert {after for _, after in made.ranks.values()} == {9}
    grown = PeftModel.from_pretrained(copy.deepcopy(tiny("llama")), str(tmp_path / "large")).eval()
    with torch.no_grad():
        torch.testing.assert_close(grown(TOKENS).logits, model(TOKENS).logits, atol=1e-6, rtol=1e-5)
    stored = open_adapter(tmp_path / "large")
    for pair in stored.pairs.values():
        assert (pair.inner[-1].abs() > 0).any()  # a new rank can learn
        assert not pair.outer[:, -1].any()


def test_an_adapter_that_would_not_grow_is_refused(tmp_path):
    _trained_adapter(tmp_path / "small", **next(iter(KINDS.values())))
    rank = max(pair.rank for pair in open_adapter(tmp_path / "small").pairs.values())
    with pytest.raises(SaddlesError, match="`rank` must be above"):
        lora_grow(tmp_path / "small", rank, tmp_path / "large")
    assert not (tmp_path / "large").exists()


def test_kohya_names(tmp_path):
    draw = torch.Generator().manual_seed(0)
    tensors, wanted = {}, {}
    for module, alpha in (("lora_unet_a", 2.0), ("lora_te_b", None)):
        down, up = torch.randn(5, 12, generator=draw), torch.randn(20, 5, generator=draw)
        tensors |= {f"{module}.lora_down.weight": down, f"{module}.lora_up.weight": up}
        if alpha is not None:
            tensors[f"{module}.alpha"] = torch.tensor(alpha)
        wanted[module] = (alpha / 5 if alpha is not None else 1.0) * up.double() @ down.double()
    save_file(tensors, tmp_path / "style.safetensors")
    made = lora_compress(tmp_path / "style.safetensors", tmp_path / "small.safetensors", max_rank=3)
    small = load_file(tmp_path / "small.safetensors")
    for module, change in wanted.items():
        scale = float(small[f"{module}.alpha"]) / 3
        found = scale * small[f"{module}.lora_up.weight"].double() @ small[f"{module}.lora_down.weight"].double()
        best = float(torch.linalg.svdvals(change)[3:].norm())
        assert float((found - change).norm()) == pytest.approx(best, rel=1e-5)
        assert made.errors[module] == pytest.approx(best, rel=1e-5)
    lora_grow(tmp_path / "small.safetensors", 4, tmp_path / "large.safetensors")
    assert load_file(tmp_path / "large.safetensors")["lora_te_b.alpha"] == 4


def test_the_product_is_never_formed(tmp_path, monkeypatch):
    """A module of 4096 × 4096 at rank 4: nothing of the size of the product is made."""
    draw = torch.Generator().manual_seed(0)
    tensors = {"m.lora_down.weight": torch.randn(4, 4096, generator=draw)}
    tensors["m.lora_up.weight"] = torch.randn(4096, 4, generator=draw)
    save_file(tensors, tmp_path / "wide.safetensors")
    sizes = []
    matmul = torch.Tensor.__matmul__

    def seen(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = matmul(a, b)
        sizes.append(product.numel())
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", seen)
    lora_compress(tmp_path / "wide.safetensors", tmp_path / "thin.safetensors", max_rank=2)
    assert sizes
    assert max(sizes) <= 4 * 4096


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "lora_ga"])
def test_an_adapter_whose_start_changed_the_base_is_refused_until_it_is_converted(start, tmp_path):
    """PEFT takes the start of such an adapter out of the base: base + BA is another model than the tuned one."""
    from peft import LoraConfig, LoraGAConfig, PeftModel, get_peft_model
    from peft.tuners.lora import preprocess_loraga

    base: Any = tiny("llama")
    base.save_pretrained(str(tmp_path / "base"))
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    chosen, begun = LoraConfig(**settings, init_lora_weights=start), copy.deepcopy(base)
    if start == "lora_ga":
        chosen.lora_ga_config = LoraGAConfig()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about hooks of PEFT
            preprocess_loraga(begun, chosen, lambda: begun(TOKENS, labels=TOKENS).loss.backward())
    model: Any = get_peft_model(begun, chosen)
    config = model.peft_config["default"]
    config.init_lora_weights = True
    model.save_pretrained(str(tmp_path / "first"))
    config.init_lora_weights = start
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    wanted = model.eval()(TOKENS).logits
    model.save_pretrained(str(tmp_path / "tuned"))
    for attempt in (
        lambda: lora_compress(tmp_path / "tuned", tmp_path / "out", max_rank=2),
        lambda: lora_grow(tmp_path / "tuned", 8, tmp_path / "out"),
        lambda: lora_merge([tmp_path / "tuned"] * 2, [0.5, 0.5], tmp_path / "out"),
        lambda: lora_plan(tmp_path / "base", tmp_path / "tuned"),
    ):
        with pytest.raises(
            SaddlesError, match=f"init_lora_weights='{start}'.*path_initial_model_for_weight_conversion"
        ):
            attempt()
    config.init_lora_weights = True  # as PEFT wants it for the conversion
    model.save_pretrained(str(tmp_path / "converted"), path_initial_model_for_weight_conversion=str(tmp_path / "first"))
    lora_compress(tmp_path / "converted", tmp_path / "same", energy=1.0)
    again: Any = PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / "same")).eval()
    torch.testing.assert_close(again(TOKENS).logits, wanted, atol=1e-5, rtol=1e-4)


def test_what_is_no_product_of_factors_is_refused(tmp_path):
    _trained_adapter(tmp_path / "dora", use_dora=True)
    with pytest.raises(SaddlesError, match="DoRA"):
        lora_compress(tmp_path / "dora", tmp_path / "out", max_rank=2)
    _trained_adapter(tmp_path / "good")
    plain = (tmp_path / "good" / "adapter_config.json").read_text()
    for key, value, word in (("kasa_config", {"beta": 1e-4}, "KaSA"), ("use_bdlora", {"nblocks": 2}, "BD-LoRA")):
        (tmp_path / "good" / "adapter_config.json").write_text(json.dumps(json.loads(plain) | {key: value}))
        with pytest.raises(SaddlesError, match=f"uses {word}, whose change is not a product"):
            lora_compress(tmp_path / "good", tmp_path / "out", max_rank=2)
    (tmp_path / "good" / "adapter_config.json").write_text(plain)
    with pytest.raises(SaddlesError, match="two or more"):
        lora_merge([tmp_path / "good"], None, tmp_path / "out")
    with pytest.raises(SaddlesError, match="one for each adapter"):
        lora_merge([tmp_path / "good"] * 2, [1.0], tmp_path / "out")
    for name, base, modules in (("a", "one", ["q_proj"]), ("b", "two", ["down_proj"]), ("c", "one", ["down_proj"])):
        _trained_adapter(tmp_path / name, target_modules=modules)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    with pytest.raises(SaddlesError, match=r"is for one and .* for two, and they share no module"):
        lora_merge([tmp_path / "a", tmp_path / "b"], None, tmp_path / "out")
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/models/one/"  # a copy of the same
    (tmp_path / "b" / "adapter_config.json").write_text(json.dumps(config))
    lora_merge([tmp_path / "a", tmp_path / "b"], None, tmp_path / "copy")
    lora_merge([tmp_path / "a", tmp_path / "c"], None, tmp_path / "both")
    cut = {key: value[:, :-1].clone() if "lora_A" in key else value
           for key, value in load_file(tmp_path / "c" / "adapter_model.safetensors").items()}  # fmt: skip
    save_file(cut, tmp_path / "c" / "adapter_model.safetensors")
    with pytest.raises(SaddlesError, match="Merge adapters of one base"):
        lora_merge([tmp_path / "a", tmp_path / "both", tmp_path / "c"], None, tmp_path / "out")
    with pytest.raises(SaddlesError, match="at least 1"):
        lora_grow(tmp_path / "good", 0, tmp_path / "out")
    config = json.loads((tmp_path / "good" / "adapter_config.json").read_text())
    (tmp_path / "good" / "adapter_config.json").write_text(json.dumps(config | {"r": 5}))
    with pytest.raises(SaddlesError, match="its factors have 6"):
        lora_compress(tmp_path / "good", tmp_path / "out", max_rank=2)
    save_file({"m.lora_down.weight": torch.full((1, 2), np.nan)}, tmp_path / "nan.safetensors")
    with pytest.raises(SaddlesError, match="not finite"):
        lora_compress(tmp_path / "nan.safetensors", tmp_path / "x.safetensors", max_rank=1)
    save_file({"m.lora_down.weight": torch.ones(1, 2, 3, 3)}, tmp_path / "conv.safetensors")
    with pytest.raises(SaddlesError, match="Convolutions"):
        lora_compress(tmp_path / "conv.safetensors", tmp_path / "x.safetensors", max_rank=1)
    with pytest.raises(SaddlesError, match="holds no adapter_model"):
        lora_compress(tmp_path, tmp_path / "out", max_rank=1)
    assert not (tmp_path / "out").exists()


def _lost(model: Any, whole: Any, causal: bool) -> float:
    """Cross-entropy above that of the whole adapter, or the divergence from it."""
    with torch.no_grad():
        found, wanted = (one(TEXT).logits.log_softmax(-1) for one in (model, whole))
        if causal:
            losses = [-one[:, :-1].gather(-1, TEXT[:, 1:, None]).mean() for one in (found, wanted)]
            return float(losses[0] - losses[1])
        return float((wanted.exp() * (wanted - found)).sum(-1).mean())


@pytest.mark.filterwarnings("ignore:Adapter 'default'")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("causal", [True, False])
def test_compress_by_loss(family, causal, tmp_path):
    """What is lost is measured by PEFT's own forward pass."""
    from peft import PeftModel

    settings: dict[str, Any] = {"task_type": "CAUSAL_LM"} if causal else {}
    if family == "gpt2":  # Conv1D, and biases beside the factors
        settings |= {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "lora_bias": True}
    whole = _trained_adapter(tmp_path / "whole", family=family, **settings)
    base = tiny(family)

    def loss(folder) -> float:
        return _lost(PeftModel.from_pretrained(copy.deepcopy(base), str(folder)).eval(), whole, causal)

    lora_compress(tmp_path / "whole", tmp_path / "thin", max_rank=1)
    allowed = 0.2 * loss(tmp_path / "thin") if not causal else 0.02
    made = lora_compress(tmp_path / "whole", tmp_path / "small", loss=allowed, evaluate=TEXT, base=base)
    assert loss(tmp_path / "small") <= allowed + 1e-5
    assert made.parameters[1] < made.parameters[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": 0.1}, "needs `evaluate`"),
        ({"loss": -1.0, "evaluate": TEXT}, "must be positive"),
        ({"loss": 0.1, "evaluate": TEXT, "max_rank": 2}, "decides the ranks by itself"),
        ({"evaluate": TEXT}, "are for `loss`"),
        ({"loss": 0.1, "evaluate": TEXT, "base": "nowhere"}, "which is not here"),
        ({"loss": 0.1, "evaluate": TEXT, "base": tiny("gpt2")}, "Is it the adapter's base"),
    ],
)
def test_compress_by_loss_says_what_is_missing(settings, words, tmp_path):
    _trained_adapter(tmp_path / "whole")
    with pytest.raises(SaddlesError, match=words):
        lora_compress(tmp_path / "whole", tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Adapter 'default'")  # PEFT takes its own biases for damaged factors
def test_biases_keep_their_size(tmp_path):
    """PEFT scales lora_B's bias like the factors."""
    from peft import PeftModel

    model = _trained_adapter(
        tmp_path / "whole", family="gpt2", target_modules=["c_attn"], fan_in_fan_out=True, lora_bias=True
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B.default.bias"):
                parameter += 0.1
    model.save_pretrained(str(tmp_path / "biased"))
    lora_compress(tmp_path / "biased", tmp_path / "same", energy=1.0)
    again = PeftModel.from_pretrained(copy.deepcopy(tiny("gpt2")), str(tmp_path / "same")).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(TOKENS).logits, model(TOKENS).logits, atol=1e-6, rtol=1e-5)
    # Merged, they add up like the factors; one that an adapter lacks is 0.
    lora_merge([tmp_path / "biased", tmp_path / "whole"], [0.5, 2.0], tmp_path / "sum")
    lora_merge([tmp_path / "biased", tmp_path / "same"], [2.0, -1.0], tmp_path / "itself")
    files = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("same", "whole", "sum")]
    biases = [name for name in files[0] if name.endswith("lora_B.bias")]
    assert biases
    for name in biases:  # PEFT scales `whole` by 9/6; what is written has scale 1
        torch.testing.assert_close(files[2][name], 0.5 * files[0][name] + 2.0 * 1.5 * files[1][name])
    again = PeftModel.from_pretrained(copy.deepcopy(tiny("gpt2")), str(tmp_path / "itself")).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-5)


def test_commands(tmp_path):
    from typer.testing import CliRunner

    from saddles.cli import app

    _trained_adapter(tmp_path / "one")
    _trained_adapter(tmp_path / "two", seed=1)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    for words, expected in (
        (["compress", one, "--max-rank", "2", "--out", str(tmp_path / "a")], "parameters became"),
        (["merge", one, two, "--weights", "0.5,0.5", "--out", str(tmp_path / "b")], "overlap"),
        (["grow", one, "--rank", "8", "--out", str(tmp_path / "c")], "relative error of the whole change 0.00e+00"),
    ):
        result = CliRunner().invoke(app, ["lora", *words])
        assert result.exit_code == 0, result.output
        assert expected in result.output
    assert {"a", "b", "c"} <= {place.name for place in tmp_path.iterdir()}
