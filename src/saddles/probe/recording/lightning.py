"""The recorder as a callback of Lightning.

Trainer(..., callbacks=[LightningSaddles(every=50, out="runs/ranks")])
"""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from saddles.probe.recording.callback import RecordingCallback


class LightningSaddles(RecordingCallback, Callback):
    """Records the ranks of the module that a Lightning Trainer trains.

    Headline ranks go to every logger of the trainer (TensorBoard, W&B, MLflow, CSV), at the step at which the weights
    were copied.

    Args:
        every: optimiser steps from one measurement to the next.
        out: a folder for the recording; needed to resume from a checkpoint.
        modules: measure the plain matrices too.
        reference: the module at the start, or its state dict, where that is not the module as training begins.
        log: whether headline ranks are logged.
        measures: numbers of the whole model, as for `saddles.probe.record`; they are logged too, of arrays of heads the
            median by product.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin(pl_module, None if self.out is None else Path(self.out), trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if self.run is not None:
            self.run.step(trainer.global_step)
            self._report(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Mapping[str, object]
    ) -> None:
        if self.run is not None:
            self.run.flush()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.run is not None:
            self.finish()
            self._report(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.run is not None:
            self.run.finish(type(exception))

    def _report(self, trainer: Trainer) -> None:
        for step, numbers in self.run.drain_metrics() if self.run is not None else ():
            for logger in trainer.loggers if self.log else ():
                logger.log_metrics(numbers, step=step)
