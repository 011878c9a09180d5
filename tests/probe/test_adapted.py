"""Training with PEFT, live: ranks used against ranks given, by module and by head, against dense weights."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import xarray as xr

import saddles.probe
from saddles.errors import SaddlesError
from saddles.probe.weights.adapted import find_adapted

peft = pytest.importorskip("peft")

KINDS = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
}


def group(tree: xr.DataTree, name: str) -> xr.Dataset:
    return tree[name].to_dataset()


def small(family: str = "llama", seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    if family == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
        return transformers.GPT2LMHeadModel(config)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=50,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def adapt(model: torch.nn.Module, rank: int = 6, targets=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj"), **more):
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=[*targets], **more))


def train(model: torch.nn.Module, run, steps: int, rate: float = 1e-2) -> None:
    optimiser = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate)
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(0, 50, (4, 16), generator=draw)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        run.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_live_ranks_are_those_of_the_merged_weights(kind, family):
    base = small(family)
    targets = {"targets": ("c_attn", "c_proj"), "fan_in_fan_out": True} if family == "gpt2" else {}
    model = adapt(copy.deepcopy(base), **targets, **KINDS[kind])
    with saddles.probe.record(model, every=3) as run:
        train(model, run, 6)
    merged = copy.deepcopy(model).double().merge_and_unload()
    dense = saddles.probe.spectra(merged, base.double())
    heads, modules = group(run.result, "heads"), group(run.result, "modules")
    size = heads["singular_value"].sizes["index"]
    wanted = group(dense, "heads")["singular_value"].values[-1][..., :size]
    np.testing.assert_allclose(heads["singular_value"].values[-1], wanted, atol=1e-6 * wanted.max())
    assert list(modules["given_rank"].values) == [6] * modules.sizes["module"]
    names = dict(merged.named_parameters())
    for at, name in enumerate(modules["module"].values):
        change = names[name].detach() - dict(base.named_parameters())[name].detach()
        if kind == "DoRA":  # whose matrix turns as a whole; the given ranks are those of BA
            layer = model.get_submodule(f"base_model.model.{name.removesuffix('.weight')}")
            change = layer.scaling["default"] * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        exact = torch.linalg.svdvals(change.detach().double()).numpy()[:6]
        np.testing.assert_allclose(modules["singular_value"].values[-1, at], exact, rtol=1e-5, atol=1e-7)
        share = np.cumsum(exact**2) / (exact**2).sum()
        assert modules["used_rank"].values[-1, at] == np.searchsorted(share, 0.99) + 1


def test_planted_ranks_are_found_and_the_end_says_which_rank_would_do():
    model = adapt(small(), rank=16, targets=("q_proj", "v_proj"))
    with saddles.probe.record(model, every=1) as run:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    planted = 3 if "q_proj" in name else 1
                    weight[:, :planted] = torch.randn(len(weight), planted)
        run.step()
    modules = group(run.result, "modules")
    used = dict(zip(modules["module"].values, modules["used_rank"].values[-1], strict=True))
    assert all(rank == (3 if "q_proj" in name else 1) for name, rank in used.items())
    words = run.result.attrs["suggestion"]
    assert words.startswith("Rank 16 given, at most 3 used")
    assert "--max-rank 3" in words


@pytest.mark.parametrize("rank", [2, 16])
@pytest.mark.parametrize("dora", [False, True])
def test_the_suggestion_names_a_command_only_where_it_works_and_helps(rank, dora):
    """DoRA cannot be compressed, and an adapter whose ranks are all used not without loss."""
    model = adapt(small(), rank=rank, targets=("q_proj", "v_proj"), use_dora=dora)
    with saddles.probe.record(model, every=1) as run:
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data[:, :2] = torch.eye(len(weight))[:, :2]
        run.step()
    words = run.result.attrs["suggestion"]
    assert words.startswith(f"Rank {rank} given, at most 2 used")
    assert ("lora compress" in words) == (rank == 16 and not dora)
    assert words.endswith("All are used.") == (rank == 2)


def test_headlines_tell_the_used_ranks():
    model = adapt(small())
    with saddles.probe.record(model, every=1) as run:
        train(model, run, 1)
        run.flush()
        (_, numbers), *_ = run.drain_metrics()
    assert 1 <= numbers["saddles/lora/used_rank_mean"] <= numbers["saddles/lora/used_rank_max"] <= 6


def test_the_change_counts_from_the_start_of_the_recording():
    model = adapt(small(), targets=("q_proj",))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    with saddles.probe.record(model, every=1) as run:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight[:, 0] += 1.0
        run.step()
    assert group(run.result, "modules")["used_rank"].values[-1].tolist() == [1.0, 1.0]
    # Cut to rank 1 the adapter would lose nearly all that it did before the recording.
    assert "lora compress" not in run.result.attrs["suggestion"]
    assert "since the recording began" in run.result.attrs["suggestion"]


def test_a_recording_is_resumed_with_the_reference_of_its_start(tmp_path):
    def run_of(folder, stops):
        model = adapt(small())
        at = 0
        for stop in stops:
            with saddles.probe.record(model, every=2, out=folder, step=at) as run:
                torch.manual_seed(at)
                train(model, run, stop - at, rate=1e-3)
            at = stop
        return saddles.probe.recorded(folder)

    twice = run_of(tmp_path / "twice", (2, 4))
    assert group(twice, "modules")["step"].values.tolist() == [2, 4]
    assert group(twice, "modules")["given_rank"].values.tolist() == [6] * 10
    assert (
        group(twice, "modules")["frobenius_norm"].values[1] > group(twice, "modules")["frobenius_norm"].values[0]
    ).all()


class _Packed(torch.nn.Linear):
    """A base whose weights only its own library can read."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=False)
        self.weight = torch.nn.Parameter(torch.zeros(inner.weight.shape, dtype=torch.int8), requires_grad=False)


def test_modules_of_a_quantised_base_are_measured_from_the_factors():
    model = adapt(small(), targets=("q_proj",))
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            layer.base_layer = _Packed(layer.base_layer)
    with saddles.probe.record(model, every=1) as run:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight[:, :2] = torch.randn(len(weight), 2)
        run.step()
    assert group(run.result, "modules")["used_rank"].values[-1].tolist() == [2.0, 2.0]
    assert "quantised" in str(run.layout)
    assert group(run.result, "heads").sizes["layer"] == 0


def test_embeddings_are_modules_too():
    model = adapt(small(), targets=("embed_tokens", "q_proj"))
    adapted = find_adapted(model)
    assert adapted is not None
    modules = {module.parameter: module for module in adapted.layout.modules}
    assert modules["model.embed_tokens.weight"].shape == (50, 32)
    assert modules["model.embed_tokens.weight"].given_rank == 6


def test_a_merged_adapter_is_refused():
    model = adapt(small())
    model.merge_adapter()
    with pytest.raises(SaddlesError, match="unmerge_adapter"):
        saddles.probe.record(model)


def test_a_model_without_adapters_is_recorded_as_before():
    assert find_adapted(small()) is None


def test_a_trainer_of_an_adapter_is_watched(tmp_path):
    from saddles.probe.recording.huggingface import SaddlesCallback

    model = adapt(small())
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (16, 8))]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    watched = SaddlesCallback(every=2).attach(trainer)
    trainer.train()
    assert group(watched.result, "modules")["step"].values.tolist() == [2, 4]
    assert "suggestion" in watched.result.attrs
    assert any("saddles/lora/used_rank_max" in row for row in trainer.state.log_history)


def test_a_loop_of_accelerate_is_watched():
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.GradientState._reset_state()  # a Trainer of another test leaves its own behind
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = adapt(small())
    model, optimiser = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    with saddles.probe.record(model, every=1) as run:
        for _ in range(4):
            with accelerator.accumulate(model):
                tokens = torch.randint(0, 50, (2, 8))
                accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
                optimiser.step()
                optimiser.zero_grad()
            if accelerator.sync_gradients:
                run.step()
    assert group(run.result, "modules")["step"].values.tolist() == [1, 2]


def test_averaged_weights_are_recorded_like_a_model():
    model = small()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    with saddles.probe.record(averaged, every=1) as run:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        averaged.update_parameters(model)
        averaged.update_parameters(model)
        run.step()
    ranks = group(run.result, "heads")["stable_rank"]
    assert ranks.sizes["layer"] == 2
    assert float(group(run.result, "heads")["frobenius_norm"].min()) > 0


def seen(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The matrices of attention that a model computes with: what each layer makes of the unit vectors."""
    found = {}
    for name, layer in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")):
            inputs: Any = layer.in_features
            with torch.no_grad():
                found[f"{name.removeprefix('base_model.model.')}.weight"] = layer(torch.eye(inputs)).T
    return found


def check_heads(run, model: torch.nn.Module, start: dict[str, torch.Tensor]) -> None:
    """The recorded heads are those of the weights that the model computes with."""
    late, early = small(), small()
    late.load_state_dict(seen(model), strict=False)
    early.load_state_dict(start, strict=False)
    dense = saddles.probe.spectra(late.double(), early.double())
    heads = group(run.result, "heads")["singular_value"].values[-1]
    wanted = group(dense, "heads")["singular_value"].values[-1][..., : heads.shape[-1]]
    np.testing.assert_allclose(heads, wanted, atol=1e-4 * wanted.max())
    assert wanted.max() > 0


@pytest.mark.parametrize("kinds", [(True, False), (False, True), (True, True)])
def test_heads_of_dora_beside_another_active_adapter_are_those_of_the_model(kinds):
    """PEFT applies active adapters one after the other; each DoRA knows the norms of its own change alone."""
    model = adapt(small(), use_dora=kinds[0])
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"], use_dora=kinds[1]))
    model.base_model.set_adapter(["default", "other"])
    start = seen(model.eval())
    with saddles.probe.record(model, every=5) as run:
        train(model, run, 5)
    check_heads(run, model, start)


def test_a_matrix_that_is_trained_whole_beside_the_adapter_counts_in_its_heads(tmp_path):
    model = adapt(small(), targets=("q_proj", "v_proj"))
    for name, weight in model.named_parameters():
        if name.endswith(("k_proj.weight", "o_proj.weight")):
            weight.requires_grad_(True)
    start = seen(model)
    with saddles.probe.record(model, every=5, out=tmp_path / "run") as run:
        train(model, run, 5)
    check_heads(run, model, start)
    with saddles.probe.record(model, every=5, out=tmp_path / "run", step=5) as run:
        train(model, run, 5)
    check_heads(run, model, start)


def test_a_matrix_that_is_trained_with_its_adapter_is_refused():
    model = adapt(small(), targets=("q_proj", "v_proj"))
    model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.base_layer").requires_grad_(True)
    with pytest.raises(SaddlesError, match=r"layers.0.self_attn.q_proj.*is trained beside its adapter"):
        saddles.probe.record(model)


def test_an_adapter_whose_change_is_not_ba_is_refused():
    """KaSA and AdaLoRA have a diagonal between the factors, BD-LoRA has blocks."""
    from peft.tuners.lora import config

    blocks = config.BdLoraConfig(nblocks=2, target_modules_bd_a=["q_proj"], target_modules_bd_b=["o_proj"])
    kinds: dict[str, dict[str, object]] = {"BD-LoRA": {"use_bdlora": blocks}}
    if hasattr(config, "KasaConfig"):  # not in the lowest version of PEFT that saddles works with
        kinds["KaSA"] = {"kasa_config": config.KasaConfig()}
    models = {
        kind: adapt(small(), rank=4, targets=("q_proj", "o_proj"), **settings) for kind, settings in kinds.items()
    }
    settings = {"init_r": 6, "target_r": 4, "total_step": 10, "target_modules": ["q_proj"]}
    models["AdaLoRA"] = peft.get_peft_model(small(), peft.AdaLoraConfig(**settings))
    for model in models.values():
        with pytest.raises(SaddlesError, match=r"layers.0.self_attn.q_proj is adapted by .*, whose change is not s·BA"):
            saddles.probe.record(model)
