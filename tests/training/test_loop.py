"""The training loop on a model of one weight, whose whole course is known in closed form."""

import math
import os
import signal
import time
from functools import partial

import pytest
import torch

from saddles.core.status import FINISHED, Ending
from saddles.errors import SaddlesError
from saddles.runtime import progress
from saddles.training.checkpoint import Checkpoint, History
from saddles.training.device import generator_of, mixed_precision, within_memory
from saddles.training.loop import Loop, defer_interrupt

CPU = torch.device("cpu")
RATE = 0.1


class Descent:
    """w ← w − 0.1 w, twice as a loss: w² / 2 before the step, and its negative."""

    def __init__(self, file=None, run="one", happens=None, **options):
        self.model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.ones_(self.model.weight)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.0)
        self.happens = happens or {}
        self.observed = []
        self.checkpoint = Checkpoint(file, {"model": self.model, "optimiser": self.optimiser}, run)
        self.loop = Loop(10, self.step, self.observe, {3, 6, 10}, self.checkpoint, **options)

    def step(self, number):
        self.happens.get(number, lambda: None)()
        self.optimiser.zero_grad()
        loss = self.model.weight.square().sum() / 2
        loss.backward()
        self.optimiser.step()
        return torch.stack([loss.detach(), -loss.detach()])

    def observe(self, steps):
        self.observed.append(steps)
        return {"weight": self.model.weight.detach().clone(), "double": 2 * self.model.weight.item()}

    def run(self):
        history = self.checkpoint.restore(CPU)
        return self.loop.run(history), history


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def crash():
    raise RuntimeError("power cut")


def losses(first, last):
    """The mean of w²/2 over steps first to last − 1, w = 0.9^step."""
    return sum((1 - RATE) ** (2 * step) / 2 for step in range(first, last)) / (last - first)


def test_losses_are_means_since_the_measurement_before():
    descent = Descent()
    status, history = descent.run()
    assert status == FINISHED
    assert descent.observed == [3, 6, 10]
    for first, last in ((0, 3), (3, 6), (6, 10)):
        mean = losses(first, last)
        assert history.losses[last] == pytest.approx([mean, -mean], rel=1e-12)
        assert history.rows[last]["double"] == pytest.approx(2 * (1 - RATE) ** last, rel=1e-12)


@pytest.mark.parametrize("step", range(10))
def test_interrupted_at_any_step_and_resumed_it_is_the_same_run(tmp_path, step):
    _, whole = Descent().run()
    file = tmp_path / "deep" / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        Descent(file, happens={step: interrupt}).run()
    assert torch.load(file, weights_only=True)["step"] == step + 1
    status, history = Descent(file).run()
    assert status == FINISHED
    assert history.losses == whole.losses
    assert [float(row["weight"]) for row in history.rows.values()] == [
        float(row["weight"]) for row in whole.rows.values()
    ]


def test_a_second_interrupt_does_not_wait(tmp_path):
    """Two signals within one step: the second breaks it, and the last whole checkpoint stays."""

    def twice():
        interrupt()
        interrupt()

    file = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        Descent(file, happens={7: twice}, store_every=0.0).run()
    assert torch.load(file, weights_only=True)["step"] == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_defer_interrupt_gives_the_handlers_back(number):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with defer_interrupt() as interrupts:
        interrupt(number)
        assert interrupts == [number]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_a_run_that_a_batch_system_ends_is_stored_and_resumes(tmp_path, ctrl_c):
    """SIGTERM is what `timeout` sends; without a handler it would end the process in the middle of a step.

    What a script starts with `&` ignores Ctrl-C, and still gets it.
    """
    _, whole = Descent().run()
    file = tmp_path / "checkpoint.pt"
    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt):
            Descent(file, happens={7: partial(interrupt, signal.SIGTERM)}).run()
        assert signal.getsignal(signal.SIGINT) == ctrl_c
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.load(file, weights_only=True)["step"] == 8
    assert Descent(file).run()[1].losses == whole.losses


def test_checkpoints_are_written_at_measurements_when_it_is_time(tmp_path):
    """The recording is flushed before each one; without a crash the last one is always written."""
    flushed = []
    descent = Descent(tmp_path / "often.pt", store_every=0.0, before_store=lambda: flushed.append(1))
    descent.run()
    assert len(flushed) == 4
    with pytest.raises(RuntimeError, match="power cut"):
        Descent(tmp_path / "rarely.pt", happens={9: crash}).run()
    assert not (tmp_path / "rarely.pt").exists()


def test_a_finished_run_is_not_repeated(tmp_path):
    Descent(tmp_path / "checkpoint.pt").run()
    again = Descent(tmp_path / "checkpoint.pt", happens=dict.fromkeys(range(10), crash))
    status, history = again.run()
    assert (status, history.step, again.observed) == (FINISHED, 10, [])


def test_a_loss_that_is_not_finite_ends_the_run_at_the_next_measurement(tmp_path):
    descent = Descent(tmp_path / "checkpoint.pt")
    descent.happens[4] = lambda: descent.model.weight.data.fill_(math.inf)
    status, history = descent.run()
    assert status.ending == Ending.DIVERGED
    assert "step 6" in status.reason
    assert descent.observed == [3]
    assert list(history.losses) == [3, 6]
    assert not (tmp_path / "checkpoint.pt").exists(), "weights that are not numbers are not kept"


def test_a_budget_ends_the_run_and_it_resumes(tmp_path):
    _, whole = Descent().run()
    status, history = Descent(tmp_path / "checkpoint.pt", budget=0.0).run()
    assert (status.ending, history.step) == (Ending.STOPPED, 3)
    began = time.monotonic()
    status, history = Descent(tmp_path / "checkpoint.pt", budget=60.0).run()
    assert time.monotonic() - began < 60
    assert status == FINISHED
    assert history.losses == whole.losses


def test_steps_of_an_earlier_run_say_nothing_about_the_pace(tmp_path, monkeypatch):
    Descent(tmp_path / "checkpoint.pt", budget=0.0).run()
    told = []

    class Seen(progress.Bar):
        def close(self):
            super().close()
            told.append((self.state.done, self.state.before))

    monkeypatch.setattr(progress, "Bar", Seen)
    Descent(tmp_path / "checkpoint.pt").run()
    assert told == [(10, 3)]


def test_a_checkpoint_of_another_run_or_half_a_file_is_refused(tmp_path):
    file = tmp_path / "checkpoint.pt"
    Descent(file).run()
    with pytest.raises(SaddlesError, match=r"does not fit .*another run.*--fresh"):
        Descent(file, run="other").run()
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(SaddlesError, match="does not fit"):
        Descent(file).run()


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaddlesError, match="cannot be written"):
        Descent(tmp_path / "file" / "checkpoint.pt").run()


def test_a_result_that_is_overwritten_is_copied():
    """A CUDA graph returns the same tensor each time."""
    place, history = torch.zeros(1), History()
    for value in (1.0, 2.0, 4.0):
        history.add(place.fill_(value))
    assert history.sums is not None
    assert history.sums.item() == 7.0


def test_draws_follow_from_their_words():
    def draw(*words):
        return torch.rand(4, generator=generator_of(CPU, *words)).tolist()

    assert draw(1, 2) == draw(1, 2)
    others = [draw(*words) for words in ((1, 2), (2, 1), (1, 3), (1,), (1, 2, 0), (0, 1, 2))]
    assert len({tuple(row) for row in others}) == len(others)


def test_precision_is_whole_on_a_cpu():
    with mixed_precision(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")


def test_other_errors_pass_through_the_memory_guard():
    with pytest.raises(RuntimeError, match="power cut"), within_memory("lower batch"):
        crash()
    with pytest.raises(SaddlesError, match=r"ran out \(no room\).*lower batch"), within_memory("lower batch"):
        raise torch.OutOfMemoryError("no room")
