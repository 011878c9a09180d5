"""The training loop of all torch labs: exact resume, kind stops, a time budget, one process or several.

    checkpoint = Checkpoint(folder / "checkpoint.pt", {"model": model, "optimiser": optimiser}, run="which run it is")
    history = checkpoint.restore(device)
    status = Loop(1000, step, observe, measured={500, 1000}, checkpoint=checkpoint).run(history)

`step(i)` updates the model once and returns its losses as they lie on the device. The loop reads numbers from the
device at measurements only, so between them the host runs ahead and the device never waits for it; a step whose
shapes are fixed can be a CUDA graph (`saddles.training.graphs.captured`) without the loop knowing.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from types import FrameType

from torch import Tensor

from saddles.core.status import FINISHED, Ending, Status
from saddles.runtime.progress import bar
from saddles.training import processes
from saddles.training.checkpoint import Checkpoint, History, Row

STORE_EVERY = 60.0
"""Seconds from one checkpoint to the next: so much work at most is lost to a crash."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Loop:
    """How a model is trained, step by step.

    Args:
        steps: how many in all.
        step: takes the step of this number, counted from 0, and returns its detached losses: a number, or several
            in a vector, on the device. All it sees must follow from the number.
        observe: looks at the model after so many steps; what it returns is kept with the checkpoint.
        measured: counts of steps after which the losses are read and `observe` is called; the last is among them.
        checkpoint: where the run is stored, by the first process.
        store_every: seconds from one checkpoint to the next; they are written at measurements.
        before_store: called before each checkpoint is written, for instance to flush a recording.
        budget: seconds after which the run stops at the next measurement.
        title: of the progress bar.
    """

    steps: int
    step: Callable[[int], Tensor]
    observe: Callable[[int], Row]
    measured: Container[int]
    checkpoint: Checkpoint
    store_every: float = STORE_EVERY
    before_store: Callable[[], object] = _nothing
    budget: float = math.inf
    title: str = "training"

    def run(self, history: History) -> Status:
        """Continue from a history to the end, and say how it ended.

        A loss that is not finite ends the run at the next measurement. The first Ctrl-C or SIGTERM waits until the step
        is whole and stored, and is then raised.
        """
        began = stored = time.monotonic()
        with bar(self.title, self.steps) as progress, defer_interrupt() as interrupts:
            progress.skip(history.step)
            while history.step < self.steps:
                history.add(self.step(history.step))
                progress.reach(history.step)
                # Reading the losses waits for the device: it is done at measurements alone.
                if history.step in self.measured:
                    if not self._measure(history):
                        return Status(
                            Ending.DIVERGED, f"the loss is not a number at step {history.step}; try a smaller rate"
                        )
                    if time.monotonic() - stored > self.store_every:
                        self._store(history)
                        stored = time.monotonic()
                    # Not after the last step: a run that is complete has finished, however long it took.
                    if self._spent(began) and history.step < self.steps:
                        self._store(history)
                        return Status(Ending.STOPPED, f"the time was up at step {history.step} of {self.steps}")
                if interrupts:
                    # Processes get the signal at different steps, and their weights then belong to no one step.
                    if processes.count() == 1:
                        self._store(history)
                    raise KeyboardInterrupt
        self._store(history)
        return FINISHED

    def _measure(self, history: History) -> bool:
        """Read the losses and look at the model; False where a loss is not finite."""
        assert history.sums is not None
        means = (processes.averaged(history.sums) / history.since).reshape(-1).tolist()
        # Before the check: the losses that are not finite belong to what a diverged run has seen.
        history.losses[history.step] = means
        history.sums.zero_()
        history.since = 0
        if not all(map(math.isfinite, means)):
            return False
        history.rows[history.step] = dict(self.observe(history.step))
        return True

    def _spent(self, began: float) -> bool:
        """Whether the budget is used up: the first process decides, or the others would wait for it for ever."""
        return math.isfinite(self.budget) and processes.agreed(time.monotonic() - began > self.budget)

    def _store(self, history: History) -> None:
        if self.checkpoint.file is not None and processes.rank() == 0:
            self.before_store()
            self.checkpoint.store(history)


STOPS = signal.SIGINT, signal.SIGTERM
"""Ctrl-C, and what `timeout` and batch systems send before they kill."""


@contextlib.contextmanager
def defer_interrupt() -> Iterator[list[int]]:
    """Note the first Ctrl-C or SIGTERM in the list instead of breaking a step in two; a second one breaks at once.

    Outside the main thread nothing is changed, nor a Ctrl-C that no Python function handles: scripts ignore it in what
    they start with `&`, where SIGTERM still arrives.
    """
    interrupts: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPS}
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)

    # One that is ignored stays so, and None is a handler of C, which could not be given back.
    changed = {
        number: one
        for number, one in before.items()
        if callable(one) or (one == signal.SIG_DFL and number == signal.SIGTERM)
    }
    for number in changed:
        signal.signal(number, note)
    try:
        yield interrupts
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
