"""The live recorder: the same numbers as afterwards, order, errors, crash and resume."""

import copy
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import small_models
import torch

import saddles
from saddles import probe
from saddles.core.status import Ending, Status, status_of
from saddles.errors import SaddlesError
from saddles.probe import measuring
from saddles.probe.recording import slots
from saddles.probe.recording.journal import Journal

recorded: Any = probe.recorded
spectra: Any = probe.spectra
record: Any = probe.record


def trainer(seed=0):
    """A model, and a function that makes one step of training."""
    torch.manual_seed(seed)
    model = small_models.gpt2()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    words = torch.randint(0, small_models.WORDS, (2, 8))

    def step():
        torch.nn.functional.cross_entropy(model(words).logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()

    return model, step


def die(run, train, steps, error):
    """Train inside a recording until an error ends it."""

    def loop():
        with run:
            for _ in range(steps):
                train()
                run.step()
            raise error

    with pytest.raises(type(error)):
        loop()


def steps_of(tree):
    return tree["heads"]["step"].values.tolist()


def test_a_recording_holds_what_each_step_was(tmp_path):
    model, train = trainer()
    start, kept = copy.deepcopy(model), {}
    with record(model, every=3, out=tmp_path / "r", modules=True) as run:
        for at in range(1, 11):
            train()
            run.step()
            kept[at] = copy.deepcopy(model)
    assert steps_of(run.result) == [3, 6, 9, 10]
    for place, at in enumerate((3, 6, 9, 10)):
        after = spectra(kept[at], start, at)
        for group in ("heads", "modules"):
            live = run.result[group].to_dataset().isel(time=[place])
            for name in ("singular_value", "stable_rank", "noise_floor"):
                np.testing.assert_allclose(live[name].values, after[group][name].values, rtol=1e-12, atol=1e-15)
    assert saddles.load(tmp_path / "r").equals(run.result)
    assert status_of(run.result).ok
    assert recorded(tmp_path / "r")["heads"].equals(run.result["heads"])
    assert status_of(recorded(tmp_path / "r")).ok
    assert 0 < run.result.attrs["wall_time_s"] < 600


def test_nothing_needs_a_folder_or_the_matrices():
    model, train = trainer()
    with record(model, every=2) as run:
        for _ in range(4):
            train()
            run.step()
    assert steps_of(run.result) == [2, 4]
    assert not run.result["modules"].data_vars
    assert [step for step, _ in run.drain_metrics()] == [2, 4]
    assert run.drain_metrics() == []


def test_a_reference_can_be_given():
    model, _ = trainer()
    start = {name: 0 * tensor for name, tensor in model.state_dict().items()}
    with record(model, every=1, reference=start) as run:
        run.step()
    expected = spectra(model, start)["heads"]["singular_value"]
    np.testing.assert_allclose(run.result["heads"]["singular_value"].values, expected.values, rtol=1e-12)
    with pytest.raises(SaddlesError, match="must be the same model"), record(model, every=1, reference={}) as run:
        pass


def test_the_loop_does_not_wait(monkeypatch):
    """Measuring is held up; the loop goes on until as many copies wait as were allowed, and rows stay in order."""
    gate, real = threading.Event(), measuring.measure_heads

    def slow(*args):
        gate.wait(30)
        return real(*args)

    monkeypatch.setattr(measuring, "measure_heads", slow)
    monkeypatch.setattr(slots, "WARN_AFTER_S", 0.05)
    model, train = trainer()
    with record(model, every=1, pending=3) as run:
        for _ in range(3):
            train()
            run.step()
        assert run.drain_metrics() == []
        threading.Timer(0.3, gate.set).start()
        train()
        with pytest.warns(UserWarning, match="Training waits for measurements"):
            run.step()
        assert run.waited > 0.05
    assert steps_of(run.result) == [1, 2, 3, 4]
    norms = run.result["heads"]["frobenius_norm"].mean(("layer", "head", "product")).values
    assert np.all(np.diff(norms) > 0), "each row belongs to its own step"


def test_an_error_before_the_last_measurement_keeps_the_other_rows(tmp_path, monkeypatch):
    """The row of step 4 fails after step 5 was made, which is still to be measured."""
    model, train = trainer()
    real, calls, gate = measuring.measure_heads, [], threading.Event()

    def second_breaks(*args):
        calls.append(1)
        if len(calls) == 2:
            gate.wait(60)
            raise OSError("disk full")
        return real(*args)

    monkeypatch.setattr(measuring, "measure_heads", second_breaks)
    run = record(model, every=2, out=tmp_path / "r")

    def loop():
        with run:
            for _ in range(5):
                train()
                run.step()
            gate.set()
            while not run._jobs[-1].done():
                time.sleep(0.01)

    with pytest.warns(UserWarning, match="gap at step 4 .*disk full"):
        loop()
    assert steps_of(saddles.load(tmp_path / "r")) == [2, 5]


def test_an_interrupted_loop_keeps_its_rows(tmp_path):
    model, train = trainer()
    run = record(model, every=2, out=tmp_path / "r")
    die(run, train, 5, KeyboardInterrupt())
    assert steps_of(run.result) == [2, 4]
    assert status_of(saddles.load(tmp_path / "r")) == Status(Ending.INTERRUPTED)


def test_a_killed_process_loses_nothing_that_was_flushed(tmp_path):
    """A process that dies without any clean-up leaves rows that can be read and gone on with."""
    code = f"""
import os, sys; sys.path[:0] = {sys.path!r}
import small_models, torch
from saddles.probe import record
torch.set_num_threads(1)
torch.manual_seed(0)
model = small_models.timm_like()
with record(model, every=2, out={str(tmp_path / "r")!r}) as run:
    for _ in range(5):
        with torch.no_grad():
            model.blocks[0]["attn"].qkv.weight.mul_(1.01)
        run.step()
    run.flush()
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert steps_of(recorded(tmp_path / "r")) == [2, 4]
    assert not (tmp_path / "r" / "trajectory.zarr").exists()
    torch.manual_seed(0)
    model = small_models.timm_like()
    with record(model, every=2, out=tmp_path / "r", step=4) as run:
        for _ in range(2):
            run.step()
    assert steps_of(run.result) == [2, 4, 6]
    assert float(run.result["heads"]["frobenius_norm"].isel(time=2).max()) == 0.0, "its reference is the first start"


def test_resume_has_no_step_twice_and_none_lost(tmp_path):
    """Training dies at step 9, goes on from its checkpoint at step 6, and equals training that never died."""
    model, train = trainer()
    with record(model, every=2, out=tmp_path / "whole") as run:
        for _ in range(12):
            train()
            run.step()
    whole = run.result
    model, train = trainer()
    checkpoint, counter = {}, iter(range(1, 10))

    def train_and_save(model=model, train=train):
        train()
        if next(counter) == 6:
            checkpoint.update(copy.deepcopy(model.state_dict()))

    die(record(model, every=2, out=tmp_path / "r"), train_and_save, 9, RuntimeError("out of memory"))
    model, train = trainer()
    model.load_state_dict(checkpoint)
    with record(model, every=2, out=tmp_path / "r", step=6) as run:
        for _ in range(6):
            train()
            run.step()
    assert steps_of(run.result) == steps_of(whole) == [2, 4, 6, 8, 10, 12]
    np.testing.assert_allclose(run.result["heads"]["stable_rank"], whole["heads"]["stable_rank"], rtol=1e-6)
    assert [str(file.relative_to(tmp_path / "r" / "superseded")) for file in tmp_path.rglob("superseded/*/*")] == [
        "1/step-8.npz"
    ]
    journal = Journal(tmp_path / "r")
    journal.go_back_to(6)
    journal.go_back_to(6)
    assert [folder.name for folder in sorted((tmp_path / "r" / "superseded").iterdir())] == ["1", "2"]


def test_recordings_of_restarts_in_other_folders_are_joined(tmp_path):
    """Each machine count its own folder: the joined rows are those of training that never died."""
    model, train = trainer()
    start, checkpoint = copy.deepcopy(model.state_dict()), {}
    with record(model, every=2, out=tmp_path / "whole") as whole, record(model, every=2, out=tmp_path / "one") as run:
        for step in range(1, 11):
            train()
            whole.step()
            if step <= 8:  # two rows after the checkpoint, which the restart makes anew
                run.step()
            if step == 4:
                checkpoint = copy.deepcopy(model.state_dict())
    model, train = trainer()
    model.load_state_dict(checkpoint)
    with record(model, every=2, out=tmp_path / "two", step=4, reference=start) as run:
        for _ in range(6):
            train()
            run.step()
    both = recorded(tmp_path / "one", tmp_path / "two")
    assert steps_of(both) == [2, 4, 6, 8, 10]
    np.testing.assert_array_equal(both["heads"]["stable_rank"][2:], run.result["heads"]["stable_rank"])
    np.testing.assert_allclose(both["heads"]["stable_rank"], whole.result["heads"]["stable_rank"], rtol=1e-6)
    with record(model, every=2, out=tmp_path / "lost", step=10, reference=checkpoint) as run:
        pass
    with pytest.raises(SaddlesError, match="counts changes from other weights"):
        recorded(tmp_path / "one", tmp_path / "lost")
    with record(small_models.llama(), every=2, out=tmp_path / "other"):
        pass
    with pytest.raises(SaddlesError, match="recordings of different models"):
        recorded(tmp_path / "one", tmp_path / "other")


def test_weights_of_an_optimiser_that_keeps_its_own_are_those_that_the_model_computes_with():
    """Master weights in float32 and a model in bfloat16: the model's are recorded, with the floor of their rounding."""
    model = small_models.gpt2()
    masters = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    model.bfloat16()
    start = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(masters.values(), lr=1e-4)
    with record(model, every=4) as run:
        for _ in range(4):
            model(**small_models.inputs(model)).logits.float().square().mean().backward()
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    masters[name].grad = weight.grad.float()
                optimiser.step()
                for name, weight in model.named_parameters():
                    weight.copy_(masters[name])
                    weight.grad = None
            run.step()
    found, expected = run.result["heads"], spectra(model, start)["heads"]
    np.testing.assert_allclose(found["stable_rank"][-1], expected["stable_rank"][0], rtol=1e-6)
    assert (found["noise_floor"] > 0).all()
    exact = {name: weight.detach() for name, weight in masters.items()}
    far = spectra(model, exact)["heads"]["singular_value"].isel(
        time=0, index=0
    )  # what rounding alone does to a product
    assert (far < 1.5 * found["noise_floor"].isel(time=-1)).all()


def test_a_row_that_was_on_its_way_when_training_died_is_made_up_for(tmp_path):
    model, train = trainer()
    with record(model, every=2, out=tmp_path / "r") as run:
        for _ in range(4):
            train()
            run.step()
    (tmp_path / "r" / "rows" / "step-4.npz").unlink()
    with record(model, every=2, out=tmp_path / "r", step=4) as again:
        pass
    assert steps_of(again.result) == [2, 4]
    assert again.result["heads"].equals(run.result["heads"])


def test_recordings_are_never_overwritten(tmp_path):
    model, train = trainer()
    with record(model, every=1, out=tmp_path / "r") as run:
        train()
        run.step()
    before = recorded(tmp_path / "r")
    with pytest.raises(SaddlesError, match="never overwritten"), record(model, every=1, out=tmp_path / "r"):
        pass
    other = small_models.llama()
    with pytest.raises(SaddlesError, match="another model"), record(other, every=1, out=tmp_path / "r", step=1):
        pass
    assert recorded(tmp_path / "r").equals(before)
    (tmp_path / "file").write_text("")
    with pytest.raises(SaddlesError, match="cannot be written"), record(model, every=1, out=tmp_path / "file"):
        pass
    with pytest.raises(SaddlesError, match="holds no recording"):
        recorded(tmp_path / "nowhere")


def test_narrow_weights_are_recorded_with_their_floor():
    model = small_models.gpt2().bfloat16()
    with record(model, every=1) as run:
        with torch.no_grad():
            model.transformer.h[0].attn.c_attn.weight.add_(0.1)
        run.step()
    floor = run.result["heads"]["noise_floor"]
    assert float(floor.min()) > 1e-3 * float(run.result["heads"]["initial_singular_value"].max()) / 8


def test_weights_that_diverge_do_not_stop_training():
    model = small_models.gpt2()
    with record(model, every=1) as run:
        with torch.no_grad():
            model.transformer.h[0].attn.c_attn.weight.fill_(torch.nan)
        run.step()
        with torch.no_grad():
            model.transformer.h[1].attn.c_attn.weight.fill_(torch.nan)
        run.step()
    first, second = (numbers["saddles/KQ/stable_rank"] for _, numbers in run.drain_metrics())
    assert np.isfinite(first)
    assert np.isnan(second)
    ranks = run.result["heads"]["stable_rank"].values[0]
    assert np.isnan(ranks[0]).all()
    assert np.isfinite(ranks[1]).all()


def test_threads_of_the_user_keep_their_number():
    torch.set_num_threads(2)
    model, _ = trainer()
    with record(model, every=1) as run:
        run.step()
        inside = torch.get_num_threads()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert [inside, *seen, torch.get_num_threads()] == [2, 2, 2]


def test_bad_settings_and_early_questions():
    model, _ = trainer()
    with pytest.raises(SaddlesError, match=r"`every` must be a whole number of at least 1; got 0"):
        record(model, every=0)
    with pytest.raises(SaddlesError, match="`every` must be a whole number of at least 1; got True"):
        record(model, every=True)
    with pytest.raises(SaddlesError, match="`every` must be a whole number of at least 1"):
        probe.SaddlesCallback(every=0)
    with pytest.raises(SaddlesError, match="No attention head"):
        record(torch.nn.Linear(3, 3))
    run = record(model)
    with pytest.raises(SaddlesError, match="no result here"):
        _ = run.result


def test_a_step_outside_the_block_is_told_and_does_not_hang():
    model, train = trainer()
    run = record(model, every=1)
    with pytest.raises(SaddlesError, match="The recording has not begun"):
        run.step()
    with run:
        train()
        run.step()
    train()
    with pytest.raises(SaddlesError, match="has ended with its `with` block"):
        run.step()
    assert steps_of(run.result) == [1]


def test_a_folder_tells_how_its_recording_ended(tmp_path):
    model, train = trainer()
    die(record(model, every=1, out=tmp_path / "r"), train, 2, KeyboardInterrupt())
    assert status_of(recorded(tmp_path / "r")) == Status(Ending.INTERRUPTED)
    with record(model, every=1, out=tmp_path / "r", step=2) as run:
        assert status_of(recorded(tmp_path / "r")) == Status(Ending.RUNNING, "2 rows so far")
        train()
        run.step()
    assert status_of(recorded(tmp_path / "r")).ok
    (tmp_path / "r" / "trajectory.zarr" / ".zmetadata").write_text("{")
    assert steps_of(recorded(tmp_path / "r")) == [1, 2, 3]


def test_heads_of_a_model_inside_a_module_of_ones_own():
    inside = small_models.llama()
    around: Any = torch.nn.Module()
    around.net, around.config = inside, {"learning_rate": 0.1}
    found = probe.heads(around)
    assert [head.attention for head in found.heads] == [f"net.{head.attention}" for head in probe.heads(inside).heads]
    assert [(h.rotary, h.turned) for h in found.heads] == [(h.rotary, h.turned) for h in probe.heads(inside).heads]
    around.teacher = small_models.llama(num_attention_heads=2, num_key_value_heads=1)
    assert not probe.heads(around).heads  # whose number of heads would it be?


def test_rows_are_kept_without_zarr(tmp_path):
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
sys.modules["zarr"] = sys.modules["h5netcdf"] = None
import small_models, torch
from saddles.probe import record
torch.set_num_threads(1)
with record(small_models.timm_like(), every=1, out={str(tmp_path / "r")!r}) as run:
    run.step()
print(run.result["heads"].sizes["time"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert steps_of(recorded(tmp_path / "r")) == [1]
    assert not (tmp_path / "r" / "trajectory.zarr").exists()


def test_old_names_work_and_warn():
    model, train = trainer()
    with pytest.warns(DeprecationWarning, match=r"watch is now saddles\.probe\.record"):
        watch: Any = probe.watch  # pyright: ignore[reportAttributeAccessIssue]
    with watch(model, every=1) as run:
        train()
        run.step()
        run.flush()
        with pytest.warns(DeprecationWarning, match="drain_metrics"):
            assert [step for step, _ in run.news()] == [1]
