"""Memory for measurements, lent and given back; training waits here, and nowhere else, when none is left."""

import contextlib
import queue
import time
import warnings
from collections.abc import Callable

from saddles.probe.recording.backends import Slot

WARN_AFTER_S = 1.0
"""Seconds that training may wait in all before a warning says so."""


class Slots:
    """A queue of memory.

    Args:
        every: steps from one measurement to the next, for the warning.

    Attributes:
        waited: seconds that training has waited.
    """

    def __init__(self, every: int) -> None:
        self.waited = 0.0
        self._every, self._warned = every, False
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()

    def give(self, slot: Slot) -> None:
        """Give a slot back, or the first time."""
        self._free.put(slot)

    def take(self, meanwhile: Callable[[], None]) -> Slot:
        """A free slot; `meanwhile` is called once a second where none is."""
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        began = time.perf_counter()
        slot = None
        while slot is None:
            meanwhile()
            with contextlib.suppress(queue.Empty):
                slot = self._free.get(timeout=1.0)
        self.waited += time.perf_counter() - began
        if self.waited > WARN_AFTER_S and not self._warned:
            self._warned = True
            warnings.warn(
                f"Training waits for measurements: one takes longer than {self._every} steps. Raise `every`.",
                stacklevel=4,
            )
        return slot
