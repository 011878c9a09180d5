"""What happens to a recording never ends the training that it watches."""

import copy
import errno
import json
import os
import shutil
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import small_models
import torch

import saddles
from saddles import probe
from saddles.core.status import Ending, status_of
from saddles.errors import SaddlesError
from saddles.probe.recording import backends, journal
from saddles.probe.recording.callback import RecordingCallback
from saddles.runtime.files import hold

record: Any = probe.record
recorded: Any = probe.recorded


def model_of(seed=0):
    torch.manual_seed(seed)
    return small_models.timm_like()


def move(model):
    """A step of training that always succeeds."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(1.01)


def train(model, steps, before=lambda step: None, **options):
    """Train inside a recording, which is waited for at every step."""
    with record(model, every=1, **options) as run:
        for step in range(1, steps + 1):
            before(step)
            move(model)
            run.step()
            run.flush()
    return run


def steps_of(tree):
    return tree["heads"]["step"].values.tolist()


def gaps_of(tree):
    return {int(step): why for step, why in json.loads(tree.attrs["gaps"]).items()}


class Disk:
    """Stands before the function that writes files; full while `full` is set."""

    def __init__(self, monkeypatch):
        self.full, real = False, journal.write_row  # pyright: ignore[reportPrivateImportUsage]

        def write(*args, **more):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*args, **more)

        def zarr(*args, **more):
            if self.full:
                raise SaddlesError("r cannot be written (No space left on device).")
            store(*args, **more)

        store = journal.write_zarr  # pyright: ignore[reportPrivateImportUsage]
        monkeypatch.setattr(journal, "write_row", write)
        monkeypatch.setattr(journal, "write_zarr", zarr)


def test_a_full_disk_does_not_end_training_and_rows_are_written_later(tmp_path, monkeypatch):
    disk, model = Disk(monkeypatch), model_of()

    def before(step):
        disk.full = 4 <= step <= 8
        if step == 8:
            assert steps_of(recorded(tmp_path / "r")) == [1, 2, 3]
            assert sorted(gaps_of(recorded(tmp_path / "r"))) == [4, 5, 6, 7]

    with pytest.warns(UserWarning, match="No space left on device") as told:
        run = train(model, 12, before, out=tmp_path / "r")
    assert len(told) == 1
    assert steps_of(run.result) == steps_of(recorded(tmp_path / "r")) == list(range(1, 13))
    assert gaps_of(run.result) == gaps_of(saddles.load(tmp_path / "r")) == gaps_of(recorded(tmp_path / "r")) == {}


def test_a_disk_that_stays_full_leaves_the_result_in_memory_and_what_was_written(tmp_path, monkeypatch):
    disk, model = Disk(monkeypatch), model_of()

    def before(step):
        disk.full = step > 3

    with pytest.warns(UserWarning, match=r"Training goes on") as told:
        run = train(model, 6, before, out=tmp_path / "r")
    assert len(told) == 1
    assert steps_of(run.result) == [1, 2, 3, 4, 5, 6]
    stored = recorded(tmp_path / "r")
    assert steps_of(stored) == [1, 2, 3]
    assert sorted(gaps_of(stored)) == [4, 5, 6]


@pytest.mark.parametrize("times", [1, 99])
def test_a_killed_measuring_process_is_replaced(tmp_path, monkeypatch, times):
    """Killed once, nothing is missing; killed at every measurement, all of it is, and training has not noticed."""
    killed = []

    class Doomed(backends.Worker):  # pyright: ignore[reportPrivateImportUsage]
        def call(self, message):  # pyright: ignore[reportIncompatibleMethodOverride]
            if len(killed) < times:
                killed.append(self.pid)
                os.kill(self.pid, signal.SIGKILL)
            return super().call(message)

    monkeypatch.setattr(backends, "Worker", Doomed)
    model = model_of()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = train(model, 2, out=tmp_path / "r", process=True)
    if times == 1:
        assert (steps_of(run.result), gaps_of(run.result), [*told]) == ([1, 2], {}, [])
        return
    assert len(set(killed)) == 4
    assert len(told) == 1
    assert "Training goes on" in str(told[0].message)
    stored = saddles.load(tmp_path / "r")
    assert steps_of(stored) == []
    assert sorted(gaps_of(stored)) == sorted(gaps_of(recorded(tmp_path / "r"))) == [1, 2]
    assert all("The worker process ended" in why for why in gaps_of(stored).values())


def test_what_fails_in_the_background_is_a_gap(monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("saddles.probe.measuring.measure_heads", broken)
    model = model_of()
    with pytest.warns(UserWarning, match=r"step 1 .*ZeroDivisionError: of ours.*Training goes on.*`gaps`") as told:
        run = train(model, 3)
    assert len(told) == 1
    assert steps_of(run.result) == []
    assert sorted(gaps_of(run.result)) == [1, 2, 3]
    assert status_of(run.result).ok


def test_added_tokens_cost_their_matrix_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    model = small_models.gpt2()

    def before(step):
        if step == 2:
            model.resize_token_embeddings(small_models.WORDS + 3, mean_resizing=False)

    with pytest.warns(UserWarning, match=r"transformer\.wte\.weight.*Training goes on") as told:
        train(model, 3, before, out=tmp_path / "r", modules=True)
    assert len(told) == 1
    tree = saddles.load(tmp_path / "r")
    assert steps_of(tree) == [1, 2, 3]
    assert np.isfinite(tree["heads"]["stable_rank"].values).all()
    ranks = tree["modules"]["stable_rank"]
    lost = ranks.sel(module="transformer.wte.weight").values
    assert np.isfinite(lost).tolist() == [True, False, False]
    assert np.isfinite(ranks.drop_sel(module="transformer.wte.weight").values).all()
    gaps = gaps_of(tree)
    assert sorted(gaps) == [2, 3]
    assert gaps[2] == (
        f"transformer.wte.weight has shape ({small_models.WORDS + 3}, {small_models.WIDTH}) instead of "
        f"({small_models.WORDS}, {small_models.WIDTH})"
    )


def test_a_replaced_parameter_is_followed():
    """Also where its whole module was replaced."""
    model = model_of()
    layer, start = model.blocks[0]["attn"], copy.deepcopy(model)
    with record(model, every=1) as run:
        layer.qkv.weight = torch.nn.Parameter(2 * layer.qkv.weight.detach())
        run.step()
        layer.qkv = copy.deepcopy(layer.qkv)
        move(layer)
        run.step()
        kept = copy.deepcopy(model)
        run.flush()
    expected = probe.spectra(kept, start)["heads"]["frobenius_norm"].values[0]  # pyright: ignore[reportIndexIssue]
    np.testing.assert_allclose(run.result["heads"]["frobenius_norm"].values[1], expected, rtol=1e-6)
    norms = run.result["heads"]["frobenius_norm"].values[:, 0]
    assert (norms[0] > 0).all()
    assert (norms[1] > norms[0]).all()
    assert gaps_of(run.result) == {}


def test_a_parameter_that_is_gone_is_a_gap():
    model = model_of()
    weight = model.blocks[0]["attn"].qkv.weight

    def before(step):
        if step == 1:
            del model.blocks[0]["attn"].qkv.weight
        else:
            model.blocks[0]["attn"].qkv.weight = weight

    with pytest.warns(UserWarning, match=r"blocks\.0\.attn\.qkv\.weight is no longer in the model"):
        run = train(model, 2, before)
    ranks = run.result["heads"]["frobenius_norm"].values
    assert np.isnan(ranks[0, 0]).all()
    assert np.isfinite(ranks[0, 1:]).all()
    assert np.isfinite(ranks[1]).all()
    assert sorted(gaps_of(run.result)) == [1]


def test_two_recorders_on_one_folder(tmp_path):
    model = model_of()
    with record(model, every=1, out=tmp_path / "r") as run:
        run.step()
        run.flush()
        for options in ({}, {"step": 1}):
            with pytest.raises(SaddlesError, match=r"^Another process is writing to .*r\. Wait until it ends"):
                record(model, every=1, out=tmp_path / "r", **options).__enter__()
        run.step()
    assert steps_of(saddles.load(tmp_path / "r")) == [1, 2]
    assert not (tmp_path / "r" / ".lock").exists()
    with record(model, every=1, out=tmp_path / "r", step=2) as run:
        run.step()
    assert steps_of(run.result) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # JAX warns of every fork where another test has loaded it
def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    """As the workers of a data loader, which live on when the lock is given back."""
    with hold(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    taken = False
    try:
        with hold(tmp_path):
            taken = True
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert taken


def test_a_trainer_that_broke_off_trains_again_in_its_folder(tmp_path):
    """The trainer of transformers does not tell its callbacks of an error."""
    ranks = RecordingCallback(every=1)
    for _ in range(2):
        ranks.begin(model_of(), tmp_path / "r", 0)
        assert ranks.run is not None
        ranks.run.step()
    ranks.run.finish()  # pyright: ignore[reportOptionalMemberAccess]
    assert steps_of(ranks.result) == [1]


def test_training_that_died_before_its_first_checkpoint_starts_again_in_its_folder(tmp_path):
    def dies(step):
        if step == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(model_of(), 5, dies, out=tmp_path / "r")
    with pytest.raises(SaddlesError, match="never overwritten"):
        train(model_of(seed=1), 2, out=tmp_path / "r")
    again = train(model_of(), 2, out=tmp_path / "r")
    assert steps_of(again.result) == [1, 2]
    assert len([*tmp_path.rglob("superseded/1/step-*.npz")]) == 4
    assert status_of(again.result).ending == Ending.FINISHED
    with pytest.raises(SaddlesError, match="never overwritten"):  # one that has ended well
        train(model_of(), 1, out=tmp_path / "r")


def damage_row(folder, text):
    (folder / "rows" / "step-2.npz").write_bytes(text)


def odd_row(folder, text):
    (folder / "rows" / "step-2.npz").rename(folder / "rows" / f"step-{'9' * 200}.npz")


def other_row(folder, text):
    (folder / "rows" / "step-x.npz").write_bytes(text)


def damage_layout(folder, text):
    (folder / "layout.json").write_bytes(text)


def damage_reference(folder, text):
    (folder / "reference.safetensors").write_bytes(text)


def damage_start(folder, text):
    (folder / "initial.npz").write_bytes(text)


def other_shapes(folder, text):
    np.savez(folder / "rows" / "step-2.npz", **{"heads.stable_rank": np.ones(3)})  # pyright: ignore[reportArgumentType]


def no_numbers(folder, text):
    np.savez(folder / "rows" / "step-2.npz", **{"heads.stable_rank": np.array(["x"])})  # pyright: ignore[reportArgumentType]


def damage_gaps(folder, text):
    (folder / "gaps.json").write_bytes(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("whole") / "r", model_of()
    with record(model, every=1, out=folder) as run:
        for _ in range(2):
            move(model)
            run.step()
    return folder


@pytest.mark.parametrize("text", [b"ten bytes!", b"[" * 100_000, b'{"heads": 3}', b"PK\x03\x04" + b"x" * 30])
@pytest.mark.parametrize("damage", [damage_row, odd_row, other_row, damage_layout, damage_reference, damage_start,
                                    other_shapes, no_numbers, damage_gaps])  # fmt: skip
def test_damaged_recordings_are_one_sentence(tmp_path, whole, damage, text):
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    damage(folder, text)
    told = []
    for read in (lambda: recorded(folder), lambda: train(model_of(), 1, out=folder, step=2)):
        try:
            read()
        except SaddlesError as error:
            told.append(str(error))
    assert told  # weights at the start are not read to show a recording
    assert all("/r/" in text and "\n" not in text for text in told)
