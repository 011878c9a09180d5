"""Record the ranks of a model while it trains.

    with saddles.probe.watch(model, every=50) as run:
        for batch in batches:
            ...
            optimizer.step()
            run.step()
    run.result

Every `every` steps the watched weights are copied, and a process (of a model on a GPU) or threads measure the
copies, in order. The loop waits only when `pending` copies are still being measured.
"""

import os
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.trajectory import FINISHED
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import PRODUCTS, Layout
from saddles.probe.measuring import Row, label, measure_initial, need_heads
from saddles.probe.recording.backends import Meter, Process, Threads
from saddles.probe.recording.journal import Journal
from saddles.probe.recording.snapshot import Buffers, Courier, buffers_for
from saddles.probe.threads import calm_pool, spare_cores
from saddles.probe.weights.live import heads, parameters, plain_name
from saddles.probe.weights.sharding import is_sharded

PATIENCE = 1.0
"""Seconds that training may wait in all before it is told."""

Headline = dict[str, float]


def watch(
    model: Any,
    every: int = 50,
    *,
    out: str | os.PathLike[str] | None = None,
    step: int = 0,
    reference: Any = None,
    modules: bool = False,
    pending: int = 2,
    process: bool | None = None,
) -> "Recorder":
    """Record the ranks of a model's heads while it trains; use it in a `with` block and call `run.step()`.

    Args:
        model: a torch.nn.Module, also sharded with FSDP2 (every process must watch and step).
        every: steps from one measurement to the next; the last step is measured too.
        out: a folder that gets every measurement as it is made, and the whole as Zarr at the end. A
            recording that is there already is gone on with: its reference is used, and rows after
            `step` are put aside.
        step: how many steps the model has been trained already, as when resuming.
        reference: the model at the start, or its state dict; without it, the model as it is now.
        modules: measure the plain matrices too; this costs more and holds a copy of the whole model.
        pending: how many copies of the watched weights may wait for their turn.
        process: measure in a process of its own (a further copy of the reference); None does so for a model on a GPU.
    """
    if every < 1 or pending < 1 or step < 0:
        raise SaddlesError.about(
            f"every={every}, pending={pending}, step={step} came",
            "the first two are at least 1, step at least 0",
            "try every=50",
        )
    return Recorder(model, every, Journal(out) if out is not None else None, step, reference, modules, pending, process)


class Recorder:
    """A recording in progress: see `watch`."""

    def __init__(
        self,
        model: Any,
        every: int,
        journal: Journal | None,
        step: int,
        reference: Any,
        modules: bool,
        pending: int,
        process: bool | None,
    ) -> None:
        self.layout: Layout = heads(model)
        need_heads(self.layout)
        self.every, self.at, self._began = every, step, step
        self.waited = 0.0
        self._modules, self._pending, self._apart = modules, pending, process
        names = self.layout.parameters() if modules else self.layout.head_parameters()
        live = parameters(model)
        self._watched = {name: live[name] for name in names}
        self._journal = journal
        self._given = reference
        self._rows: dict[int, Row] = {}
        self._news: queue.SimpleQueue[tuple[int, Headline]] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[Buffers] = queue.SimpleQueue()
        self._jobs: list[Future[None]] = []
        self._lock = threading.Lock()
        self._result: xr.DataTree | None = None
        self._finished = self._warned = self._owes = False
        self._taking_part = _is_first_process()

    def __enter__(self) -> "Recorder":
        """Keep the reference, or take up an earlier recording, and start who measures."""
        self._courier = Courier(self._watched)
        if not self._taking_part:
            if self._sharded():
                self._courier.take_part()
            return self
        self._stack = ExitStack()
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _begin(self) -> None:
        first, *copies = [self._new_buffers() for _ in range(1 + self._pending)]
        self._courier.send(first)
        first.wait()
        self._pool = self._stack.enter_context(calm_pool(spare_cores()))
        self._turns = self._stack.enter_context(calm_pool(1))
        self._open(first)
        if self._owes:
            copies[0].block.copy_(first.block)
        for name, tensor in first.tensors.items():
            if self._reference[name] is not tensor:
                tensor.copy_(self._reference[name])
        self._reference = first.tensors
        self._meter = self._stack.enter_context(closing(self._new_meter(first, copies)))
        if self._owes:
            self._jobs.append(self._turns.submit(self._measure, self._began, copies.pop(0)))
        for buffers in copies:
            self._free.put(buffers)

    def _new_buffers(self) -> Buffers:
        made = buffers_for(self._courier.places, shared=self._shares(), pinned=self._courier.on_gpu)
        return self._stack.enter_context(closing(made))

    def _shares(self) -> bool:
        """Whether a process of its own measures."""
        apart = self._courier.on_gpu if self._apart is None else self._apart
        return apart and hasattr(os, "memfd_create")

    def _open(self, now: Buffers) -> None:
        """Settle the reference and the rows so far."""
        journal = self._journal
        if journal is not None and journal.exists():
            last = max(journal.steps(), default=0)
            if self.at == 0 and last:
                raise SaddlesError.about(
                    f"{journal.folder} holds a recording up to step {last} and training starts at step 0",
                    "recordings are never overwritten",
                    "pass step= to go on with it, or another out=",
                )
            if self.at > 0:
                self._take_up(journal)
                return
        self._reference = _given(self._given, now.tensors) if self._given is not None else now.tensors
        self._initial = measure_initial(self.layout, self._reference.__getitem__, self._pool.map)
        if journal is not None:
            journal.begin(self.layout, self._reference, self._initial)

    def _new_meter(self, reference: Buffers, copies: list[Buffers]) -> Meter:
        if self._shares():
            return Process(self.layout, self._courier.places, reference, copies, self._modules, spare_cores())
        return Threads(self.layout, reference.tensors, self._modules, self._pool)

    def _take_up(self, journal: Journal) -> None:
        """Go on with a recording; a row that was on its way when training died is owed."""
        stored, reference = journal.layout(), journal.reference()
        if stored.heads != self.layout.heads or set(reference) != set(self._watched):
            raise SaddlesError.about(
                f"{journal.folder} holds a recording of another model or of other matrices",
                "a recording goes on with the model it began with",
                "choose another out=",
            )
        journal.go_back_to(self.at)
        self._reference, self._initial, self._rows = reference, journal.initial(), journal.rows()
        self._owes = self.at % self.every == 0 and self.at not in self._rows

    def step(self, step: int | None = None) -> None:
        """Say that the optimiser has made a step.

        Args:
            step: its number, where the caller counts; a number that came before is ignored.
        """
        step = self.at + 1 if step is None else step
        if step <= self.at:
            return
        self.at = step
        if step % self.every == 0:
            self._submit(step)
        elif self._jobs and self._jobs[0].done():
            self._settle()

    def _submit(self, step: int) -> None:
        """Copy the weights and hand them to the threads."""
        if not self._taking_part:
            if self._sharded():
                self._courier.take_part()
            return
        self._settle()
        buffers = self._next_buffers()
        self._courier.send(buffers)
        self._jobs.append(self._turns.submit(self._measure, step, buffers))

    def _next_buffers(self) -> Buffers:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            began = time.perf_counter()
            while True:
                self._settle()
                try:
                    buffers = self._free.get(timeout=1.0)
                    break
                except queue.Empty:
                    continue
            self.waited += time.perf_counter() - began
            if self.waited > PATIENCE and not self._warned:
                self._warned = True
                warnings.warn(
                    f"training waits for measurements: one takes longer than {self.every} steps; raise every",
                    stacklevel=4,
                )
            return buffers

    def _measure(self, step: int, buffers: Buffers) -> None:
        """In the background: one row, to memory and to disk."""
        try:
            buffers.wait()
            row = self._meter.row(buffers)
            if self._journal is not None:
                self._journal.add(step, row)
            with self._lock:
                self._rows[step] = row
            found = {name.removeprefix("heads/"): array for name, array in row.items() if name.startswith("heads/")}
            self._news.put((step, headline(found)))
        finally:
            self._free.put(buffers)

    def _settle(self) -> None:
        """Forget jobs that are done; an error of the background is raised here."""
        while self._jobs and self._jobs[0].done():
            self._jobs.pop(0).result()

    def flush(self) -> None:
        """Wait until every copy taken so far is measured and stored; call it before saving a checkpoint."""
        while self._jobs:
            self._jobs.pop(0).result()

    def news(self) -> list[tuple[int, Headline]]:
        """Headline ranks of measurements that finished since the last call: (step, name -> number)."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the recording."""
        self.finish(kind)

    def finish(self, kind: type[BaseException] | None = None) -> None:
        """Measure the last step, wait for the background, build the result and store it; once.

        Args:
            kind: what training ended with, None where it ended well.
        """
        if self._finished:
            return
        self._finished = True
        last = kind is None and self.at > self._began and self.at % self.every
        if not self._taking_part:
            if last:
                self._submit(self.at)
            return
        try:
            if last:
                self._submit(self.at)
            self.flush()
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            self._stack.close()
            self._result = self._tree(FINISHED if kind is None else f"stopped: {kind.__name__}")
            if self._journal is not None:
                self._journal.finish(self._result)

    def _tree(self, status: str) -> xr.DataTree:
        with self._lock:
            rows = dict(sorted(self._rows.items()))
        tree = label(self.layout, list(rows), list(rows.values()), self._initial, status)
        tree.attrs |= {"every": self.every, "waited_s": self.waited}
        return tree

    @property
    def result(self) -> xr.DataTree:
        """The finished recording, once the `with` block has ended; only the first of several processes has it."""
        if self._result is None:
            raise SaddlesError.about(
                "the recording has no result here",
                "it is made when the `with` block ends, in the first process",
                "use saddles.probe.recorded(out) while it runs",
            )
        return self._result

    def _sharded(self) -> bool:
        return any(is_sharded(tensor) for tensor in self._watched.values())


def headline(row: Mapping[str, np.ndarray]) -> Headline:
    """Stable and effective ranks of both products, averaged over all heads that have not diverged."""
    found = {}
    for at, product in enumerate(PRODUCTS):
        for name in ("stable_rank", "effective_rank"):
            values = row[name][..., at]
            values = values[np.isfinite(values)]
            found[f"saddles/{product}/{name}"] = float(values.mean()) if values.size else float("nan")
    return found


def _given(reference: Any, like: Mapping[str, Any]) -> dict[str, Any]:
    """The watched part of a reference, copied to the CPU."""
    tensors = reference if isinstance(reference, Mapping) else parameters(reference)
    tensors = {plain_name(name): tensor for name, tensor in tensors.items()}
    wrong = [name for name, own in like.items() if name not in tensors or tensors[name].shape != own.shape]
    if wrong:
        raise SaddlesError.about(
            f"the reference has no {wrong[0]} of the model's shape", "it must be the same model", "check the checkpoint"
        )
    return {name: tensors[name].detach().to("cpu", copy=True) for name in like}


def _is_first_process() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
