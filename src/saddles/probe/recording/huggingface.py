"""The recorder as a callback of the Trainer of transformers.

trainer = Trainer(...)
ranks = SaddlesCallback(every=50).attach(trainer)
trainer.train()
"""

import copy
import os
import warnings
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saddles.errors import SaddlesError
from saddles.probe.recording.callback import RecordingCallback
from saddles.probe.recording.recorder import Recorder


class SaddlesCallback(RecordingCallback, TrainerCallback):
    """Records the ranks of the model that a Trainer trains.

    The recording lies in `saddles` inside the trainer's output folder and is resumed when training is resumed from a
    checkpoint. Each trial of `hyperparameter_search` has one, beside its checkpoints (`run-0/saddles`), or in a folder
    `run-0` inside `out`. Headline ranks go to the trainer's log history and, once the callback is attached, to
    TensorBoard, W&B, MLflow or whatever else `report_to` names.

    Args:
        every: steps from one measurement to the next.
        out: another folder for the recording.
        modules: measure the plain matrices too.
        reference: the model at the start, or its state dict, where that is not the model as training begins.
        log: whether headline ranks are logged.
        measures: numbers of the whole model, as for `saddles.probe.record`; they are logged too, of arrays of heads the
            median by product.
    """

    _trainer: Trainer | None = None

    def attach(self, trainer: Trainer) -> "SaddlesCallback":
        """Add this callback to a trainer, and log to its trackers.

        A callback that is only passed as `callbacks=[…]` records as well, but transformers does not tell it which
        trainer it belongs to, and so it cannot reach the trackers.
        """
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._trainer = trainer
        return self

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        assert model is not None  # the trainer always gives it
        if self.log and self._trainer is None and args.report_to:
            warnings.warn(
                f"Ranks are recorded, but not sent to {', '.join(args.report_to)}: call attach(trainer) on the "
                "SaddlesCallback first, or pass log=False.",
                stacklevel=2,
            )
        self.begin(model, self._place(args, state), state.global_step)

    def _place(self, args: TrainingArguments, state: TrainerState) -> Path:
        """The folder of this training; a trial of a search has one of its own, where its checkpoints lie too."""
        output = Path(args.output_dir or ".")
        trial = Path()
        if state.is_hyper_param_search:
            if self._trainer is not None:  # only the trainer knows the number of a trial without a name
                trial = Path(os.path.relpath(self._trainer._get_output_dir(self._trainer._trial), output))
            elif state.trial_name:
                trial = Path(state.trial_name)
            else:
                raise SaddlesError(
                    "Each trial of hyperparameter_search needs a folder of its own, and transformers does not tell "
                    "a callback that is passed as callbacks=[…] which trial it is. Call attach(trainer) on the "
                    "SaddlesCallback first, or pass hp_name= to hyperparameter_search."
                )
        return output / trial / "saddles" if self.out is None else Path(self.out) / trial

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.run is not None:
            self.run.step(state.global_step)
            self._flush_before_saving(self.run, control)
            self._report(self.run, args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        if self.run is not None:
            self.run.flush()
            self._report(self.run, args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.run is not None:
            self._flush_before_saving(self.run, control)
            self._report(self.run, args, state, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if self.run is not None and "train_runtime" in (logs or {}):  # the last entry that a training logs
            self._report(self.run, args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.finish()

    def _flush_before_saving(self, run: Recorder, control: TrainerControl) -> None:
        """Have every row up to a checkpoint on disk, and in the log history that is saved with it.

        The event on_save comes after the checkpoint, and serves where an evaluation decides that one is saved.
        """
        if control.should_save:
            run.flush()

    def _report(self, run: Recorder, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Log what is new, and end the recording as soon as training is to stop.

        The event on_train_end is too late: trackers close before it reaches this callback, and the trainer may have
        loaded its best model. An evaluation can stop training after the last on_step_end, so later events look too.
        """
        if control.should_training_stop or state.global_step >= state.max_steps:
            self.finish()
        for step, numbers in run.drain_metrics():
            if not self.log:
                continue
            if state.epoch is not None and state.global_step:
                numbers = {**numbers, "epoch": state.epoch * step / state.global_step}
            state.log_history.append({**numbers, "step": step})
            if self._trainer is not None:
                # Not trainer.log: it would use the present step, and subclasses add numbers of their own to it.
                then = copy.copy(state)
                then.global_step = step
                self._trainer.callback_handler.on_log(args, then, copy.copy(control), dict(numbers))
