"""Train a model, watch its heads, and be able to stop anywhere."""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from saddles.core.errors import SaddlesError
from saddles.core.progress import bar
from saddles.core.trajectory import FINISHED
from saddles.probe.recorder import Recorder, watch
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
        draft = file.with_name(f".{file.name}")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "step": self.step,
                "rows": self.rows,
                "sums": self.sums,
                "since": self.since,
            },
            draft,
        )
        os.replace(draft, file)

    def restore(self, file: Path, device: Any) -> None:
        """Take up what was stored."""
        try:
            stored = torch.load(file, map_location=device, weights_only=True)
            self.model.load_state_dict(stored["model"])
        except (RuntimeError, KeyError, EOFError) as error:
            raise SaddlesError.about(
                f"{file} does not fit this model ({str(error).splitlines()[0]})",
                "a run goes on with the settings it began with",
                "start anew with --fresh",
            ) from error
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
        store_every: seconds from one checkpoint to the next.
        compiled: None compiles on a GPU only.

    Under a launcher such as torchrun every process takes its share of each batch. A loss that is not a number stops
    the run; what was seen until then is kept, and the status says so.
    """
    device = next(model.parameters()).device
    gpu = device.type == "cuda"
    place = Path(folder) if folder is not None else None
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    state = _State(model, recipe.build(model.parameters(), gpu), sums=torch.zeros((), device=device))
    file = place / "checkpoint.pt" if place is not None else None
    if file is not None and file.exists():
        state.restore(file, device)
    runner = torch.compile(model) if (gpu if compiled is None else compiled) else model
    loop = _Loop(state, _shared(runner), runner, feed, recipe, every, evaluate_every or every, gpu)
    recording = place / "recording" if place is not None else None
    with _kindly(recipe), watch(model, every, out=recording, step=state.step) as run:
        status = loop.go(run, file, store_every, title)
    return _joined(run, loop, status)


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
        with bar(title, self.recipe.steps) as progress:
            progress.reach(state.step)
            try:
                while state.step < self.recipe.steps:
                    self._step()
                    run.step(state.step)
                    if state.step % self.every == 0 or state.step == self.recipe.steps:
                        if not self._look():
                            return f"stopped: the loss is not a number at step {state.step}: try a smaller rate"
                        progress.reach(state.step)
                    if file is not None and time.monotonic() - stored > store_every:
                        self._store(run, file)
                        stored = time.monotonic()
            except KeyboardInterrupt:
                if file is not None:
                    self._store(run, file)
                raise
        if file is not None:
            self._store(run, file)
        return FINISHED

    def _store(self, run: Recorder, file: Path) -> None:
        run.flush()
        if _rank() == 0:
            self.state.store(file)

    def _step(self) -> None:
        state = self.state
        for group in state.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(state.step)
        state.optimiser.zero_grad(set_to_none=True)
        parts = self.recipe.accumulate
        for part in range(parts):
            share = slice(_rank() * parts + part, None, _processes() * parts)
            waits = contextlib.nullcontext() if part == parts - 1 else _quiet(self.shared)
            with waits, self._precision():
                loss = self.feed.loss(self.shared, state.step, share) / parts
            loss.backward()
            state.sums += loss.detach()
        state.optimiser.step()
        state.step, state.since = state.step + 1, state.since + 1

    def _look(self) -> bool:
        """Write a row; False where the loss is not a number."""
        state = self.state
        mean = _averaged(state.sums) / max(state.since, 1)
        tested = {"test_loss": math.nan, "test_accuracy": math.nan}
        if math.isfinite(mean) and (state.step % self.evaluate_every == 0 or state.step == self.recipe.steps):
            self.plain.eval()
            with torch.no_grad(), self._precision():
                tested = self.feed.evaluate(self.plain)
            self.plain.train()
        state.rows[state.step] = [
            mean, tested["test_loss"], tested["test_accuracy"], self.recipe.rate_at(state.step - 1),
        ]  # fmt: skip
        state.sums.zero_()
        state.since = 0
        return math.isfinite(mean)

    def _precision(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16) if self.gpu else contextlib.nullcontext()


def _joined(run: Recorder, loop: _Loop, status: str) -> xr.DataTree:
    if _rank() != 0:
        return xr.DataTree()
    tree = run.result
    heads = tree["heads"].to_dataset()
    steps = heads["step"].values
    rows = np.array([loop.state.rows.get(int(step), [math.nan] * len(NAMES)) for step in steps]).reshape(len(steps), -1)
    heads = heads.assign({name: ("time", rows[:, i]) for i, name in enumerate(NAMES)})
    heads = heads.assign_coords(epoch=("time", steps / loop.feed.steps))
    heads.attrs["status"] = status
    tree["heads"] = xr.DataTree(heads)
    tree.attrs["status"] = status
    return tree


@contextlib.contextmanager
def _kindly(recipe: Recipe) -> Iterator[None]:
    """Say what to lower where memory ran out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SaddlesError.about(
            f"the device's memory ran out ({str(error).splitlines()[0]})",
            "model, optimiser and a batch must fit",
            f"split batches with accumulate={2 * recipe.accumulate}, or lower batch",
        ) from error


def _rank() -> int:
    return torch.distributed.get_rank() if _launched() else 0


def _processes() -> int:
    return torch.distributed.get_world_size() if _launched() else 1


def _launched() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _shared(model: Any) -> Any:
    """The model itself, or one that averages gradients over the launcher's processes."""
    if not _launched():
        return model
    return torch.nn.parallel.DistributedDataParallel(model)


def _quiet(model: Any) -> Any:
    """No exchange of gradients for a part of a batch that is not the last."""
    return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()


def _averaged(value: Any) -> float:
    if _launched():
        value = value.clone()
        torch.distributed.all_reduce(value)
        value = value / _processes()
    return float(value)
