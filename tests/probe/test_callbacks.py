"""The recorder inside the Trainer of transformers and inside Lightning."""

import copy
import json
import signal
from typing import Any

import numpy as np
import pytest
import torch
from small_trainings import Words, hugging_face, lightning_fit

import saddles
from saddles import probe
from saddles.core.status import Ending, Status, status_of
from saddles.errors import SaddlesError
from saddles.probe.recording.callback import RecordingCallback

LightningSaddles: Any = probe.LightningSaddles
SaddlesCallback: Any = probe.SaddlesCallback
spectra: Any = probe.spectra

NAMES = [f"saddles/{product}/{name}" for product in ("KQ", "VO") for name in ("stable_rank", "effective_rank")]


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for events in sorted(folder.rglob("events.out.tfevents.*")):
        reader = EventAccumulator(str(events))
        reader.Reload()
        if name in reader.Tags()["scalars"]:
            found += [(event.step, event.value) for event in reader.Scalars(name)]
    return dict(found)


def trained(folder, steps, callback, resume=None):
    return hugging_face(folder, steps, [callback], ["tensorboard"], resume)


def test_trainer_of_transformers(tmp_path, capsys):
    whole = SaddlesCallback(every=4)
    trainer, start = trained(tmp_path / "the whole", 10, whole)
    assert whole.result["heads"]["step"].values.tolist() == [4, 8, 10]
    after = spectra(trainer.model, start)["heads"]["singular_value"].values[0]
    np.testing.assert_allclose(whole.result["heads"]["singular_value"].values[-1], after, rtol=1e-9, atol=1e-12)
    logged = [row for row in trainer.state.log_history if NAMES[0] in row]
    assert [row["step"] for row in logged] == [4, 8, 10]
    last = trainer.state.log_history[-1]["epoch"]
    assert [row["epoch"] for row in logged] == pytest.approx([0.4 * last, 0.8 * last, last], rel=0.02)
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("saddles: ")]
    assert f"`saddles report '{tmp_path / 'the whole' / 'saddles'}'`" in sentence
    assert f"ΔKQ {float(whole.result['heads']['stable_rank'][-1, ..., 0].mean()):.1f} (initial" in sentence
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == [4, 8], "other logs are as before"
    for name in NAMES:
        seen = scalars(tmp_path / "the whole", f"train/{name}")
        assert seen == pytest.approx({row["step"]: row[name] for row in logged}, rel=1e-6)
    assert saddles.load(tmp_path / "the whole" / "saddles").equals(whole.result)

    again = SaddlesCallback(every=4)
    trained(tmp_path / "the whole", 12, again, resume=str(tmp_path / "the whole" / "checkpoint-6"))
    assert again.result["heads"]["step"].values.tolist() == [4, 8, 12]
    ranks = [callback.result["heads"]["stable_rank"].values for callback in (whole, again)]
    np.testing.assert_allclose(ranks[0][:2], ranks[1][:2], rtol=1e-4)


@pytest.mark.parametrize("when", ["steps", "epoch"])
@pytest.mark.parametrize("saved", ["with the evaluation", "best"])
def test_a_training_that_stops_early_ends_with_its_last_weights(tmp_path, when, saved):
    """An evaluation ends it, and the trainer loads the best model: the last row is of the weights before that."""
    import transformers

    callback = SaddlesCallback(every=4)
    stop = transformers.EarlyStoppingCallback(1)
    taken = {}

    class Keep(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            taken[state.global_step] = copy.deepcopy(model)

    trainer, start = hugging_face(
        tmp_path, 40, [callback, stop, Keep()], ["tensorboard"], evaluated=Words(3), words=12, eval_strategy=when,
        eval_steps=3, save_steps=3, save_strategy="best" if saved == "best" else when, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,
    )  # fmt: skip
    assert trainer.state.global_step == 6, "the loss falls, so the best is the first"
    assert callback.result["heads"]["step"].values.tolist() == [4, 6]
    after = spectra(taken[6], start)["heads"]["singular_value"].values[0]
    np.testing.assert_allclose(callback.result["heads"]["singular_value"].values[-1], after, rtol=1e-9, atol=1e-12)
    assert set(scalars(tmp_path, f"train/{NAMES[0]}")) == {4, 6}


def test_a_callback_that_is_not_attached_records_and_warns(tmp_path):
    callback = SaddlesCallback(every=4)
    with pytest.warns(UserWarning, match=r"not sent to tensorboard: call attach\(trainer\)"):
        trainer, _ = hugging_face(tmp_path, 6, [callback], ["tensorboard"], attach=False)
    assert callback.result["heads"]["step"].values.tolist() == [4, 6]
    assert [row["step"] for row in trainer.state.log_history if NAMES[0] in row] == [4, 6]
    assert scalars(tmp_path, f"train/{NAMES[0]}") == {}


def test_a_callback_is_added_by_attaching_it_once(tmp_path):
    callback = SaddlesCallback(every=4)
    trainer, _ = hugging_face(tmp_path, 2, [], [])
    assert callback.attach(trainer) is callback.attach(trainer)
    assert trainer.callback_handler.callbacks.count(callback) == 1


def test_resuming_without_a_reference_is_refused(tmp_path):
    trained(tmp_path, 6, SaddlesCallback(every=4, out=tmp_path / "one"))
    with pytest.raises(SaddlesError, match="resumes at step 6"):
        trained(tmp_path, 8, SaddlesCallback(every=4), resume=str(tmp_path / "checkpoint-6"))
    with pytest.raises(SaddlesError, match="never overwritten"):
        trained(tmp_path, 8, SaddlesCallback(every=4, out=tmp_path / "one"))


def test_a_failed_training_does_not_lock_its_folder(tmp_path):
    """As in a notebook, which keeps the failed trainer and its callback while the cell is run again."""
    import transformers

    class Fails(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7:
                raise RuntimeError("out of memory")

    failed = SaddlesCallback(every=4)
    with pytest.raises(RuntimeError, match="out of memory"):
        hugging_face(tmp_path, 10, [failed, Fails()], [])
    again = SaddlesCallback(every=4)
    hugging_face(tmp_path, 10, [again], [], resume=str(tmp_path / "checkpoint-6"))
    assert again.result["heads"]["step"].values.tolist() == [4, 8, 10]
    assert status_of(failed.result) == Status(Ending.FAILED, "RuntimeError")


def test_a_checkpoint_has_the_ranks_of_its_own_step(tmp_path):
    """So that the log history is whole after resuming."""
    trained(tmp_path, 6, SaddlesCallback(every=3))
    history = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in history if NAMES[0] in row] == [3, 6]
    hugging_face(tmp_path / "epochs", 32, [SaddlesCallback(every=16)], [], save_strategy="epoch")
    history = json.loads((tmp_path / "epochs" / "checkpoint-16" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in history if NAMES[0] in row] == [16]


def search(folder, callback, attach=True, **more):
    """Two trials of a search whose backend only counts them: optuna itself is not needed for it."""
    import small_models
    import transformers
    from transformers.hyperparameter_search import OptunaBackend
    from transformers.trainer_utils import BestRun, HPSearchBackend

    class Trial(dict[str, float]):
        def __init__(self, number):
            super().__init__(learning_rate=10.0 ** -(number + 1))
            self.number, self.params = number, self

    class Counts(OptunaBackend):
        @staticmethod
        def is_available():
            return True

        def run(self, trainer, n_trials, direction, **kwargs):
            for number in range(n_trials):
                trainer.train(trial=Trial(number))
            return BestRun("0", 0.0, {})

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, report_to=[], use_cpu=True, disable_tqdm=True, save_steps=2
    )
    trainer = transformers.Trainer(
        None, arguments, train_dataset=Words(16), callbacks=[callback], model_init=lambda: small_models.gpt2()
    )
    if attach:
        callback.attach(trainer)
    with pytest.MonkeyPatch.context() as patch:
        backends = "transformers.trainer.ALL_HYPERPARAMETER_SEARCH_BACKENDS"
        patch.setattr(backends, {HPSearchBackend.OPTUNA: Counts})
        patch.setattr("transformers.integrations.hp_params", dict)
        trainer.hyperparameter_search(lambda trial: trial.params, n_trials=2, backend="optuna", **more)


def test_trials_of_a_search_are_recorded_side_by_side(tmp_path):
    """Each where its checkpoints are; its name, where the search gives one, is known without the trainer, too."""
    search(tmp_path / "numbered", SaddlesCallback(every=2))
    name = {"hp_name": lambda trial: f"rate-{trial.number}"}
    search(tmp_path / "named", SaddlesCallback(every=2), attach=False, **name)
    search(tmp_path / "elsewhere", SaddlesCallback(every=2, out=tmp_path / "out"))
    for folder in ("numbered/run-{}/saddles", "named/rate-{}/saddles", "out/run-{}"):
        one, two = (saddles.load(tmp_path / folder.format(number))["heads"] for number in range(2))
        assert one["step"].values.tolist() == two["step"].values.tolist() == [2, 4]
        assert not one["stable_rank"].equals(two["stable_rank"]), "another learning rate"
    assert (tmp_path / "numbered" / "run-1" / "checkpoint-4").exists()


def test_a_search_whose_trials_cannot_be_told_apart_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(SaddlesError, match=r"attach\(trainer\).*hp_name="):
        search(tmp_path, SaddlesCallback(every=2), attach=False)


def fitted(folder, steps, callback, checkpoint=None):
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers = [TensorBoardLogger(folder, "board"), CSVLogger(folder, "table")]
    return lightning_fit(folder, steps, callback, loggers, checkpoint)


def test_lightning(tmp_path):
    whole = LightningSaddles(every=4, out=tmp_path / "r")
    task, start = fitted(tmp_path, 10, whole)
    assert whole.result["heads"]["step"].values.tolist() == [4, 8, 10]
    after = spectra(task, start)["heads"]["singular_value"].values[0]
    np.testing.assert_allclose(whole.result["heads"]["singular_value"].values[-1], after, rtol=1e-9, atol=1e-12)
    for at, name in enumerate(NAMES[::2]):
        ranks = whole.result["heads"]["stable_rank"].mean(("layer", "head")).values[:, at]
        expected = dict(zip((4, 8, 10), ranks, strict=True))
        assert scalars(tmp_path / "board", name) == pytest.approx(expected, rel=1e-6)
    assert NAMES[0] in next((tmp_path / "table").rglob("metrics.csv")).read_text()

    again = LightningSaddles(every=4, out=tmp_path / "r")
    fitted(tmp_path, 12, again, tmp_path / "saved" / "step=6.ckpt")
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
        fitted(tmp_path, 10, callback)
    assert callback.result["heads"]["step"].values.tolist() == [2, 4]
    assert status_of(saddles.load(tmp_path / "r")) == Status(Ending.FAILED, "RuntimeError")


def test_a_sigterm_under_lightning_is_an_interruption(tmp_path):
    """As a batch system sends it; Lightning saves, leaves its loop with an exception of its own, and can resume."""

    class Ends(LightningSaddles):
        def on_train_batch_end(self, trainer, *rest):
            super().on_train_batch_end(trainer, *rest)
            if trainer.global_step == 7:
                signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        fitted(tmp_path, 10, Ends(every=2, out=tmp_path / "r"))
    signal.signal(signal.SIGTERM, before)
    stopped = saddles.load(tmp_path / "r")
    assert stopped["heads"]["step"].values.tolist() == [2, 4, 6]
    assert status_of(stopped) == Status(Ending.INTERRUPTED, "SIGTERMException")
    again = LightningSaddles(every=2, out=tmp_path / "r")
    fitted(tmp_path, 10, again, tmp_path / "saved" / "step=6.ckpt")
    assert again.result["heads"]["step"].values.tolist() == [2, 4, 6, 8, 10]
    assert status_of(again.result) == Status(Ending.FINISHED)


def of_heads(model, start):
    """An array (layer, head, product) and a number: without the first head, and without a value for VO."""
    array = np.arange(16.0).reshape(2, 4, 2)
    array[0, 0], array[..., 1] = np.nan, np.nan
    return {"spread": array, "size": 3.0}


def test_measures_are_logged_of_heads_their_median(tmp_path):
    trainer, _ = trained(tmp_path / "one", 4, SaddlesCallback(every=4, measures=[of_heads]))
    (row,) = [row for row in trainer.state.log_history if NAMES[0] in row]
    assert (row["saddles/KQ/spread"], row["saddles/size"]) == (8.0, 3.0)
    assert "saddles/VO/spread" not in row
    assert scalars(tmp_path / "one", "train/saddles/KQ/spread") == {4: 8.0}
    fitted(tmp_path / "two", 4, LightningSaddles(every=4, measures=[of_heads]))
    assert scalars(tmp_path / "two" / "board", "saddles/KQ/spread") == {4: 8.0}


def test_the_last_line_of_a_network_without_heads(tmp_path, capsys):
    callback = RecordingCallback(every=1, modules=True)
    for out, words in ((tmp_path / "r", f", the recording is in {tmp_path / 'r'}"), (None, "")):
        callback.begin(torch.nn.Linear(3, 2), out, 0)
        assert callback.run is not None
        callback.run.step()
        callback.finish()
        assert capsys.readouterr().err == f"saddles: 1 measurements{words}.\n"
        assert callback.result["modules"].sizes["module"] == 1
