"""LoRA plans and adapters: planted ranks, PEFT itself, exact errors, and what LoRA cannot carry."""

import copy
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from planted import planted, tiny, trained
from safetensors.torch import load_file, save_file

from saddles.errors import SaddlesError
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.budget import allocate
from saddles.probe.lora.plan import LoraPlan
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.ranks import one_threshold, rank_of, squares_above
from saddles.probe.weights.weight_change import WeightChange, factors, misfit, singular_values

FAMILIES = ("gpt2", "llama", "bert")
TOKENS = torch.arange(10)[None]


def _logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def _with_adapter(base, folder):
    from peft import PeftModel

    return PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()


def _change(shape=(60, 90), kind=torch.float32, seed=0) -> tuple[WeightChange, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(shape, generator=draw).to(kind)
    now = (start.float() + 1e-3 * torch.randn(shape, generator=draw)).to(kind)
    return WeightChange("w", shape, lambda rows: now[rows], lambda rows: start[rows]), now.double() - start.double()


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (50, 50), (1, 7), (2000, 3)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_and_factors_agree_with_a_dense_decomposition(shape, kind, monkeypatch):
    monkeypatch.setattr("saddles.probe.weights.weight_change.BLOCK", 700)
    change, dense = _change(shape, kind)
    exact = torch.linalg.svdvals(dense).numpy()
    np.testing.assert_allclose(singular_values(change), exact, rtol=1e-9, atol=1e-9 * exact[0])
    for rank in {1, min(shape) // 2 or 1, min(shape)}:
        left, right = factors(change, rank)
        best = float(np.linalg.norm(exact[rank:]))
        assert misfit(change, left, right) == pytest.approx(best, rel=1e-9, abs=1e-12 * exact[0])
        torch.testing.assert_close(left.T @ left, right @ right.T, atol=1e-12, rtol=1e-9)


def test_few_vectors_of_a_large_matrix_are_as_good(monkeypatch):
    """Lanczos, which is taken where few vectors are wanted, captures what the full decomposition does."""
    change, dense = _change((400, 500))
    exact = torch.linalg.svdvals(dense).numpy()
    left, right = factors(change, 10)
    assert misfit(change, left, right) == pytest.approx(float(np.linalg.norm(exact[10:])), rel=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_planted_rank_is_found_in_every_module_and_loads_in_peft(family, tmp_path):
    base = tiny(family)
    tuned = planted(base, rank=3)
    plan = lora_plan(base, tuned, energy=0.999)
    assert {row.rank for row in plan.modules} == {3}
    assert len(plan.modules) == {"gpt2": 8, "llama": 15, "bert": 13}[family]
    assert any(row.conv1d for row in plan.modules) == (family == "gpt2")
    assert plan.left_out == ()
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    apart = (_logits(_with_adapter(base, made.folder)) - _logits(tuned)).abs().max()
    moved = (_logits(base) - _logits(tuned)).abs().max()
    assert apart < 1e-6 < 1e-2 < moved
    table = made.table()
    np.testing.assert_allclose(table["error"], table["predicted_error"], atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_rank_equals_the_tuned_model_to_rounding(family, tmp_path):
    base = tiny(family).double()
    tuned = trained(base)
    with torch.no_grad():  # what LoRA cannot carry stays as it was
        plan = lora_plan(base, tuned, energy=1.0)
        start = dict(base.named_parameters())
        for row in plan.left_out:
            tuned.get_parameter(row.name).copy_(start[row.name])
    plan = lora_plan(base, tuned, energy=1.0)
    assert plan.left_out == ()
    assert plan.energy == pytest.approx(1.0, abs=1e-12)
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    torch.testing.assert_close(_logits(_with_adapter(base, made.folder)), _logits(tuned), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_truncated_adapter_is_off_by_what_the_plan_predicts(family, tmp_path):
    """Weights: the plan's error. Each module: at most next·‖x‖. Logits: the first-order effect of those errors."""
    base = tiny(family).double()
    tuned = trained(base, size=1e-4)  # small, so that the second order is far below the first
    plan = lora_plan(base, tuned, energy_per_module=0.9)
    assert 1 < max(row.rank for row in plan.modules) < 32
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    merged = _with_adapter(base, made.folder).merge_and_unload()
    for row in plan.carried:
        weight, wanted = (m.get_submodule(row.module).weight.detach() for m in (merged, tuned))
        apart = weight - wanted
        assert float(apart.norm()) == pytest.approx(row.error, rel=1e-6)
        x = torch.randn(row.inputs, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        wrong = (apart.T if row.conv1d else apart) @ x
        assert (wrong.norm(dim=0) <= row.next * x.norm(dim=0) * (1 + 1e-6)).all()
    squares = [
        float((p - q).detach().norm()) ** 2 for p, q in zip(merged.parameters(), tuned.parameters(), strict=True)
    ]
    assert np.sqrt(sum(squares)) == pytest.approx(plan.error, rel=1e-6)
    start, end = (dict(model.named_parameters()) for model in (tuned, merged))

    def along(t: float) -> torch.Tensor:
        """Logits a share of the way from the tuned model to base + adapter."""
        weights = {name: (1 - t) * p.detach() + t * end[name].detach() for name, p in start.items()}
        with torch.no_grad():
            return torch.func.functional_call(tuned, weights, (TOKENS,)).logits

    predicted = (along(0.3) - along(-0.3)) / 0.6  # Llama normalises in float32: a smaller step drowns in it
    measured = _logits(merged) - _logits(tuned)
    assert float((measured - predicted).norm()) < 0.02 * float(measured.norm())


def test_energy_decides_by_share_and_not_by_size():
    values = np.array([3.0, 2.0, 1.0, 1.0, 0.0])
    for size in (1.0, 1e-9):
        squares = squares_above(size * values)
        assert [rank_of(squares, share) for share in (0.5, 0.6, 0.61, 0.9, 13 / 15, 1.0)] == [1, 1, 2, 3, 2, 4]
    assert rank_of(np.zeros(4), 0.9) == 0


def test_one_threshold_takes_the_fewest_ranks_over_all_modules():
    """Against every choice of ranks: none with fewer ranks reaches the share."""
    draw = np.random.default_rng(0)
    for share in (0.3, 0.8, 0.95, 1.0):
        squares = [np.sort(draw.exponential(size=4) ** 2)[::-1] for _ in range(3)]
        ranks = one_threshold(squares, share)
        total = sum(float(one.sum()) for one in squares)

        def reached(choice, squares=squares, total=total):
            return sum(float(one[:k].sum()) for one, k in zip(squares, choice, strict=True)) / total

        assert reached(ranks) >= share * (1 - 1e-12)
        better = [c for c in itertools.product(range(5), repeat=3) if sum(c) < sum(ranks) and reached(c) >= share]
        assert better == []
    equal = [np.ones(3), np.ones(2)]
    assert sum(one_threshold(equal, 0.6)) == 3


def test_budget_allocation_is_the_best_of_all():
    """Against every allocation; taking the best gain for each parameter alone is not always the best."""
    draw, greedy_failed = np.random.default_rng(0), 0
    for _ in range(150):
        gains = [np.sort(draw.exponential(size=draw.integers(1, 5)))[::-1] for _ in range(draw.integers(1, 5))]
        costs = [int(c) for c in draw.integers(2, 9, size=len(gains))]
        budget = int(draw.integers(0, 40))
        best = max(
            sum(float(g[:k].sum()) for g, k in zip(gains, ranks, strict=True))
            for ranks in itertools.product(*(range(len(g) + 1) for g in gains))
            if np.dot(ranks, costs) <= budget
        )
        found = allocate(gains, costs, budget)
        assert np.dot(found.ranks, costs) <= budget
        assert sum(float(g[:k].sum()) for g, k in zip(gains, found.ranks, strict=True)) == pytest.approx(
            best, abs=1e-12
        )
        assert found.gap == 0.0
        greedy_failed += _greedy(gains, costs, budget) < best - 1e-12
    assert greedy_failed > 0


def _greedy(gains, costs, budget) -> float:
    total = 0.0
    for _, value, cost in sorted(((v / c, v, c) for g, c in zip(gains, costs, strict=True) for v in g), reverse=True):
        if cost <= budget:
            total, budget = total + value, budget - cost
    return total


def test_a_search_that_is_cut_short_states_its_gap(monkeypatch):
    monkeypatch.setattr("saddles.probe.lora.budget.NODES", 2)
    draw = np.random.default_rng(1)
    gains = [np.sort(draw.exponential(size=6))[::-1] for _ in range(6)]
    cut = allocate(gains, [5, 6, 7, 8, 9, 11], 60)
    monkeypatch.undo()
    best = allocate(gains, [5, 6, 7, 8, 9, 11], 60)
    energy = [sum(float(g[:k].sum()) for g, k in zip(gains, one.ranks, strict=True)) for one in (cut, best)]
    assert cut.gap > 0
    assert energy[1] - energy[0] <= cut.gap * sum(float(g.sum()) for g in gains) + 1e-12


def test_budget_of_a_model_is_kept_and_used():
    base = tiny("llama")
    plan = lora_plan(base, trained(base), budget=800)
    assert 750 < plan.parameters <= 800
    assert plan.gap == 0.0
    assert any(row.rank == 0 for row in plan.modules)
    assert plan.energy < lora_plan(base, trained(base), budget=4000).energy < 1


def test_what_lora_cannot_carry_is_listed_and_counted(tmp_path):
    base = tiny("llama")
    tuned = trained(base)
    bigger = copy.deepcopy(tuned)
    bigger.resize_token_embeddings(53, mean_resizing=False)
    plan = lora_plan(base, bigger, energy=0.99)
    reasons = {row.name: row.reason for row in plan.left_out}
    assert "became (53, 32)" in reasons["model.embed_tokens.weight"]
    assert "became (53, 32)" in reasons["lm_head.weight"]
    assert reasons["model.norm.weight"] == "a normalisation"
    start, end = ({n: p.detach() for n, p in model.named_parameters()} for model in (base, bigger))
    by_name = {row.name: row.norm for row in plan.left_out}
    padded = torch.cat([start["lm_head.weight"], torch.zeros(3, 32)])
    assert by_name["lm_head.weight"] == pytest.approx(float((end["lm_head.weight"] - padded).norm()), rel=1e-6)
    total = sum(
        float((end[n][: len(p)] - p).norm()) ** 2 + float(end[n][len(p) :].norm()) ** 2 for n, p in start.items()
    )
    assert plan.norm**2 == pytest.approx(total, rel=1e-5)
    lost = sum(value**2 for value in by_name.values())
    assert plan.share_left_out == pytest.approx(lost / total, rel=1e-5)


def test_biases_of_some_modules_are_left_out_and_the_adapter_merges(tmp_path):
    """PEFT gives every adapted module a bias or none, and cannot merge one into a module that has none (Qwen2)."""
    settings = copy.deepcopy(tiny("llama").config)
    settings.attention_bias = True
    torch.manual_seed(0)
    base = type(tiny("llama"))(settings).eval()
    tuned = planted(base, rank=2)
    plan = lora_plan(base, tuned, energy=0.999)
    assert not plan.lora_bias
    assert sorted({row.name.rpartition(".")[2] for row in plan.left_out}) == ["bias"]
    assert len(plan.left_out) == 8
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    merged = _with_adapter(base, made.folder).merge_and_unload()
    for name, parameter in merged.named_parameters():
        if not name.endswith("bias"):
            torch.testing.assert_close(parameter, tuned.get_parameter(name), atol=1e-6, rtol=0)


def test_plan_as_json_and_as_lora_config(tmp_path):
    from peft import LoraConfig, get_peft_model

    base = tiny("gpt2")
    tuned = trained(base)
    plan = lora_plan(base, tuned, energy=0.8)
    assert LoraPlan.from_json(plan.to_json()) == plan
    facts = json.loads(plan.to_json())
    assert facts["total"]["parameters"] == plan.parameters
    assert len(plan.settings()["rank_pattern"]) > 1
    config = plan.to_lora_config(lora_dropout=0.1)
    assert isinstance(config, LoraConfig)
    assert config.lora_dropout == 0.1
    model = get_peft_model(copy.deepcopy(base), config)
    inner: Any = model.base_model.model
    for row in plan.carried:
        layer: Any = inner.get_submodule(row.module)
        assert layer.r["default"] == row.rank
        assert layer.scaling["default"] == 1.0
        assert layer.fan_in_fan_out
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == plan.parameters
    made = lora_extract(base, tuned, plan, tmp_path / "adapter")
    written: Any = LoraConfig.from_pretrained(str(made.folder))
    for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias", "task_type"):
        assert getattr(written, key) == getattr(plan.to_lora_config(), key), key
    assert set(written.target_modules or ()) == set(plan.to_lora_config().target_modules or ())


def test_patterns_match_one_module_only():
    base = tiny("llama")
    plan = lora_plan(base, trained(base), energy=0.7)
    assert len(plan.settings()["rank_pattern"]) > 1
    for key, rank in plan.settings()["rank_pattern"].items():
        matched = [row for row in plan.modules if re.match(rf"(.*\.)?({key})$", row.module)]
        assert [row.rank for row in matched] == [rank]


def test_folders_files_and_live_models_give_one_plan(tmp_path):
    base = tiny("gpt2")
    tuned = planted(base, rank=2)
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned", max_shard_size="20KB")
    assert (tmp_path / "tuned" / "model.safetensors.index.json").is_file()
    body = {
        name.removeprefix("transformer."): t for name, t in load_file(tmp_path / "base" / "model.safetensors").items()
    }
    (tmp_path / "body").mkdir()
    (tmp_path / "body" / "config.json").write_text((tmp_path / "base" / "config.json").read_text())
    save_file(body, tmp_path / "body" / "model.safetensors")
    (tmp_path / "bare").mkdir()
    whole = load_file(tmp_path / "base" / "model.safetensors")
    save_file(whole, tmp_path / "bare" / "weights.safetensors")
    live = lora_plan(base, tuned, energy=0.99)
    for early in (tmp_path / "base", tmp_path / "body", tmp_path / "bare" / "weights.safetensors"):
        plan = lora_plan(early, tmp_path / "tuned", energy=0.99)
        assert plan.modules == live.modules
    torch.save(tuned.state_dict(), tmp_path / "bare" / "tuned.pt")
    bare = lora_plan(tmp_path / "bare" / "weights.safetensors", tmp_path / "bare" / "tuned.pt", energy=0.99)
    known = {row.module: row for row in live.modules}
    assert all(known[row.module] == row for row in bare.modules if row.module in known)


def test_bad_input_gets_one_sentence_and_nothing_is_written(tmp_path):
    base = tiny("llama")
    tuned = planted(base, rank=1)
    with pytest.raises(SaddlesError, match=r"No linear module of .* differs"):
        lora_plan(base, base)
    narrow = copy.deepcopy(base.config)
    narrow.intermediate_size = 40
    other = type(base)(narrow)
    with pytest.raises(SaddlesError, match="same shapes"):
        lora_plan(base, other)
    with pytest.raises(SaddlesError, match="share no linear module"):
        lora_plan(base, tiny("bert"))
    with pytest.raises(SaddlesError, match="above 0 and at most 1"):
        lora_plan(base, tuned, energy=90)
    with pytest.raises(SaddlesError, match="either `energy` or `budget`"):
        lora_plan(base, tuned, energy=0.9, budget=100)
    with pytest.raises(SaddlesError, match="at least 48"):
        lora_plan(base, tuned, budget=3)
    with pytest.raises(SaddlesError, match="plan cannot be read"):
        LoraPlan.from_json("{}")
    broken = copy.deepcopy(tuned)
    with torch.no_grad():
        broken.get_parameter("model.layers.0.mlp.up_proj.weight")[0, 0] = float("nan")
    with pytest.raises(SaddlesError, match="not finite"):
        lora_plan(base, broken)
    plan = lora_plan(base, tuned)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")
    with pytest.raises(SaddlesError, match="already exists"):
        lora_extract(base, tuned, plan, tmp_path / "taken")
    with pytest.raises(SaddlesError, match="that the plan was made from"):
        lora_extract(tiny("gpt2"), planted(tiny("gpt2"), 1), plan, tmp_path / "new")
    with pytest.raises(SaddlesError, match="float32"):
        lora_extract(base, tuned, plan, tmp_path / "new", dtype="int4")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"]
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["thesis.tex"]
