"""The recorder as a callback of Lightning.

Trainer(..., callbacks=[LightningSaddles(every=50, out="runs/ranks")])
"""

import os
from pathlib import Path
from typing import Any

import xarray as xr
from lightning.pytorch import Callback

from saddles.errors import SaddlesError
from saddles.probe.recording.recorder import Recorder
from saddles.probe.recording.resuming import resume


class LightningSaddles(Callback):
    """Records the ranks of the module that a Lightning Trainer trains.

    Headline ranks go to every logger of the trainer (TensorBoard, W&B, MLflow, CSV), at the step at
    which the weights were taken.

    Args:
        every: optimiser steps from one measurement to the next.
        out: a folder for the recording; needed to go on after a checkpoint.
        modules: measure the plain matrices too.
        reference: the module at the start, or its state dict, where that is not the module as training begins.
        log: whether headline ranks are logged.
    """

    def __init__(
        self,
        every: int = 50,
        out: str | os.PathLike[str] | None = None,
        modules: bool = False,
        reference: Any = None,
        log: bool = True,
    ) -> None:
        self.every, self.out, self.modules, self.reference, self.log = every, out, modules, reference, log
        self.run: Recorder | None = None

    @property
    def result(self) -> xr.DataTree:
        """The finished recording, after `trainer.fit`."""
        if self.run is None:
            raise SaddlesError.about("no training was recorded", "the trainer must fit first", "call trainer.fit")
        return self.run.result

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        out = Path(self.out) if self.out is not None else None
        self.run = resume(pl_module, self.every, out, trainer.global_step, self.reference, self.modules)
        self.run.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.run is not None:
            self.run.step(trainer.global_step)
            self._report(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.flush()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is not None:
            self.run.finish()
            self._report(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.run is not None:
            self.run.finish(type(exception))

    def _report(self, trainer: Any) -> None:
        for step, numbers in self.run.news() if self.run is not None else ():
            for logger in trainer.loggers if self.log else ():
                logger.log_metrics(numbers, step=step)
