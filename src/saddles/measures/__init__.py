"""Measures: numbers read off trajectories, and off nothing else."""

from typing import TYPE_CHECKING

from saddles.core.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.measures.modes import alignment as alignment
    from saddles.measures.modes import crossing_time as crossing_time
    from saddles.measures.modes import gram_error as gram_error
    from saddles.measures.modes import invariant_drift as invariant_drift
    from saddles.measures.modes import mode_state as mode_state
    from saddles.measures.spectra import best as best
    from saddles.measures.spectra import stable_rank as stable_rank

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "alignment": "saddles.measures.modes",
        "best": "saddles.measures.spectra",
        "crossing_time": "saddles.measures.modes",
        "gram_error": "saddles.measures.modes",
        "invariant_drift": "saddles.measures.modes",
        "mode_state": "saddles.measures.modes",
        "stable_rank": "saddles.measures.spectra",
    },
)
