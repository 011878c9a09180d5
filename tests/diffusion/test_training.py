"""Training that is interrupted and resumed, and what it records."""

import math
import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr

from saddles.core.status import FINISHED, Ending, Status, status_of
from saddles.diffusion import Plan, UNetShape, make_vdm, train
from saddles.diffusion.training import _Stepper
from saddles.errors import SaddlesError
from saddles.training.checkpoint import History
from saddles.training.graphs import Replay


def trouble(monkeypatch, step, happens):
    """Let something happen at the beginning of a step, once."""
    honest = _Stepper.step
    left = [True]

    def stepped(stepper, number):
        if number == step and left:
            left.clear()
            happens(stepper)
        return honest(stepper, number)

    monkeypatch.setattr(_Stepper, "step", stepped)


def interrupt(stepper):
    os.kill(os.getpid(), signal.SIGINT)


def crash(stepper):
    raise RuntimeError("power cut")


def test_what_a_run_writes_down(parts):
    model, circles, look, plan = parts()
    run = train(model, circles, look, plan)
    assert run["step"].values.tolist() == plan.moments() == run["time"].values.astype(int).tolist()
    assert run["step"].values[-1] == 20
    assert run["output"].dims == ("time", "point", "coordinate")
    assert run["point"].values.tolist() == ["00", "01", "10", "11"]
    assert run["image"].shape == (run.sizes["time"], 4, 8, 8, 3)
    assert ((run["output"] >= 0) & (run["output"] <= 1)).all()
    assert status_of(run) == FINISHED
    assert run["time"].attrs["unit"] == "step"
    assert run.attrs["gradient_evaluations"] == 20
    np.testing.assert_allclose(run["reconstruction"][0], 0.5 * math.exp(-5) / 1e-6 / math.log(2), rtol=0.02)
    assert float(run["gamma_min"][-1]) < -5


def test_an_evaluation_is_the_classifier_on_the_samplers_images(parts):
    """By hand: draw the images of the four prompts again, and classify each alone."""
    model, circles, look, plan = parts()
    run = train(model, circles, look, plan)
    images = look.generate(model)
    assert images.shape == (8, 3, 8, 8)
    found = np.array([look.classifier.concepts(image[None])[0].numpy() for image in images]).reshape(4, 2, 2)
    np.testing.assert_allclose(run["output"].isel(time=-1), found.mean(1), atol=1e-5)
    asked = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    right = (found.round() == asked[:, None]).all(-1).mean(1)
    np.testing.assert_allclose(run["accuracy"].isel(time=-1), right)
    shown = (255 * images[::2].clamp(0, 1)).round().permute(0, 2, 3, 1)
    np.testing.assert_array_equal(run["image"].isel(time=-1), shown.numpy())


def test_same_seed_same_run_other_seed_another(parts):
    one, same = (train(*parts(), seed=3) for _ in range(2))
    xr.testing.assert_equal(one, same)
    other = train(*parts(), seed=4)
    assert not np.array_equal(one["diffusion"], other["diffusion"])


def test_a_long_enough_run_learns(parts):
    model, circles, look, plan = parts(steps=150, batch=16, images=64, evaluations=3)
    run = train(model, circles, look, plan)
    assert float(run["diffusion"][-1]) < 0.7 * float(run["diffusion"][0])


@pytest.mark.parametrize(("step", "store"), [(13, 1e9), (2, 0.0), (19, 0.0)])
def test_ctrl_c_ends_a_whole_step_and_the_run_resumes(parts, tmp_path, monkeypatch, step, store):
    whole = train(*parts())
    with monkeypatch.context() as patch:
        trouble(patch, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(*parts(), folder=tmp_path, store_every=store)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == step + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    xr.testing.assert_equal(train(*parts(), folder=tmp_path), whole)


@pytest.mark.parametrize(("step", "left"), [(0, False), (13, True)])
def test_a_crash_goes_back_to_the_last_checkpoint(parts, tmp_path, monkeypatch, step, left):
    whole = train(*parts())
    with monkeypatch.context() as patch:
        trouble(patch, step, crash)
        with pytest.raises(RuntimeError, match="power cut"):
            train(*parts(), folder=tmp_path, store_every=0)
    assert (tmp_path / "checkpoint.pt").exists() == left
    xr.testing.assert_equal(train(*parts(), folder=tmp_path), whole)
    xr.testing.assert_equal(train(*parts(), folder=tmp_path), whole)


def test_a_run_whose_time_is_up_can_be_resumed(parts, tmp_path):
    whole = train(*parts())
    part = train(*parts(), folder=tmp_path, until=0.0)
    assert status_of(part) == Status(Ending.STOPPED, "the time was up at step 1 of 20")
    assert part.sizes["time"] == 1
    xr.testing.assert_equal(train(*parts(), folder=tmp_path), whole)


def test_a_checkpoint_of_another_run_is_refused(parts, tmp_path):
    model, circles, look, plan = parts()
    train(model, circles, look, plan, folder=tmp_path)
    with pytest.raises(SaddlesError, match=r"does not fit this model .*another run"):
        train(model, circles, look, plan, folder=tmp_path, seed=5)
    with pytest.raises(SaddlesError, match="does not fit this model"):
        train(make_vdm(UNetShape(8, (4, 4), 1, 1)), circles, look, plan, folder=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"half")
    with pytest.raises(SaddlesError, match="does not fit this model"):
        train(model, circles, look, plan, folder=tmp_path)


def test_a_loss_that_is_no_number_stops_and_keeps(parts, tmp_path, monkeypatch):
    def spoil(stepper):
        stepper.model.offset.data.fill_(math.nan)

    trouble(monkeypatch, 8, spoil)
    run = train(*parts(), folder=tmp_path)
    assert status_of(run).ending == Ending.DIVERGED
    assert "step 12" in status_of(run).reason
    assert run["step"].values.tolist() == [1, 2, 6]
    assert np.isfinite(run["diffusion"]).all()


def test_a_run_that_breaks_at_once_is_still_a_trajectory(parts, monkeypatch):
    trouble(monkeypatch, 0, lambda stepper: stepper.model.offset.data.fill_(math.nan))
    run = train(*parts())
    assert status_of(run).ending == Ending.DIVERGED
    assert run.sizes["time"] == 0
    assert run["output"].shape == (0, 4, 2)


def test_memory_that_ran_out_says_what_to_lower(parts, monkeypatch):
    def full(stepper):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    trouble(monkeypatch, 1, full)
    with pytest.raises(SaddlesError, match=r"memory ran out .*lower batch below 8"):
        train(*parts())


def test_moments_are_even_in_their_root():
    moments = Plan(evaluations=50).moments()
    assert moments[0] == 100
    assert moments[-1] == 20_000
    roots = np.sqrt(moments)
    np.testing.assert_allclose(np.diff(roots), np.diff(roots).mean(), rtol=0.03)
    assert Plan(steps=3, evaluations=9).moments() == [1, 2, 3]
    dense = Plan(evaluations=50, every=50).moments()
    assert set(moments) | set(range(50, 2001, 50)) == set(dense)
    assert Plan(steps=70, evaluations=1, first=1.0, every=20, until=50).moments() == [20, 40, 70]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"rate": -1.0}, "`rate` must be positive"),
        ({"decay": -1.0}, "`decay` must be"),
        ({"first": 0.0}, "`first` must be a share of the steps"),
        ({"every": -1}, "`every` must be at least 0"),
    ],
)
def test_bad_plans_are_explained(change, words):
    with pytest.raises(SaddlesError, match=words):
        Plan(**change)


def stepper_of(parts):
    """A stepper with its optimiser, as `train` makes it."""
    model, circles, look, plan = parts()
    optimiser = torch.optim.AdamW(model.parameters(), lr=plan.rate)
    return _Stepper(model, optimiser, circles, look, plan, 0)


def test_where_graphs_fail_training_continues_without(parts, monkeypatch):
    class Broken:
        def __init__(self, *words):
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("saddles.training.graphs.Replay", Broken)
    stepper = stepper_of(parts)
    with pytest.warns(UserWarning, match=r"without a CUDA graph, .*not permitted when stream is capturing\)"):
        stepper.capture()
    assert torch.isfinite(stepper.step(0)).all()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_capture_leaves_weights_and_optimiser_as_they_were(parts, monkeypatch, steps):
    """The runs before a capture train the model; here they are made on the CPU, without a capture."""

    def warmed(replay, work):
        for _ in range(3):
            replay.result = work(*replay.inputs)

    monkeypatch.setattr(Replay, "_capture", warmed)
    one, other = stepper_of(parts), stepper_of(parts)
    for stepper in (one, other):
        for number in range(steps):
            stepper.step(number)
    plain = one.advance
    one.capture()
    assert isinstance(one.advance, Replay)
    one.advance, one.denoiser = plain, one._denoise
    for left, right in zip(one.step(steps), other.step(steps), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_step_compiles_as_one_graph_with_the_same_numbers(parts, monkeypatch):
    """Traced and differentiated by the compiler, but run without its kernels, which take a minute to make."""
    tracing, traced = partial(torch.compile, backend="aot_eager", fullgraph=True), []
    monkeypatch.setattr(torch, "compile", lambda work, **options: traced.append(work) or tracing(work, **options))
    runs = [train(*parts(), compiled=compiled) for compiled in (False, True)]
    assert len(traced) == 1
    for name in ("diffusion", "output"):
        np.testing.assert_allclose(runs[1][name], runs[0][name], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU, and torch sees none here")
@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_give_the_same_numbers(parts, compiled):
    """Ten steps and some images with and without graphs, on a GPU."""
    runs = []
    for graphs in (False, True):
        model, circles, look, plan = parts()
        model.to("cuda")
        look = replace(look, classifier=look.classifier.to("cuda"))
        optimiser = torch.optim.AdamW(model.parameters(), lr=plan.rate, fused=True, capturable=True)
        stepper = _Stepper(model, optimiser, circles, look, plan, 0, compiled and graphs)
        if graphs:
            stepper.capture()
            assert isinstance(stepper.advance, Replay)
        history = History()
        for number in range(10):
            history.add(stepper.step(number))
        assert history.sums is not None
        runs.append((history.sums.cpu(), look.generate(model, stepper.denoiser).cpu()))
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_a_batch_is_a_function_of_its_step(parts):
    one, other = stepper_of(parts), stepper_of(parts)
    one.batch(0)
    for left, right in zip(one.batch(3), other.batch(3), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(one.batch(3), one.batch(4), strict=True):
        assert not torch.equal(left, right)
