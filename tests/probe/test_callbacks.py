"""The recorder inside the Trainer of transformers and inside Lightning."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import small_models
import torch

import saddles
from saddles import probe
from saddles.core.errors import SaddlesError

LightningSaddles: Any = probe.LightningSaddles
SaddlesCallback: Any = probe.SaddlesCallback
spectra: Any = probe.spectra

NAMES = [f"saddles/{product}/{name}" for product in ("KQ", "VO") for name in ("stable_rank", "effective_rank")]


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        words = torch.randint(0, small_models.WORDS, (8,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": words, "labels": words}


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for events in sorted(folder.rglob("events.out.tfevents.*")):
        reader = EventAccumulator(str(events))
        reader.Reload()
        if name in reader.Tags()["scalars"]:
            found += [(event.step, event.value) for event in reader.Scalars(name)]
    return dict(found)


def hugging_face(folder, steps, callback, resume=None):
    import transformers

    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        report_to=["tensorboard"],
        save_steps=6,
        logging_steps=4,
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
    )
    torch.manual_seed(0)
    model = small_models.gpt2()
    start = copy.deepcopy(model)
    trainer = transformers.Trainer(model, arguments, train_dataset=Words(), callbacks=[callback])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=resume)
    return trainer, start


def test_trainer_of_transformers(tmp_path, capsys):
    whole = SaddlesCallback(every=4)
    trainer, start = hugging_face(tmp_path / "whole", 10, whole)
    assert whole.result["heads"]["step"].values.tolist() == [4, 8, 10]
    after = spectra(trainer.model, start)["heads"]["singular_value"].values[0]
    np.testing.assert_allclose(whole.result["heads"]["singular_value"].values[-1], after, rtol=1e-9, atol=1e-12)
    logged = [row for row in trainer.state.log_history if NAMES[0] in row]
    assert [row["step"] for row in logged] == [4, 8, 10]
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [4, 8], "other logs are as before"
    for name in NAMES:
        seen = scalars(tmp_path / "whole", f"train/{name}")
        assert seen == pytest.approx({row["step"]: row[name] for row in logged}, rel=1e-6)
    assert saddles.load(tmp_path / "whole" / "saddles").equals(whole.result)

    again = SaddlesCallback(every=4)
    hugging_face(tmp_path / "whole", 12, again, resume=str(tmp_path / "whole" / "checkpoint-6"))
    assert again.result["heads"]["step"].values.tolist() == [4, 8, 12]
    ranks = [callback.result["heads"]["stable_rank"].values for callback in (whole, again)]
    np.testing.assert_allclose(ranks[0][:2], ranks[1][:2], rtol=1e-4)


def test_resuming_without_a_reference_is_refused(tmp_path):
    hugging_face(tmp_path, 6, SaddlesCallback(every=4, out=tmp_path / "one"))
    with pytest.raises(SaddlesError, match="goes on at step 6"):
        hugging_face(tmp_path, 8, SaddlesCallback(every=4), resume=str(tmp_path / "checkpoint-6"))
    with pytest.raises(SaddlesError, match="never overwritten"):
        hugging_face(tmp_path, 8, SaddlesCallback(every=4, out=tmp_path / "one"))


def lightning_fit(folder, steps, callback, checkpoint=None):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_models.timm_like().train()

        def training_step(self, batch, at):
            return (self.model(batch) - batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-5)

    torch.manual_seed(0)
    task = Task()
    start = copy.deepcopy(task)
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 5, small_models.WIDTH, generator=draw)] * 64  # Lightning begins its data anew on resuming
    saver = ModelCheckpoint(folder / "saved", every_n_train_steps=6, save_top_k=-1, filename="{step}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=steps,
            accumulate_grad_batches=2,
            callbacks=[callback, saver],
            logger=[TensorBoardLogger(folder, "board"), CSVLogger(folder, "table")],
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
        trainer.fit(task, loader, ckpt_path=checkpoint)
    return task, start


def test_lightning(tmp_path):
    whole = LightningSaddles(every=4, out=tmp_path / "r")
    task, start = lightning_fit(tmp_path, 10, whole)
    assert whole.result["heads"]["step"].values.tolist() == [4, 8, 10]
    after = spectra(task, start)["heads"]["singular_value"].values[0]
    np.testing.assert_allclose(whole.result["heads"]["singular_value"].values[-1], after, rtol=1e-9, atol=1e-12)
    for at, name in enumerate(NAMES[::2]):
        ranks = whole.result["heads"]["stable_rank"].mean(("layer", "head")).values[:, at]
        expected = dict(zip((4, 8, 10), ranks, strict=True))
        assert scalars(tmp_path / "board", name) == pytest.approx(expected, rel=1e-6)
    assert NAMES[0] in next((tmp_path / "table").rglob("metrics.csv")).read_text()

    again = LightningSaddles(every=4, out=tmp_path / "r")
    lightning_fit(tmp_path, 12, again, tmp_path / "saved" / "step=6.ckpt")
    assert again.result["heads"]["step"].values.tolist() == [4, 8, 12]
    ranks = [callback.result["heads"]["stable_rank"].values for callback in (whole, again)]
    np.testing.assert_allclose(ranks[0][:2], ranks[1][:2], rtol=1e-4)


def test_lightning_that_fails_keeps_its_rows(tmp_path):

    class Fails(LightningSaddles):
        def on_train_batch_end(self, trainer, *rest):
            super().on_train_batch_end(trainer, *rest)
            if trainer.global_step == 5:
                raise RuntimeError("out of memory")

    callback = Fails(every=2, out=tmp_path / "r")
    with pytest.raises(RuntimeError, match="out of memory"):
        lightning_fit(tmp_path, 10, callback)
    assert callback.result["heads"]["step"].values.tolist() == [2, 4]
    assert saddles.load(tmp_path / "r").attrs["status"] == "stopped: RuntimeError"
