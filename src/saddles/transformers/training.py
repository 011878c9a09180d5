"""Train a model, watch its heads, and be able to stop anywhere."""

import contextlib
import math
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from saddles.core.trajectory import DIVERGED, FINISHED
from saddles.errors import SaddlesError
from saddles.probe.recording.recorder import Recorder, record
from saddles.runtime.progress import bar
from saddles.training.stepping import fitting, patient, within_memory, write_checkpoint
from saddles.transformers import processes
from saddles.transformers.feed import Feed
from saddles.transformers.recipe import Recipe

NAMES = ("train_loss", "test_loss", "test_accuracy", "rate")


@dataclass
class _State:
    """Everything a run needs to go on, besides the recording."""

    model: Any
    optimiser: Any
    step: int = 0
    rows: dict[int, list[float]] = field(default_factory=dict)
    sums: Any = None
    since: int = 0

    def store(self, file: Path) -> None:
        """Write it, all or nothing."""
        parts = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "sums": self.sums}
        write_checkpoint(parts | {"step": self.step, "rows": self.rows, "since": self.since}, file)

    def restore(self, file: Path, device: Any) -> None:
        """Take up what was stored."""
        with fitting(file):
            stored = torch.load(file, map_location=device, weights_only=True)
            self.model.load_state_dict(stored["model"])
            self.optimiser.load_state_dict(stored["optimiser"])
            self.step, self.rows = stored["step"], stored["rows"]
            self.sums, self.since = stored["sums"].to(device), stored["since"]


def train(
    model: Any,
    feed: Feed,
    recipe: Recipe,
    *,
    every: int,
    evaluate_every: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    store_every: float = 60.0,
    compiled: bool | None = None,
    title: str = "training",
) -> xr.DataTree:
    """Train and return the recording of the probe, with losses, accuracy and learning rate beside it.

    Args:
        model: on its device already; on a GPU it is compiled and runs in bfloat16, its weights stay float32.
        feed: what each step sees.
        every: steps from one measurement to the next.
        evaluate_every: steps from one test to the next, a multiple of `every`; None tests at every measurement.
        folder: holds the checkpoint and the recording; what is there already is gone on with.
        store_every: seconds from one checkpoint to the next; checkpoints are written at measurements.
        compiled: None compiles on a GPU only.

    Under a launcher such as torchrun every process takes its share of each batch, and only the first one's result
    holds anything. A loss that is not a number stops the run; what was seen until then is kept, and the status says so.
    The first Ctrl-C is held back until the step is whole and stored.
    """
    processes.join()
    _check(feed, recipe, every, evaluate_every)
    device = next(model.parameters()).device
    gpu = device.type == "cuda"
    state = _State(model, recipe.build(model.parameters(), gpu), sums=torch.zeros((), device=device))
    file, recording = _places(Path(folder) if folder is not None else None)
    if file is not None and file.exists():
        state.restore(file, device)
    elif recording is not None and processes.rank() == 0:
        shutil.rmtree(recording, ignore_errors=True)  # begun, but killed before the first checkpoint
    runner = torch.compile(model) if (gpu if compiled is None else compiled) else model
    loop = _Loop(state, processes.shared(runner), runner, feed, recipe, every, evaluate_every or every, gpu)
    with (
        within_memory(f"split batches with accumulate={2 * recipe.accumulate}, or lower batch"),
        _unhurried(),
        record(model, every, out=recording, step=state.step) as run,
    ):
        status = loop.go(run, file, store_every, title)
    return _joined(run, loop, status)


def _places(folder: Path | None) -> tuple[Path | None, Path | None]:
    if folder is None:
        return None, None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "checkpoint.pt", folder / "recording"


def _check(feed: Feed, recipe: Recipe, every: int, evaluate_every: int | None) -> None:
    parts = recipe.accumulate * processes.count()
    if feed.size % parts:
        raise SaddlesError.about(
            f"batches of {feed.size} for {processes.count()} processes and accumulate={recipe.accumulate} came",
            "parts of a batch have one size, or the mean over them is not that of the batch",
            f"use a batch that is a multiple of {parts}",
        )
    if every < 1 or (evaluate_every or every) % every:
        raise SaddlesError.about(
            f"every={every}, evaluate_every={evaluate_every} came", "tests fall on measurements", "use a multiple"
        )


@dataclass
class _Loop:
    state: _State
    shared: Any
    plain: Any
    feed: Feed
    recipe: Recipe
    every: int
    evaluate_every: int
    gpu: bool

    def go(self, run: Recorder, file: Path | None, store_every: float, title: str) -> str:
        """Step until the end; returns the status."""
        state, stored = self.state, time.monotonic()
        with bar(title, self.recipe.steps) as progress, patient() as asked:
            progress.reach(state.step)
            while state.step < self.recipe.steps:
                self._step()
                run.step(state.step)
                if state.step % self.every == 0 or state.step == self.recipe.steps:
                    if not self._look():
                        return f"{DIVERGED} at step {state.step}: the loss is not a number; try a smaller rate"
                    progress.reach(state.step)
                    if time.monotonic() - stored > store_every:
                        self._store(run, file)
                        stored = time.monotonic()
                if asked:
                    if processes.count() == 1:  # the others may be at another step
                        self._store(run, file)
                    raise KeyboardInterrupt
        self._store(run, file)
        return FINISHED

    def _store(self, run: Recorder, file: Path | None) -> None:
        if file is None or processes.rank():
            return
        run.flush()
        self.state.store(file)

    def _step(self) -> None:
        state = self.state
        for group in state.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(state.step)
        state.optimiser.zero_grad(set_to_none=True)
        parts = self.recipe.accumulate
        for part in range(parts):
            share = slice(processes.rank() * parts + part, None, processes.count() * parts)
            with contextlib.nullcontext() if part == parts - 1 else processes.quiet(self.shared):
                with self._precision():
                    loss = self.feed.loss(self.shared, state.step, share) / parts
                loss.backward()
            state.sums += loss.detach()
        state.optimiser.step()
        state.step, state.since = state.step + 1, state.since + 1

    def _look(self) -> bool:
        """Write a row; False where the loss is not a number."""
        state = self.state
        mean = processes.averaged(state.sums) / max(state.since, 1)
        tested = {"test_loss": math.nan, "test_accuracy": math.nan}
        if math.isfinite(mean) and (state.step % self.evaluate_every == 0 or state.step == self.recipe.steps):
            self.plain.eval()
            with torch.no_grad(), self._precision():
                tested = self.feed.evaluate(self.plain)
            self.plain.train()
        rate = self.recipe.rate_at(state.step - 1)
        state.rows[state.step] = [mean, tested["test_loss"], tested["test_accuracy"], rate]
        state.sums.zero_()
        state.since = 0
        return math.isfinite(mean)

    def _precision(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16) if self.gpu else contextlib.nullcontext()


def _joined(run: Recorder, loop: _Loop, status: str) -> xr.DataTree:
    if processes.rank() != 0:
        return xr.DataTree()
    tree = run.result
    heads = tree["heads"].to_dataset()
    steps = heads["step"].values
    rows = np.array([loop.state.rows.get(int(step), [math.nan] * len(NAMES)) for step in steps])
    rows = rows.reshape(len(steps), len(NAMES))
    heads = heads.assign({name: ("time", rows[:, i]) for i, name in enumerate(NAMES)})
    heads = heads.assign_coords(epoch=("time", steps / loop.feed.steps))
    heads.attrs["status"] = status
    tree["heads"] = xr.DataTree(heads)
    tree.attrs["status"] = status
    return tree


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """No warning where training waits for measurements (how long is in `waited_s`, and small models always do)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "training waits for measurements")
        yield
