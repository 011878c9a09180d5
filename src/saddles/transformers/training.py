"""Train a model and record its heads on the way; a run may be stopped anywhere and resumed exactly."""

import contextlib
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from saddles.core.status import Status
from saddles.errors import SaddlesError
from saddles.probe.recording.recorder import record
from saddles.training import processes
from saddles.training.checkpoint import Checkpoint, History, Row
from saddles.training.device import mixed_precision, within_memory
from saddles.training.graphs import Work
from saddles.training.loop import STORE_EVERY, Loop
from saddles.training.update import Update, put_rate_on_device, set_rate
from saddles.transformers.feed import Feed
from saddles.transformers.recipe import Recipe

TESTED = ("test_loss", "test_accuracy")
RECORDING = "recording"
"""Folder of the probe's recording, beside the checkpoint."""


@dataclass(frozen=True, eq=False)
class Setup:
    """One training run, ready to start."""

    model: nn.Module
    feed: Feed
    recipe: Recipe
    outputs: int
    """Classes, or tokens of the vocabulary."""


def train(
    model: nn.Module,
    feed: Feed,
    recipe: Recipe,
    *,
    every: int,
    spectra: int | None = None,
    evaluate_every: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    store_every: float = STORE_EVERY,
    compiled: bool | None = None,
    title: str = "training",
) -> xr.DataTree:
    """Train and return the recording of the probe, with losses, accuracy and learning rate beside it.

    Args:
        model: on its device already; on a GPU it runs in bfloat16, its weights stay float32, and a step (compiled loss,
            gradients, optimiser) is one CUDA graph.
        feed: what each step sees.
        every: steps from one measurement to the next.
        spectra: steps from one whole spectrum to the next, a multiple of `every`; None keeps one at every measurement.
        evaluate_every: steps from one test to the next, a multiple of `every`; None tests at every measurement.
        folder: holds the checkpoint and the recording; a run that is there already is resumed, from its own weights.
            One of another recipe or batch, another length of an epoch, or another seed or other data of the feed is
            refused: each needs its own folder.
        store_every: seconds from one checkpoint to the next; checkpoints are written at measurements.
        compiled: None compiles on a GPU only.
        title: of the progress bar.

    Under a launcher such as torchrun every process takes its share of each batch, and only the first one returns a
    result that is not empty. A loss that is not a number stops the run; what was measured until then is kept, and the
    status says so. The first Ctrl-C or SIGTERM is deferred until the step is whole and stored.
    """
    processes.join()
    _check(feed, recipe, every, evaluate_every)
    gpu = next(model.parameters()).device.type == "cuda"
    optimiser = recipe.build(model.parameters(), gpu)
    place = None if folder is None else Path(folder)
    checkpoint, history = _restored(place, model, optimiser, _identity(recipe, feed))
    recording = None if place is None else place / RECORDING
    stepper = _Stepper(model, feed, recipe, optimiser, gpu if compiled is None else compiled, evaluate_every or every)
    with within_memory(f"split batches with accumulate={2 * recipe.accumulate}, or lower batch"):
        if gpu and processes.count() == 1:
            stepper.capture(history.step)
        with (
            _without_warnings_of_waiting(),
            record(model, every, spectra=spectra, out=recording, step=history.step) as recorder,
        ):

            def step(number: int) -> Tensor:
                loss = stepper.step(number)
                recorder.step(number + 1)
                return loss

            measured = {*range(every, recipe.steps, every), recipe.steps}
            loop = Loop(
                recipe.steps, step, stepper.observe, measured, checkpoint, store_every, recorder.flush, title=title
            )
            status = loop.run(history)
    return xr.DataTree() if processes.rank() else _with_curves(recorder.result, history, feed, recipe, status)


def _identity(recipe: Recipe, feed: Feed) -> str:
    """What a resumed run must share; `accumulate` may change, where memory ran out: the gradient is the same."""
    # The start is not among it: after Ctrl-C a notebook passes the model as the interrupted run left it.
    draws = f"seed={getattr(feed, 'seed', None)}, data={getattr(feed, 'data', None)}"
    return f"{replace(recipe, accumulate=1)}, batch={feed.size}, epoch={feed.steps}, {draws}"


def _restored(
    folder: Path | None, model: nn.Module, optimiser: torch.optim.Optimizer, run: str
) -> tuple[Checkpoint, History]:
    """The checkpoint of a folder, and what the run has done so far, put back into model and optimiser."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    file = None if folder is None else folder / "checkpoint.pt"
    checkpoint = Checkpoint(file, {"model": model, "optimiser": optimiser}, run)
    history = checkpoint.restore(next(model.parameters()).device)
    if folder is not None and history.step == 0 and processes.rank() == 0:
        # Killed before the first checkpoint: rows of steps that are taken again must not stand in the recording.
        shutil.rmtree(folder / RECORDING, ignore_errors=True)
    return checkpoint, history


def _check(feed: Feed, recipe: Recipe, every: int, evaluate_every: int | None) -> None:
    parts = recipe.accumulate * processes.count()
    if feed.size % parts:
        # Parts of different sizes would weigh their samples differently, and the gradient would be another one.
        raise SaddlesError.must_be(
            "batch",
            f"a multiple of {parts} (accumulate={recipe.accumulate}, {processes.count()} processes)",
            feed.size,
        )
    if every < 1:
        raise SaddlesError.must_be("every", "at least 1", every)
    if evaluate_every is not None and (evaluate_every < 1 or evaluate_every % every):
        raise SaddlesError.must_be("evaluate_every", f"a multiple of every={every}", evaluate_every)


class _Stepper:
    """Takes steps and tests the model."""

    def __init__(
        self,
        model: nn.Module,
        feed: Feed,
        recipe: Recipe,
        optimiser: torch.optim.Optimizer,
        compiled: bool,
        evaluate_every: int,
    ) -> None:
        self.model, self.feed, self.recipe, self.optimiser = model, feed, recipe, optimiser
        self.device, self.evaluate_every = next(model.parameters()).device, evaluate_every
        # With the loss compiled too, 50,257 logits per token are not written in float32. What is shared between
        # processes is compiled before it is wrapped, and its loss is not.
        alone = processes.count() == 1
        runner = torch.compile(model) if compiled and not alone else model
        assert isinstance(runner, nn.Module)
        shared = processes.shared(runner)
        loss = torch.compile(feed.loss, dynamic=False) if compiled and alone else feed.loss
        self.advance: Work = Update(
            lambda *batch: loss(shared, *batch),
            optimiser,
            self.device,
            recipe.accumulate,
            lambda: processes.without_exchange(shared),
            recipe.clip,
        )

    def capture(self, number: int) -> None:
        """Replay the step as a CUDA graph from here on."""
        assert isinstance(self.advance, Update)
        put_rate_on_device(self.optimiser)
        self.advance = self.advance.captured(self.batch(number))

    def step(self, number: int) -> Tensor:
        """Update the model once; returns the mean loss of this process' share of the batch."""
        set_rate(self.optimiser, self.recipe.rate_at(number))
        return self.advance(*self.batch(number))

    def batch(self, number: int) -> list[Tensor]:
        """The tensors of a step, part after part."""
        parts = self.recipe.accumulate
        return [tensor for part in range(parts) for tensor in self.feed.batch(number, processes.share(part, parts))]

    def observe(self, steps: int) -> Row:
        """Test the model, if it is time to."""
        if steps % self.evaluate_every and steps != self.recipe.steps:
            return {}
        self.model.eval()
        with torch.no_grad(), mixed_precision(self.device):
            tested = self.feed.evaluate(self.model)
        self.model.train()
        return tested


def _with_curves(tree: xr.DataTree, history: History, feed: Feed, recipe: Recipe, status: Status) -> xr.DataTree:
    """The recording with loss, test results and learning rate at its steps."""
    heads = tree["heads"].to_dataset()
    steps = heads["step"].values
    curves = {"train_loss": [history.losses.get(int(step), [math.nan])[0] for step in steps]}
    curves |= {name: [history.rows.get(int(step), {}).get(name, math.nan) for step in steps] for name in TESTED}
    curves["rate"] = [recipe.rate_at(int(step) - 1) for step in steps]
    heads = heads.assign({name: ("time", np.array(values, dtype=float)) for name, values in curves.items()})
    heads = heads.assign_coords(epoch=("time", steps / feed.steps))
    heads.attrs["status"] = tree.attrs["status"] = str(status)
    tree["heads"] = xr.DataTree(heads)
    return tree


@contextlib.contextmanager
def _without_warnings_of_waiting() -> Iterator[None]:
    """No warning where training waits for measurements (how long is in `waited_s`, and small models always do)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "training waits for measurements")
        yield
