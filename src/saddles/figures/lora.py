"""Which LoRA rank carries how much of a fine-tune."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, MEASURED, look, sheet


@runtime_checkable
class Point(Protocol):
    """A rank for all modules, and what it carries."""

    @property
    def rank(self) -> int:
        """The rank."""
        ...

    @property
    def energy(self) -> float:
        """Share of what LoRA can carry."""
        ...


def rank_curve(points: Sequence[Point]) -> Figure:
    """Energy against one rank for all modules."""
    with look():
        figure, ((axis,),) = sheet(1, 1, 6, 4)
        ranks, shares = [point.rank for point in points], [100 * point.energy for point in points]
        axis.plot(ranks, shares, color=COLOURS[0], marker="o", **MEASURED)
        axis.axhline(90, color=GREY, linewidth=1)
        axis.text(0.01, 91, "90 %, the default", color=GREY, fontsize="small", transform=axis.get_yaxis_transform())
        axis.set_xscale("log", base=2)
        # The last rank is no power of two: where it is close to the one before, both labels would overlap.
        crowded = len(ranks) > 1 and ranks[-1] < 1.4 * ranks[-2]
        axis.set_xticks(ranks, [str(r) if not (crowded and r == ranks[-2]) else "" for r in ranks])
        axis.minorticks_off()
        axis.set(xlabel="rank of every module", ylabel="% of what LoRA can carry", ylim=(0, 102))
        axis.set_title("Which rank is enough?")
    return figure
