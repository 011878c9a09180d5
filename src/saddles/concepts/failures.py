"""Which concepts will not be learned, said before the run."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from saddles.concepts.model import SymmetricTwoLayer
from saddles.concepts.task import Identity
from saddles.concepts.theory import pivots, pivots_of_factor
from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Failure:
    """What `failure` says; concepts are counted from 1.

    `times` are the predicted gradient times at which w_pp passes ½ (infinity where W(0) has no
    rank left for p); `lost` those later than the horizon; `never` those that no horizon helps:
    of a start of rank r the r strongest concepts that it reaches are learned in the end, for
    states that hold a weaker one instead are saddles.
    """

    horizon: float | None
    times: tuple[float, ...]
    lost: tuple[int, ...]
    never: tuple[int, ...]

    @property
    def fails(self) -> bool:
        """Whether any concept is lost."""
        return bool(self.lost)

    @property
    def reason(self) -> str:
        """One sentence."""
        if not self.lost:
            until = "in the end" if self.horizon is None else f"by time {self.horizon:g}"
            return f"every concept is learned {until}"
        late = [p for p in self.lost if p not in self.never]
        never = [p for p in self.lost if p in self.never]
        parts = []
        if never:
            parts.append(f"{_named(never)} never, because W(0) is rank-deficient and the flow preserves rank")
        if late:
            when = ", ".join(f"{self.times[p - 1]:.4g}" for p in late)
            parts.append(f"{_named(late)} only at time {when}, after the horizon {self.horizon:g}")
        return "; ".join(parts)


def failure(model: Any, task: Identity, horizon: float | None = None) -> Failure:
    """Say from μ, σ and W(0) which major entries will not have grown (w_pp < ½) by a horizon.

    Times come from the pivot law. A full-rank W(0) always escapes in the end, so failure is a
    matter of the horizon, or of a rank-deficient start; with `horizon=None` only the latter is
    found. Section E.3 of the paper describes such runs as trapped for ever.

    Args:
        model: a `SymmetricTwoLayer`.
        horizon: gradient time (half of the paper's).
    """
    if not isinstance(model, SymmetricTwoLayer):
        raise SaddlesError.about(
            f"{type(model).__name__} came",
            "the law is that of SymmetricTwoLayer",
            "one layer never fails: see Theorem 4.1",
        )
    if horizon is not None and not horizon > 0:
        raise SaddlesError.about(f"horizon={horizon!r} came", "a positive time is needed", "use None for no horizon")
    factor = task.rotation.T @ model.start(task.size)
    law = pivots_of_factor if model.weights is None else pivots
    start = factor if model.weights is None else task.to_concepts(model.product(task.size))
    strengths = task.strengths[: task.concepts]
    times, _ = law(start, strengths)
    last, _ = law(start, strengths, "signal")
    times, never = np.where(np.isfinite(times), times, last), ~np.isfinite(last)
    lost = never | ~np.isfinite(times) if horizon is None else times > horizon
    return Failure(
        horizon=horizon,
        times=tuple(float(t) for t in times),
        lost=tuple(int(p) + 1 for p in np.flatnonzero(lost)),
        never=tuple(int(p) + 1 for p in np.flatnonzero(never)),
    )


def _named(concepts: Any) -> str:
    many = len(concepts) > 1
    return f"concept{'s' if many else ''} {', '.join(map(str, concepts))} {'are' if many else 'is'} learned"
