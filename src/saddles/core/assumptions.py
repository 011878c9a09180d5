"""Assumptions of a theorem as checks with a margin, the same type in every lab."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Assumption:
    """One assumption and by how much it holds.

    Args:
        name: as the paper numbers it, for instance "4.3 gap".
        holds: the verdict; None where it was not checked.
        value: the number behind it.
        meaning: what the number is and when it is good, with the inequality where there is one.
    """

    name: str
    holds: bool | None
    value: float
    meaning: str = ""


@dataclass(frozen=True)
class Assumptions:
    """Several assumptions, checked for one model and task."""

    checks: tuple[Assumption, ...]

    @property
    def hold(self) -> bool:
        """None of them is broken (one that was not checked does not count)."""
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of those that do not hold, each once."""
        return tuple(dict.fromkeys(check.name for check in self.checks if check.holds is False))

    @property
    def reason(self) -> str:
        """One sentence for a verdict; empty where all of them hold."""
        told = {check.name: f"{check.name} is broken: {check.meaning}" for check in self.checks if check.holds is False}
        return "; ".join(told.values())

    def about(self, prefix: str | Sequence[str]) -> "Assumptions":
        """Those whose names begin with a prefix, such as "4.3"."""
        starts = (prefix,) if isinstance(prefix, str) else tuple(prefix)
        return Assumptions(tuple(check for check in self.checks if check.name.startswith(starts)))

    def to_frame(self) -> pd.DataFrame:
        """A table to look at: one row per assumption."""
        words = {True: "holds", False: "fails", None: "not checked"}
        rows = [(check.name, words[check.holds], check.value, check.meaning) for check in self.checks]
        return pd.DataFrame(rows, columns=["assumption", "verdict", "value", "meaning"]).set_index("assumption")
