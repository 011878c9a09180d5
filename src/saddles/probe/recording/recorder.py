"""Record the ranks of a model while it trains.

    with saddles.probe.record(model, every=50) as run:
        for batch in batches:
            ...
            optimizer.step()
            run.step()
    run.result

Every `every` steps the recorded weights are copied, and measured beside training, in order: on the GPU that holds them,
by threads where they are on the CPU, or by a process of its own. The loop waits only when `pending` copies are still
being measured.

Once training has begun, nothing that happens to the recording ends it: a measurement that fails, or a matrix that
changed its shape, is a gap (attribute `gaps` of the result), and rows that a full disk does not take wait in memory.
The first such event is a warning.
"""

import os
import queue
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xarray as xr
from torch import Tensor

from saddles.core.validation import check_count, is_whole
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.layouts.no_heads import need_heads
from saddles.probe.measuring import Metrics, Row, headline, measure_initial, without_spectrum
from saddles.probe.recording.backends import AdaptedBackend, Backend, ProcessBackend, Slot, ThreadBackend
from saddles.probe.recording.journal import Journal
from saddles.probe.recording.measures import Measure, Measures, medians
from saddles.probe.recording.on_device import DeviceBackend
from saddles.probe.recording.rows import NO_RESULT, Rows, check_running, in_words, status_after
from saddles.probe.recording.slots import Slots
from saddles.probe.recording.snapshot import Buffers, Copier, buffers_for
from saddles.probe.weights.adapted import find_adapted, suggestion
from saddles.probe.weights.live_model import Reference, live_parameters, measurable, parameters, part_of, same_weights
from saddles.runtime.threads import spare_cores, torch_pool


def record(
    model: torch.nn.Module,
    every: int = 50,
    *,
    spectra: int | None = None,
    out: str | os.PathLike[str] | None = None,
    step: int = 0,
    reference: Reference | None = None,
    modules: bool = False,
    pending: int = 2,
    process: bool | None = None,
    measures: Sequence[Measure] = (),
) -> "Recorder":
    """Record the ranks of a model's heads while it trains; use it in a `with` block and call `run.step()`.

    Args:
        model: it may be sharded with FSDP2 (every process must record and step). Of a model that PEFT trains (LoRA,
            rsLoRA, DoRA) the factors are: `modules` has `used_rank` beside `given_rank`, attributes a `suggestion`.
        every: steps from one measurement to the next; the last step is measured too, with its spectra.
        spectra: steps from one whole spectrum to the next, a multiple of `every`; measurements in between hold the
            stable rank, the norm and the noise floor alone, which cost a GPU a tenth. None keeps all spectra.
        out: a folder that gets every measurement as it is made, and the whole as Zarr at the end. A recording that is
            there already is resumed: its reference is used, and rows after `step` are put aside.
        step: how many steps the model has been trained already, as when resuming.
        reference: the model at the start, or its state dict; None takes the model as it is now.
        modules: measure the plain matrices too; this costs more and holds a copy of the whole model.
        pending: how many copies of the recorded weights may wait for their turn.
        process: measure in a process of its own, with memory of the host alone; None does so where weights lie on a
            GPU and cannot be measured there (plain matrices, float64, several GPUs). Measuring on the GPU takes two
            copies of the recorded weights and about 1 GB there.
        measures: objects that are called with (model, parameters at the start) and give numbers by name, such as
            `saddles.networks.LiveRegime(batch)`; training waits for them, and a copy of the model at its start is held.
            With them, or with `modules`, a model without attention heads is recorded without them.
    """
    for name, value, least in (("every", every, 1), ("pending", pending, 1), ("step", step, 0)):
        check_count(name, value, least)
    if spectra is not None and (not is_whole(spectra) or spectra < 1 or spectra % every):
        raise SaddlesError.must_be("spectra", f"a multiple of every={every}", spectra)
    journal = Journal(out) if out is not None else None
    return Recorder(model, every, spectra or every, journal, step, reference, modules, pending, process, measures)


class Recorder:
    """A recording in progress: see `record`.

    Attributes:
        layout: where the heads of the model lie.
        every: steps from one measurement to the next.
        at: the step that training has reached.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int,
        spectra: int,
        journal: Journal | None,
        step: int,
        reference: Reference | None,
        modules: bool,
        pending: int,
        process: bool | None,
        measures: Sequence[Measure] = (),
    ) -> None:
        self._adapted = find_adapted(model)
        self.layout: Layout = self._adapted.layout if self._adapted else measurable(model)
        self._extra = Measures(model, measures, self.layout)
        if not self._adapted and not modules and not self._extra.given:
            need_heads(self.layout)
        self.every, self.at, self._began = every, step, step
        self._spectra = spectra
        self._modules, self._pending, self._process = modules, pending, process
        own = self.layout.parameters() if modules else self.layout.head_parameters()
        names = self._adapted.parameters() if self._adapted else own
        live = parameters(model)
        # By name and not the tensors themselves: a parameter, or its module, may be replaced during training.
        self._copier = Copier({name: live[name] for name in names}, lambda: live_parameters(model))
        self._narrow = all(live[name].dtype != torch.float64 for name in names)
        self._journal, self._given = journal, reference
        self._rows = Rows(journal)
        self._backend: Backend[Any]  # each measures what its own `_copy` fills
        self._copy: Callable[[Any], None]
        self._metrics: queue.SimpleQueue[tuple[int, Metrics]] = queue.SimpleQueue()
        self._slots = Slots(every)
        self._jobs: list[Future[None]] = []
        self._result: xr.DataTree | None = None
        self._begun = self._finished = False
        # Of several processes only the first measures; the others take part where weights are gathered.
        self._measures = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0

    def __enter__(self) -> "Recorder":
        """Keep the reference, or resume an earlier recording, and start the backend."""
        self._entered = time.perf_counter()
        if self._measures:
            self._stack, self._lock_held = ExitStack(), ExitStack()
            with ExitStack() as undo:
                undo.push(self._lock_held)
                undo.push(self._stack)
                if self._journal is not None:
                    self._lock_held.enter_context(self._journal.held())
                self._begin()
                undo.pop_all()
        else:
            self._copier.take_part()
        self._begun = True
        return self

    def _begin(self) -> None:
        # All memory is taken now: a loop that runs out of memory should do so before its first step.
        now = self._new_buffers()
        self._copier.copy_to(now)
        now.wait()
        self._pool = self._stack.enter_context(torch_pool(spare_cores()))
        # A single thread takes the copies one by one, so that rows are made in order; the pool shares each one's work.
        self._queue = self._stack.enter_context(torch_pool(1))
        reference = self._resume(now.tensors)
        # This step's row was not written yet when training died, and the model has the weights of that step.
        owed = reference is not None and self.at % self.every == 0 and self.at not in self._rows
        self._extra.begin(self._given, self._journal if reference is not None else None)
        reference = reference or self._new_reference(now.tensors)
        self._from_zero = self._adapted is not None and self._adapted.is_zero(reference)
        begin = self._begin_on_device if self._measures_on_device() else self._begin_on_host
        slots = begin(now, reference, owed)
        if owed:
            self._jobs.append(self._queue.submit(self._measure, self.at, slots.pop(0), self._extra.take()))
        for slot in slots:
            self._slots.give(slot)

    def _begin_on_device(self, now: Buffers, reference: Mapping[str, Tensor], owed: bool) -> list[Slot]:
        backend = DeviceBackend(self.layout, self._copier, reference, self._pool)
        self._backend, self._copy = self._stack.enter_context(closing(backend)), backend.copy_to
        slots = [backend.readings() for _ in range(self._pending)]
        if owed:
            slots[0].whole = self._is_whole(self.at)
            backend.begin([(place, now.tensors[place.name]) for place in self._copier.places], slots[0])
        return [*slots]

    def _begin_on_host(self, now: Buffers, reference: Mapping[str, Tensor], owed: bool) -> list[Slot]:
        # A process inherits shared blocks only when it starts, so all of them are made before it.
        copies = [self._new_buffers() for _ in range(self._pending)]
        if owed:
            copies[0].block.copy_(now.block)
            copies[0].whole = self._is_whole(self.at)
        # The reference must lie in `now`, whose memory the backend shares.
        for name, tensor in now.tensors.items():
            if reference[name] is not tensor:
                tensor.copy_(reference[name])
        self._backend = self._stack.enter_context(closing(self._new_backend(now, copies)))
        self._copy = self._copier.copy_to
        return [*copies]

    def _new_buffers(self) -> Buffers:
        buffers = buffers_for(self._copier.places, shared=self._uses_process(), pinned=self._copier.on_gpu)
        return self._stack.enter_context(closing(buffers))

    def _new_backend(self, reference: Buffers, copies: list[Buffers]) -> Backend[Any]:
        if self._adapted:
            return AdaptedBackend(self._adapted, reference.tensors, self._pool)
        if self._uses_process():
            return ProcessBackend(self.layout, self._copier.places, reference, copies, self._modules, spare_cores())
        return ThreadBackend(self.layout, reference.tensors, self._modules, self._pool)

    def _measures_on_device(self) -> bool:
        """Whether the weights are measured where they lie: heads on one GPU, in types narrower than float64.

        A chain of matrices is no view of the weights, as that backend needs it.
        """
        if any(head.is_chained for head in self.layout.heads):
            return False
        devices = {*self._copier.devices.values()}
        one = len(devices) == 1 and devices.pop().type == "cuda"
        return one and self._narrow and self._process is None and not self._modules and not self._adapted

    def _is_whole(self, step: int) -> bool:
        return step % self._spectra == 0

    def _uses_process(self) -> bool:
        # Threads serve where the system has no anonymous shared files (all but Linux).
        wanted = self._copier.on_gpu and not self._measures_on_device() if self._process is None else self._process
        # What an adapter is measured with, the frozen base, is in this process alone.
        return wanted and not self._adapted and hasattr(os, "memfd_create")

    def _resume(self, now: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Take over the rows of a recording in the folder, and return its reference; None where there is none."""
        journal = self._journal
        if journal is None or not journal.exists():
            return None
        if self.at == 0:
            whole = self._extra.starts_at(journal, self._given)
            journal.begin_again(lambda reference: whole and same_weights(reference, self._start(now)))
            return None
        reference = journal.resume(self.at, self.layout, now)
        self._initial = journal.initial()
        self._rows.take_over(journal)
        return reference

    def _start(self, now: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights at the start, where training begins: those that were given, or the present ones."""
        return now if self._given is None else part_of(self._given, now)

    def _new_reference(self, now: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The reference that was given, or the weights as they are now; written to the folder."""
        reference = self._start(now)
        read = self._adapted.reader(reference) if self._adapted else reference.__getitem__
        self._initial = measure_initial(self.layout, read, self._pool.map) if self.layout.heads else {}
        if self._journal is not None:
            self._journal.begin(self.layout, reference, self._initial, self._extra.start)
        return reference

    def step(self, step: int | None = None) -> None:
        """Tell the recorder that the optimiser has made a step.

        Args:
            step: its number, where the caller counts; one that was reached before is ignored.
        """
        step = self.at + 1 if step is None else step
        check_running(self._begun, self._finished and step > self.at)
        if step <= self.at:
            return
        self.at = step
        if step % self.every == 0:
            self._submit(step)
        else:
            self._check_jobs()

    @property
    def waited(self) -> float:
        """Seconds that training has waited for measurements."""
        return self._slots.waited

    def _submit(self, step: int, whole: bool | None = None) -> None:
        """Copy the weights and hand them to the backend.

        Args:
            whole: with their spectra; None where it is their turn.
        """
        if not self._measures:
            self._copier.take_part()
            return
        self._check_jobs()
        slot = self._slots.take(self._check_jobs)
        slot.whole = self._is_whole(step) if whole is None else whole
        try:
            self._copy(slot)
        except Exception as error:
            self._slots.give(slot)
            self._rows.add_gap(step, in_words(error))
            self._jobs.append(self._queue.submit(self._keep, step, {}, self._extra.take_at(step, self._rows)))
        else:
            if self._copier.lost:
                self._rows.add_gap(step, "; ".join(self._copier.lost.values()))
            self._jobs.append(self._queue.submit(self._measure, step, slot, self._extra.take_at(step, self._rows)))
        self._rows.warn()

    def _measure(self, step: int, slot: Slot, extra: Row) -> None:
        """In the background: one row, to memory and to disk."""
        try:
            slot.wait()  # for the transfer from the GPU; the loop does not
            row = self._backend.measure(slot)
            row = row if slot.whole else without_spectrum(row)
        except Exception as error:
            self._rows.add_gap(step, in_words(error))
            row = {}
        finally:
            self._slots.give(slot)
        self._keep(step, row, extra)

    def _keep(self, step: int, row: Row, extra: Row) -> None:
        """In the background: what there is of a row, to memory and to disk."""
        # On disk before a tracker shows it: what was seen is not lost in a crash.
        self._rows.add(step, row | extra)
        if row or extra:
            self._metrics.put((step, headline(row | extra) | medians(extra)))

    def _check_jobs(self) -> None:
        """Forget jobs that are done."""
        while self._jobs and self._jobs[0].done():
            self._jobs.pop(0).result()
        self._rows.warn()

    def flush(self) -> None:
        """Wait until every copy taken so far is measured and stored; call it before saving a checkpoint."""
        while self._jobs:
            self._jobs.pop(0).result()
        self._rows.warn()

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""
        return self._finished

    @property
    def out(self) -> Path | None:
        """The folder that gets the recording, None where it is kept in memory."""
        return None if self._journal is None else self._journal.folder

    def drain_metrics(self) -> list[tuple[int, Metrics]]:
        """Headline ranks of measurements that finished since the last call: (step, name -> number)."""
        return [self._metrics.get() for _ in range(self._metrics.qsize())]

    def news(self) -> list[tuple[int, Metrics]]:
        """Old name of `drain_metrics`."""
        words = "Recorder.news is now Recorder.drain_metrics; the next release removes the old name."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return self.drain_metrics()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the recording."""
        self.finish(kind)

    def finish(self, kind: type[BaseException] | None = None) -> None:
        """Measure the last step, wait for the background, build the result and store it; once.

        Args:
            kind: the exception that ended training, None where there was none.
        """
        if self._finished or not self._begun:  # one that was refused has nothing to end
            return
        self._finished = True
        # After an error the weights may be in the middle of a step: whole steps measured before are kept.
        last = kind is None and self.at > self._began and not self._is_whole(self.at)
        if not self._measures:
            return self._submit(self.at) if last else None
        try:
            if last:
                self._submit(self.at, whole=True)
            self.flush()
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            with self._lock_held:  # given back when all is written
                self._stack.close()
                self._rows.write()
                self._result = self._rows.tree(self.layout, self._initial, status_after(kind))
                spent = round(time.perf_counter() - self._entered, 3)
                facts = {"every": self.every, "waited_s": self.waited, "wall_time_s": spent}
                self._result.attrs |= facts | ({"measures_s": self._extra.seconds} if self._extra.start else {})
                self._result.attrs |= suggestion(self._result["modules"].to_dataset(), self._adapted, self._from_zero)
                self._rows.finish(self._result)
            self._rows.warn()

    @property
    def result(self) -> xr.DataTree:
        """The finished recording, once the `with` block has ended; only the first of several processes has it."""
        if self._result is None:
            raise SaddlesError(NO_RESULT)
        return self._result
