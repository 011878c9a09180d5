"""The recorder inside the trainers of TRL and as a plugin of Axolotl, where these are installed."""

# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

from typing import Any

import numpy as np
import pytest
import small_models
import torch
from small_trainings import Words

from saddles import probe

SaddlesCallback: Any = probe.SaddlesCallback
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "slept")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of other libraries are not ours


@pytest.fixture
def trl() -> Any:
    pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    return pytest.importorskip("trl", reason="TRL is not installed: pip install trl")


def tokenizer():
    import tokenizers
    import transformers

    names = {word: place for place, word in enumerate(("<pad>", "<end>", "<unknown>", *WORDS))}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unknown>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def model():
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def options(folder, steps=4):
    return {
        "output_dir": str(folder), "max_steps": steps, "per_device_train_batch_size": 2, "learning_rate": 1e-2,
        "gradient_accumulation_steps": 2, "use_cpu": True, "report_to": [], "save_strategy": "no", "bf16": False,
        "gradient_checkpointing": False,
    }  # fmt: skip


def sentences(count=16):
    import datasets  # pyright: ignore[reportMissingImports]

    draw = np.random.default_rng(0)
    return datasets.Dataset.from_list([{"text": " ".join(draw.choice(WORDS, 6))} for _ in range(count)])


@pytest.mark.parametrize("adapted", [False, True])
def test_supervised_fine_tuning_is_watched(trl, tmp_path, adapted):
    more = {}
    if adapted:
        peft = pytest.importorskip("peft")
        more["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = trl.SFTTrainer(
        model(),
        trl.SFTConfig(**options(tmp_path), max_length=16),
        train_dataset=sentences(),
        processing_class=tokenizer(),
        **more,
    )
    ranks = SaddlesCallback(every=2).attach(trainer)
    trainer.train()
    assert ranks.result["heads"]["step"].values.tolist() == [2, 4]
    if adapted:
        modules = ranks.result["modules"].to_dataset()
        assert modules["given_rank"].values.tolist() == [4] * 4
        assert modules["used_rank"].values[-1].min() >= 1
        return
    after: Any = probe.spectra(trainer.model, model())
    np.testing.assert_allclose(
        ranks.result["heads"]["stable_rank"].values[-1], after["heads"]["stable_rank"].values[0], rtol=1e-6
    )


def test_preference_training_is_watched(trl, tmp_path):
    import datasets  # pyright: ignore[reportMissingImports]

    pairs = [{"prompt": "the cat", "chosen": " sat on", "rejected": " a mat"}] * 8
    trainer = trl.DPOTrainer(
        model(),
        model(),
        trl.DPOConfig(**options(tmp_path), max_length=16),
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    ranks = SaddlesCallback(every=4).attach(trainer)
    trainer.train()
    after: Any = probe.spectra(trainer.model, model())
    np.testing.assert_allclose(
        ranks.result["heads"]["stable_rank"].values[-1], after["heads"]["stable_rank"].values[0], rtol=1e-6
    )


def test_a_plugin_of_axolotl_attaches_the_callback(tmp_path, monkeypatch):
    """As Axolotl's builder does it: the plugin is named in the settings, and called with the trainer."""
    base: Any = pytest.importorskip("axolotl.integrations.base", reason="Axolotl is not installed: pip install axolotl")
    import transformers

    class Saddles(base.BasePlugin):
        def add_callbacks_post_trainer(self, cfg, trainer):
            self.ranks = SaddlesCallback(every=2).attach(trainer)
            return []

    manager = base.PluginManager.get_instance()
    monkeypatch.setattr(manager, "plugins", {"mine.Saddles": Saddles()})
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, use_cpu=True, report_to=[], save_strategy="no"
    )
    trainer = transformers.Trainer(small_models.gpt2(), settings, train_dataset=Words())
    for callback in manager.add_callbacks_post_trainer({}, trainer):
        trainer.add_callback(callback)
    trainer.train()
    assert manager.plugins["mine.Saddles"].ranks.result["heads"]["step"].values.tolist() == [2, 4]
