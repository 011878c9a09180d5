"""The rows of a recording at work: in memory, on disk as far as the disk takes them, with a note of what is missing.

Nothing here raises for what happens to a recording: the training that it watches must go on.
"""

import contextlib
import threading
import warnings

import xarray as xr

from saddles.core.status import FINISHED, Ending, Status
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import Row, mark_gaps, to_trajectory
from saddles.probe.recording.journal import Journal

NO_RESULT = (
    "The recording has no result here: it is made when the `with` block or the training ends, in the first process. "
    "Use saddles.probe.recorded(out) while it runs, or where a trainer was interrupted."
)


class Rows:
    """Measurements by step, and steps at which something is missing.

    Args:
        journal: the folder that gets them; None keeps them in memory alone.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._rows: dict[int, Row] = {}
        self._gaps: dict[int, str] = {}
        self._noted: dict[int, str] = {}  # the gaps that the folder knows of
        self._unwritten: set[int] = set()
        self._trouble = ""  # what is to be warned of
        self._told = False
        self._lock = threading.Lock()

    def __contains__(self, step: int) -> bool:
        return step in self._rows

    def take_over(self, journal: Journal) -> None:
        """Take what is in a folder."""
        self._rows, self._gaps = journal.rows(), journal.gaps()
        self._noted = dict(self._gaps)

    def add(self, step: int, row: Row) -> None:
        """Keep a row, if anything is in it, and write what waits for it."""
        if row:
            with self._lock:
                self._rows[step] = row
                self._unwritten.add(step)
        self.write()

    def add_gap(self, step: int, why: str) -> None:
        """Note that something is missing at a step."""
        with self._lock:
            self._gaps[step] = f"{self._gaps[step]}; {why}" if step in self._gaps else why
        self._trouble = self._trouble or (
            f"The recording has a gap at step {step} ({why}). Training goes on; the attribute `gaps` of the recording "
            "lists every gap."
        )

    def write(self) -> None:
        """Write the rows that wait for it, and which steps are missing; what a full disk does not take waits on."""
        if self._journal is None:
            return
        try:
            # In order, up to the first that the disk does not take: that one and the rest wait.
            for step in sorted(self._unwritten):
                self._journal.add(step, self._rows[step])
                self._unwritten.discard(step)
        except Exception as error:
            self._trouble = self._trouble or (
                f"The recording cannot be written at step {min(self._unwritten)} ({in_words(error)}). Training goes "
                "on; measurements wait in memory and are written as soon as there is room."
            )
        gaps = {**self._gaps, **dict.fromkeys(self._unwritten, "not written: the disk was full or did not answer")}
        if gaps != self._noted:
            with contextlib.suppress(Exception):  # on a full disk this too has to wait
                self._journal.note_gaps(gaps)
                self._noted = gaps

    def finish(self, tree: xr.DataTree) -> None:
        """Write all rows as one trajectory."""
        if self._journal is None:
            return
        try:
            self._journal.finish(tree)
        except Exception as error:
            self._trouble = self._trouble or (
                f"The recording cannot be written ({in_words(error)}). Training goes on; `result` holds it."
            )

    def warn(self) -> None:
        """Warn of the first trouble, once; to be called in the thread of training."""
        if self._trouble and not self._told:
            self._told = True
            warnings.warn(self._trouble, stacklevel=4)

    def tree(self, layout: Layout, initial: Row, status: Status) -> xr.DataTree:
        """All rows, labelled."""
        with self._lock:
            rows = dict(sorted(self._rows.items()))
        return mark_gaps(to_trajectory(layout, list(rows), list(rows.values()), initial, status), self._gaps)


def in_words(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, SaddlesError) else f"{type(error).__name__}: {first}"


def check_running(begun: bool, ended: bool) -> None:
    """Refuse a step outside the recording: before it there is no memory for measurements to wait for."""
    if not begun:
        raise SaddlesError("The recording has not begun. Put the loop into `with saddles.probe.record(…) as run:`.")
    if ended:
        raise SaddlesError("The recording has ended with its `with` block. Call run.step() inside the block.")


def status_after(kind: type[BaseException] | None) -> Status:
    """How a recording ended whose training was ended by this exception, or by none."""
    if kind is None:
        return FINISHED
    if issubclass(kind, KeyboardInterrupt):
        return Status(Ending.INTERRUPTED)
    if issubclass(kind, SystemExit):  # no error: Lightning's answer to SIGTERM, and that of most handlers in a loop
        return Status(Ending.INTERRUPTED, kind.__name__)
    return Status(Ending.FAILED, kind.__name__)
