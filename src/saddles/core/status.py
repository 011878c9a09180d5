"""How a run ended: a kind to branch on, and a sentence to read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """The ways in which a run ends."""

    FINISHED = "finished"
    """It reached the end that was set."""
    CONVERGED = "converged"
    """No end was set, and it converged."""
    STOPPED = "stopped"
    """A limit was reached before the end; the reason says which."""
    DIVERGED = "diverged"
    """Numbers grew out of range; rows until then are kept."""
    INTERRUPTED = "interrupted"
    """Someone pressed Ctrl-C, or the program was told to end (SIGTERM); rows until then are kept."""
    FAILED = "failed"
    """An error ended it."""
    RUNNING = "running"
    """It has not ended."""


@dataclass(frozen=True)
class Status:
    """An ending with its reason. `str(status)` is what is stored, `Status.parse` reads it back.

    Compare `status.ending`, never the text.
    """

    ending: Ending = Ending.FINISHED
    reason: str = ""

    @property
    def ok(self) -> bool:
        """The run got as far as it was meant to."""
        return self.ending in (Ending.FINISHED, Ending.CONVERGED)

    def __str__(self) -> str:
        return f"{self.ending}: {self.reason}" if self.reason else str(self.ending)

    @classmethod
    def parse(cls, text: object) -> "Status":
        """Read a stored status; an unknown word counts as `stopped`, with the whole text as its reason.

        Results of version 0.1 say "stopped: diverged …" and "stopped: interrupted"; they are understood.
        """
        words = re.sub(r"^stopped: (?=diverged|interrupted)", "", str(text))
        head, _, rest = words.partition(":")
        first, _, tail = head.partition(" ")
        if first not in set(Ending):
            return cls(Ending.STOPPED, str(text))
        return cls(Ending(first), "; ".join(part.strip() for part in (tail, rest) if part.strip()))

    @classmethod
    def all_of(cls, statuses: Iterable["Status"]) -> "Status":
        """The status of several runs together: the first one that is not ok, else finished (or converged, if all)."""
        known = list(statuses)
        bad = [status for status in known if not status.ok]
        if bad:
            others = f" (and {len(bad) - 1} more of {len(known)} runs)" if len(bad) > 1 else ""
            return Status(bad[0].ending, bad[0].reason + others)
        resting = known and all(status.ending == Ending.CONVERGED for status in known)
        return Status(Ending.CONVERGED if resting else Ending.FINISHED)


FINISHED = Status(Ending.FINISHED)
"""It reached the end that was set."""
CONVERGED = Status(Ending.CONVERGED)
"""No end was set, and it converged."""


def status_of(trajectory: object) -> Status:
    """The status of a trajectory (a Dataset or DataTree), read from its attributes."""
    return Status.parse(getattr(trajectory, "attrs", {}).get("status", Ending.FINISHED))
