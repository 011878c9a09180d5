"""What measures the copies of a recorder: threads beside the training loop, or a process of its own.

A loop that feeds a GPU depends on the speed of its interpreter, and threads that measure take the interpreter's lock
from it a thousand times per second. A process does not: it shares the memory of the copies, and is only told which of
them to measure. Where the model is on the CPU both would share the same cores, and threads are simpler. Heads on a
GPU are measured there (`on_device`), which leaves the host too little work for a process.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import Row, measure_row
from saddles.probe.recording.snapshot import Buffers, Place, mapped, size_of, views
from saddles.probe.weights.adapted import Adapted
from saddles.runtime.threads import torch_pool
from saddles.runtime.workers import Worker, WorkerLostError


@runtime_checkable
class Slot(Protocol):
    """Memory for one measurement."""

    whole: bool

    def wait(self) -> None:
        """Return when what a GPU sends has arrived."""
        ...

    def close(self) -> None:
        """Release what the system lent."""
        ...


SlotT_contra = TypeVar("SlotT_contra", bound=Slot, contravariant=True)


@runtime_checkable
class Backend(Protocol[SlotT_contra]):
    """Measures one copy of the recorded weights against the reference."""

    def measure(self, copy: SlotT_contra) -> Row:
        """Spectra and ranks, `heads/…` and `modules/…`."""
        ...

    def close(self) -> None:
        """End what it holds."""
        ...


class ThreadBackend:
    """Measures in this process, with the threads of a pool."""

    def __init__(self, layout: Layout, reference: Mapping[str, Tensor], modules: bool, pool: ThreadPoolExecutor):
        self._layout, self._reference, self._modules, self._pool = layout, reference, modules, pool

    def measure(self, copy: Buffers) -> Row:
        """Measure with the pool's threads."""
        now, start = copy.tensors.__getitem__, self._reference.__getitem__
        return measure_row(self._layout, now, start, modules=self._modules, mapping=self._pool.map)

    def close(self) -> None:
        """Nothing is held."""


class AdaptedBackend:
    """Measures what low-rank factors change, with the threads of a pool; the frozen base is read from the model."""

    def __init__(self, adapted: Adapted, reference: Mapping[str, Tensor], pool: ThreadPoolExecutor):
        self._adapted, self._reference, self._pool = adapted, reference, pool

    def measure(self, copy: Buffers) -> Row:
        """Measure with the pool's threads."""
        return self._adapted.measure(copy.tensors, self._reference, self._pool.map)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Shared:
    """What the process of a `ProcessBackend` is told when it starts.

    Args:
        layout: where the heads lie.
        places: where tensors lie in a block of memory.
        files: descriptors of the shared blocks; the first holds the start of training.
        modules: whether plain matrices are measured too.
        workers: threads that measure.
    """

    layout: Layout
    places: Sequence[Place]
    files: Sequence[int]
    modules: bool
    workers: int


class ProcessBackend:
    """Measures in a process of its own, which sees no GPU and ends with this one.

    Args:
        layout: where the heads lie.
        places: where tensors lie in a block.
        reference: the start of training, in shared memory.
        copies: all that will ever be measured, in shared memory.
        modules: whether plain matrices are measured too.
        workers: threads that measure.
    """

    def __init__(
        self,
        layout: Layout,
        places: Sequence[Place],
        reference: Buffers,
        copies: Sequence[Buffers],
        modules: bool,
        workers: int,
    ) -> None:
        # The reference first: `SharedMeasurer` takes the first file for the start.
        files = [buffers.file for buffers in (reference, *copies) if buffers.file is not None]
        self._shared = Shared(layout, places, files, modules, workers)
        self._worker = self._start()

    def _start(self) -> Worker[int, Row]:
        files = self._shared.files
        # Without a GPU: it needs none, and a context of CUDA would take memory from the training.
        return Worker(SharedMeasurer, self._shared, environment={"CUDA_VISIBLE_DEVICES": ""}, files=files)

    def measure(self, copy: Buffers) -> Row:
        """Say which copy, and wait for the row; other threads continue meanwhile.

        A process that was killed is replaced: the copy is in memory that the next one shares.
        """
        if copy.file is None:
            raise SaddlesError("Only copies in shared memory can be measured by another process.")
        try:
            return self._worker.call(copy.file)
        except WorkerLostError:
            self._worker = self._start()
        try:
            return self._worker.call(copy.file)
        except WorkerLostError as error:  # not by chance: the next copy may fare better, with another process
            self._worker = self._start()
            raise SaddlesError(
                f"{error} It measures the recording. Was it out of memory? Try process=False."
            ) from error

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class SharedMeasurer:
    """In the process of a `ProcessBackend`: maps the shared blocks, and measures one by its descriptor."""

    def __init__(self, shared: Shared) -> None:
        size = size_of(shared.places)
        self._shared = shared
        self._tensors = {file: views(shared.places, mapped(file, size)) for file in shared.files}
        self._threads = torch_pool(shared.workers)  # open as long as the process lives
        self._pool = self._threads.__enter__()

    def __call__(self, file: int) -> Row:
        now, start = self._tensors[file].__getitem__, self._tensors[self._shared.files[0]].__getitem__
        return measure_row(self._shared.layout, now, start, modules=self._shared.modules, mapping=self._pool.map)
