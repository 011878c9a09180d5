"""The recorder as a callback of the Trainer of transformers.

Trainer(..., callbacks=[SaddlesCallback(every=50)])
"""

import copy
import inspect
import os
from pathlib import Path
from typing import Any

import xarray as xr
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from saddles.errors import SaddlesError
from saddles.probe.recording.recorder import Recorder
from saddles.probe.recording.resuming import resume


class SaddlesCallback(TrainerCallback):
    """Records the ranks of the model that a Trainer trains.

    The recording lies in `saddles` inside the trainer's output folder and goes on when training is
    resumed from a checkpoint. Headline ranks go through the trainer's own log: to its history, and to
    TensorBoard, W&B, MLflow or what else `report_to` names.

    Args:
        every: steps from one measurement to the next.
        out: another folder for the recording.
        modules: measure the plain matrices too.
        reference: the model at the start, or its state dict, where that is not the model as training begins.
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
        self._handler: CallbackHandler | None = None

    @property
    def result(self) -> xr.DataTree:
        """The finished recording, after `trainer.train()`."""
        if self.run is None:
            raise SaddlesError.about("no training was recorded", "the trainer must train first", "call trainer.train")
        return self.run.result

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._handler = _caller() if self.log else None
        out = Path(self.out) if self.out is not None else Path(args.output_dir) / "saddles"
        self.run = resume(model, self.every, out, state.global_step, self.reference, self.modules)
        self.run.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None:
            self.run.step(state.global_step)
            self._report(self.run, args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None:
            self.run.flush()
            self._report(self.run, args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None:
            self._report(self.run, args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.run is not None and "train_runtime" in (logs or {}):  # the last that is logged of a training
            self._report(self.run, args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None:
            self.run.finish()

    def _report(self, run: Recorder, args: Any, state: Any, control: Any) -> None:
        """Log what is new, and end the recording as soon as training is to stop.

        The event on_train_end is too late: loggers close before it reaches this callback, and the trainer may have
        loaded its best model. An evaluation can stop training after the last on_step_end, so later events look too.
        """
        if control.should_training_stop or state.global_step >= state.max_steps:
            run.finish()
        for step, numbers in run.news():
            if self._handler is None:
                continue
            then = copy.copy(state)
            then.global_step = step
            state.log_history.append({**numbers, "step": step})
            self._handler.on_log(args, then, copy.copy(control), dict(numbers))


def _caller() -> CallbackHandler | None:
    """The handler that calls the trainer's callbacks: the way to its loggers, which callbacks are not given."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, CallbackHandler):
            return owner
        frame = frame.f_back
    return None
