"""Short trainings of small models with the Trainer of transformers and with Lightning."""

import copy
import warnings

import small_models
import torch


class Words(torch.utils.data.Dataset):
    """Sentences of random words."""

    def __init__(self, count=64):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        words = torch.randint(0, small_models.WORDS, (8,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": words, "labels": words}


def hugging_face(folder, steps, callbacks, report_to, resume=None, words=64, evaluated=None, attach=True, **more):
    """Train a small GPT-2 with the Trainer of transformers; returns the trainer and the model at the start."""
    import transformers

    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        report_to=report_to,
        logging_steps=4,
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        **{"save_steps": 6, **more},
    )
    torch.manual_seed(0)
    model = small_models.gpt2()
    start = copy.deepcopy(model)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Words(words), eval_dataset=evaluated, callbacks=callbacks
    )
    for callback in callbacks if attach else ():
        if hasattr(callback, "attach"):
            callback.attach(trainer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", "Ranks are recorded")
        trainer.train(resume_from_checkpoint=resume)
    return trainer, start


def lightning_fit(folder, steps, callback, loggers, checkpoint=None):
    """Train a small module with Lightning; returns it and itself at the start."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

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
            logger=loggers,
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
        trainer.fit(task, loader, ckpt_path=checkpoint)
    return task, start
