"""Changes weighted by what enters the modules, and leading directions alone: against dense closed forms."""

import copy
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from planted import planted, tiny, trained

from saddles.errors import SaddlesError
from saddles.probe.lora import inputs as inputs_module
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.inputs import Inputs
from saddles.probe.lora.leading import leading_split
from saddles.probe.lora.plan import LoraPlan
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.truncation import weighted_factors, weighted_values

TEXT = torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(5))
SHAPES = [(7, 11), (11, 7), (9, 9), (40, 3)]


def _case(shape: tuple[int, int], rank: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """ΔW, and a second moment of few or of many inputs."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rank or 50, shape[1])) * np.linspace(0.1, 3, shape[1])
    return draw.normal(size=shape), x.T @ x / len(x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("sensitive", [False, True])
def test_weighted_truncation_is_the_dense_closed_form(shape, singular, sensitive):
    """The truncated decomposition of D^½ ΔW C^½; where C can be inverted also its product with D^-½ and C^-½."""
    change, moment = _case(shape, 2 if singular else None)
    root = np.real(scipy.linalg.sqrtm(moment + 0j))
    weights = np.geomspace(0.01, 5, shape[0]) if sensitive else np.ones(shape[0])
    half = np.sqrt(weights)[:, None]
    left, exact, right = np.linalg.svd(half * change @ root, full_matrices=False)
    given = torch.from_numpy(change), torch.from_numpy(moment)
    rows = torch.from_numpy(weights) if sensitive else None
    values, kept = weighted_values(*given, rows)
    np.testing.assert_allclose(values, exact, atol=1e-6 * exact[0])
    for rank in range(1, 3 if singular else min(shape)):
        outer, inner = (t.numpy() for t in weighted_factors(*given, rank, rows))
        product = outer @ inner
        assert outer.shape == (shape[0], rank)
        missed = np.linalg.norm(half * (change - product) @ root)
        assert missed == pytest.approx(np.linalg.norm(exact[rank:]), rel=1e-7, abs=1e-6 * exact[0])
        assert np.linalg.norm(change - product) ** 2 == pytest.approx(np.sum(change**2) - kept[:rank].sum(), rel=1e-9)
        np.testing.assert_allclose(np.linalg.norm(outer, axis=0), np.linalg.norm(inner, axis=1), rtol=1e-9)
        if not singular:
            best = (left[:, :rank] * exact[:rank]) @ right[:rank] @ np.linalg.inv(root) / half
            np.testing.assert_allclose(product, best, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_inputs_give_the_plain_truncation(shape):
    change, _ = _case(shape)
    left, exact, right = np.linalg.svd(change, full_matrices=False)
    moment = 2.5 * torch.eye(shape[1], dtype=torch.float64)
    values, kept = weighted_values(torch.from_numpy(change), moment)
    np.testing.assert_allclose(values, 2.5**0.5 * exact, rtol=1e-10)
    np.testing.assert_allclose(kept, exact**2, rtol=1e-9)
    outer, inner = weighted_factors(torch.from_numpy(change), moment, 2)
    np.testing.assert_allclose((outer @ inner).numpy(), (left[:, :2] * exact[:2]) @ right[:2], atol=1e-10)


def _seen(model: Any, module: str) -> torch.Tensor:
    """Everything that enters a module, from a forward pass of the whole text at once."""
    parts = []
    with model.get_submodule(module).register_forward_pre_hook(lambda _, args: parts.append(args[0])), torch.no_grad():
        model(TEXT)
    return parts[0].flatten(0, 1).double()


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_moments_are_those_of_the_inputs_in_any_memory(family, monkeypatch):
    model = tiny(family)
    modules = [row.module for row in lora_plan(model, planted(model, 1)).modules]
    runs = []

    def run(model: Any) -> None:
        runs.append(1)
        for block in TEXT:
            model(block[None])

    whole = dict(Inputs(model, run, run, "text").moments(modules))
    assert len(runs) == 2  # one glance, one pass
    assert list(whole) == sorted(modules, key=list(whole).index)
    assert set(whole) == set(modules)
    for module in modules:
        x = _seen(model, module)
        torch.testing.assert_close(whole[module], x.T @ x / len(x), rtol=1e-4, atol=1e-6)
    if family == "llama":  # queries, keys and values share one
        attention = "model.layers.0.self_attn"
        assert whole[f"{attention}.q_proj"] is whole[f"{attention}.v_proj"]
        assert whole[f"{attention}.q_proj"] is not whole[f"{attention}.o_proj"]
    monkeypatch.setattr(inputs_module, "MEMORY", 2 * 8 * 32**2)
    monkeypatch.setattr(inputs_module, "ROWS", 5)
    few = dict(Inputs(model, run, run, "text").moments(modules))
    assert len(runs) > 5
    for module in modules:
        torch.testing.assert_close(few[module], whole[module], rtol=1e-9, atol=1e-12)


def _each(model: Any) -> None:
    for block in TEXT:
        model(block[None])


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_sensitivities_are_the_diagonal_of_the_fisher_information(family):
    """Against Σ_y p(y) (∂ log p(y)/∂output)², label by label, through a perturbation of the module's output."""
    model = tiny(family)
    for weight in model.parameters():
        weight.data *= 3  # so that predictions are not all alike
    module = [row.module for row in lora_plan(model, planted(model, 1)).modules][3]
    block = TEXT[:1, :3]

    def logits(delta: torch.Tensor) -> torch.Tensor:
        with model.get_submodule(module).register_forward_hook(lambda _m, _a, output: output + delta):
            return model(block).logits.log_softmax(-1)

    width = model.get_submodule(module)(torch.zeros(1, 3, _seen(model, module).shape[1])).shape[-1]
    zero = torch.zeros(1, 3, width)
    slopes: Any = torch.autograd.functional.jacobian(
        lambda delta: logits(delta)[0], zero
    )  # (token, label, 1, token, width)
    chance = logits(zero)[0].exp().detach()
    exact = torch.einsum("tl,tlrk->k", chance, slopes[:, :, 0].pow(2)) / 3

    def often(model: Any) -> None:
        for _ in range(50):
            model(block.repeat(16, 1))

    found = Inputs(model, often, often, "text").sensitivities([module])[module]
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    # Of 800 drawings of the labels; cross terms between tokens have mean 0.
    assert float((found - exact).norm() / exact.norm()) < 0.15
    assert float(found.mean()) == pytest.approx(float(exact.mean()), rel=0.1)

    def blind(model: Any) -> None:
        with torch.no_grad():
            model(block)

    assert Inputs(model, blind, blind, "text").sensitivities([module]) == {}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_plan_and_adapter_have_the_stated_weighted_error(family, tmp_path):
    """The adapter, loaded by PEFT, misses the module's outputs on the text by what the plan says."""
    from peft import PeftModel

    base = tiny(family)
    tuned = trained(base)
    plan = lora_plan(base, tuned, energy=0.7, data=TEXT)
    assert plan.data == "tokens (64 tokens)"
    assert 0.7 <= plan.energy_above < 0.8
    assert LoraPlan.from_json(plan.to_json()) == plan
    made = lora_extract(base, tuned, plan, tmp_path / "adapter", data=TEXT)
    np.testing.assert_allclose(made.table()["error"], made.table()["predicted_error"], rtol=1e-5)
    adapted: Any = PeftModel.from_pretrained(copy.deepcopy(base), str(made.folder))
    merged = adapted.merge_and_unload()
    sensitive = Inputs(tuned, _each, _each, "text").sensitivities([row.module for row in plan.modules])
    for row in plan.modules:
        x = _seen(tuned, row.module)
        apart, moved = (
            (m.get_submodule(row.module).weight - tuned.get_submodule(row.module).weight).detach().double()
            for m in (merged, base)
        )
        weights = sensitive[row.module].sqrt()
        wrong, all_ = (weights * (x @ (d if row.conv1d else d.T)) for d in (apart, moved))
        scale = len(x) ** 0.5
        assert float(all_.norm()) / scale == pytest.approx(row.above, rel=1e-3)
        assert float(wrong.norm()) / scale == pytest.approx(row.missed, rel=1e-3, abs=1e-5 * row.above)
        assert float(apart.norm()) == pytest.approx(row.error, rel=1e-4, abs=1e-6)
        assert float(torch.linalg.matrix_norm(apart, 2)) <= row.next * (1 + 1e-4) + 1e-6
    plain = lora_plan(base, tuned, budget=plan.parameters)
    weighted = lora_plan(base, tuned, budget=plan.parameters, data=TEXT)
    assert weighted.error > plain.error  # of the weights; of the outputs it is the other way round
    units = {module: float(one.mean()) for module, one in sensitive.items()}
    lost = [
        sum(row.missed**2 + (0 if row.rank else units[row.module] * row.bias**2) for row in one.modules)
        for one in (weighted, plan)
    ]
    assert lost[0] <= lost[1] * (1 + 1e-9)


def test_weighted_plan_is_measured_with_its_own_factors():
    base = tiny("llama")
    tuned = trained(base)
    plain, weighted = (
        lora_plan(base, tuned, max_rank=2, save_modules=True, evaluate=TEXT, data=data) for data in (None, TEXT)
    )
    assert plain.parameters == weighted.parameters
    assert plain.measured[1] == weighted.measured[1]
    assert plain.measured[-1].value != weighted.measured[-1].value


def test_data_that_do_not_reach_a_module_and_bad_arguments(tmp_path):
    base = tiny("llama")
    tuned = planted(base, 2)

    def part(model: Any) -> None:
        model.get_submodule("model.layers.0.mlp.up_proj")(torch.ones(3, 32))

    plan = lora_plan(base, tuned, energy=0.9, data=part)
    assert [row.module for row in plan.carried] == ["model.layers.0.mlp.up_proj"]
    assert plan.carried[0].rank == 1  # one input, whatever the rank of ΔW
    with pytest.raises(SaddlesError, match="give that as `data`"):
        lora_extract(base, tuned, plan, tmp_path / "new")
    with pytest.raises(SaddlesError, match="leave it out"):
        lora_extract(base, tuned, lora_plan(base, tuned), tmp_path / "new", data=TEXT)
    with pytest.raises(SaddlesError, match="not finite"):
        lora_plan(base, tuned, data=lambda m: m.get_submodule("lm_head")(torch.full((1, 32), float("inf"))))
    with pytest.raises(SaddlesError, match="cannot be combined"):
        lora_plan(base, tuned, data=TEXT, leading=4)
    with pytest.raises(SaddlesError, match="`device` must be one of this machine's"):
        lora_plan(base, tuned, device="cuda:99")
    with pytest.raises(SaddlesError, match="whole spectra"):
        lora_plan(base, tuned, energy=1, leading=4)


@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_leading_directions_have_an_exact_residual(shape):
    draw = np.random.default_rng(0)
    change = draw.normal(size=shape) * np.exp(-np.arange(shape[1]) / 8)
    exact = np.linalg.svd(change, compute_uv=False)
    split = leading_split(torch.from_numpy(change), 6)
    np.testing.assert_allclose(split.values, exact[:6], rtol=1e-6)
    for rank in (1, 4, 6):
        left, right = split.cut(rank)
        apart = np.sum((change - (left @ right).numpy()) ** 2)
        assert apart == pytest.approx(split.rest + np.sum(split.values[rank:] ** 2), rel=1e-9)


def test_a_plan_of_leading_values_is_that_of_whole_spectra(tmp_path):
    base = tiny("llama")
    tuned = planted(base, 3)
    whole = lora_plan(base, tuned, energy=0.99)
    few = lora_plan(base, tuned, energy=0.99, leading=5)
    assert few.leading == 5
    assert [row.rank for row in few.modules] == [row.rank for row in whole.modules]
    for one, other in zip(few.modules, whole.modules, strict=True):
        assert one.norm == pytest.approx(other.norm, rel=1e-9)
        assert one.error == pytest.approx(other.error, rel=1e-4, abs=1e-7)
        assert one.floor == other.floor
    made = lora_extract(base, tuned, few, tmp_path / "adapter")
    np.testing.assert_allclose(made.table()["error"], made.table()["predicted_error"], atol=1e-7)
    much = trained(base)
    with pytest.raises(SaddlesError, match="Raise `leading`"):
        lora_plan(base, much, energy=0.9, leading=2)
    capped = lora_plan(base, much, max_rank=2, leading=2)
    assert {row.rank for row in capped.modules} == {2}
    full = lora_plan(base, much, max_rank=2)
    assert capped.energy == pytest.approx(full.energy, rel=1e-3)
    assert capped.energy_above == pytest.approx(full.energy_above, rel=1e-3)


def test_commands_take_the_data_twice(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast
    from typer.testing import CliRunner

    from saddles.cli import app

    base = tiny("llama")
    base.save_pretrained(tmp_path / "base")
    trained(base).save_pretrained(tmp_path / "tuned")
    words = Tokenizer(WordLevel({f"w{k}": k for k in range(50)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tuned")
    (tmp_path / "text").write_text(" ".join(f"w{int(k)}" for k in TEXT[0]))
    places = [str(tmp_path / "base"), str(tmp_path / "tuned"), "--data", str(tmp_path / "text")]
    planned = CliRunner().invoke(app, ["lora", "plan", *places, "--out", str(tmp_path / "plan.json")])
    assert planned.exit_code == 0, planned.output
    assert "weighted by" in planned.output
    rest = ["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "adapter")]
    made = CliRunner().invoke(app, ["lora", "extract", *places, *rest])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
@pytest.mark.parametrize("given", [{}, {"leading": 20}, {"data": TEXT}], ids=["plain", "leading", "data"])
def test_a_gpu_plans_and_cuts_as_the_cpu_does(given, tmp_path):
    from safetensors.torch import load_file

    base = tiny("gpt2")
    tuned = trained(base)
    plans = [lora_plan(base, tuned, energy=0.8, device=device, **given) for device in ("cpu", "cuda")]
    data: Any = {"data": TEXT} if "data" in given else {}
    made = []
    for device, plan in zip(("cpu", "cuda"), plans, strict=True):
        out = lora_extract(base, tuned, plan, tmp_path / device, device=device, **data)
        made.append(load_file(out.folder / "adapter_model.safetensors"))
    # Inputs and gradients are float32 of another machine's order; the decompositions themselves are float64.
    close = 1e-3 if data else 1e-7
    for one, other in zip(*(plan.modules for plan in plans), strict=True):
        assert one.rank == other.rank
        for name in ("above", "missed", "error", "norm"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=close, abs=close * one.above)
    for name in made[0]:
        if "lora_A" in name:
            pair = name.replace("lora_A", "lora_B")
            products = [(one[pair].double() @ one[name].double()) for one in made]
            assert float((products[0] - products[1]).norm() / products[0].norm()) < 10 * close + 1e-5
