"""Which concepts will not be learned, predicted before the run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saddles.concepts.assumptions import check_pair
from saddles.concepts.pivots import pivots, pivots_of_factor
from saddles.concepts.task import Identity
from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Failure:
    """What `failure` predicts; concepts are counted from 1.

    `times` are the predicted gradient times at which w_pp passes ½ (infinity where W(0) has no
    rank left for p); `lost` those later than the horizon; `never` those that are not learned by any horizon:
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


def failure(model: object, task: Identity, horizon: float | None = None, *, seed: int = 0) -> Failure:
    """Predict from μ, σ and W(0) which major entries will not have grown (w_pp < ½) by a horizon.

    Times come from the pivot law. A full-rank W(0) always escapes in the end, so failure is a
    matter of the horizon, or of a rank-deficient start; with `horizon=None` only the latter is
    found. Section E.3 of the paper describes such runs as trapped for ever.

    Args:
        model: a `SymmetricTwoLayer`, or another model with `start` and `product`.
        task: the task.
        horizon: gradient time (half of the paper's); None, or infinity, for none.
        seed: the run's, where the start is drawn.
    """
    pair = check_pair(model, "The pivot law")
    if horizon is not None and not horizon > 0:
        raise SaddlesError.must_be("horizon", "a positive time", horizon, "Use None for no horizon")
    horizon = None if horizon == math.inf else horizon
    # A square root of a given W(0) has rounding errors of 1e-8: its pivots are read off W(0) itself.
    factored = getattr(model, "factored", True)
    law = pivots_of_factor if factored else pivots
    start = task.rotation.T @ pair.start(task, seed) if factored else task.to_concepts(pair.product(task, seed))
    strengths = task.strengths[: task.concepts]
    times, _ = law(start, strengths)
    last, _ = law(start, strengths, "signal")
    # A concept that the greedy order leaves without rank may still be learned, in the order of the signals: the states
    # that hold a weaker concept instead are saddles. Only what both orders leave out is never learned.
    times, never = np.where(np.isfinite(times), times, last), ~np.isfinite(last)
    lost = never | ~np.isfinite(times) if horizon is None else times > horizon
    return Failure(
        horizon=horizon,
        times=tuple(float(t) for t in times),
        lost=tuple(int(p) + 1 for p in np.flatnonzero(lost)),
        never=tuple(int(p) + 1 for p in np.flatnonzero(never)),
    )


def _named(concepts: Sequence[int]) -> str:
    many = len(concepts) > 1
    return f"concept{'s' if many else ''} {', '.join(map(str, concepts))} {'are' if many else 'is'} learned"
