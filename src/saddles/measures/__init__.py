"""Measures: numbers read off trajectories, and off nothing else."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.measures.activations import plateaus as plateaus
    from saddles.measures.activations import stages as stages
    from saddles.measures.concept_space import exponential_tail as exponential_tail
    from saddles.measures.concept_space import learning_order as learning_order
    from saddles.measures.concept_space import learning_times as learning_times
    from saddles.measures.concept_space import order_homomorphism as order_homomorphism
    from saddles.measures.concept_space import slow_down as slow_down
    from saddles.measures.concept_space import smoothed as smoothed
    from saddles.measures.concept_space import speed as speed
    from saddles.measures.factored import change_and_floor as change_and_floor
    from saddles.measures.factored import change_spectrum as change_spectrum
    from saddles.measures.factored import matrix_floor as matrix_floor
    from saddles.measures.factored import product_spectrum as product_spectrum
    from saddles.measures.factored import rank_measures as rank_measures
    from saddles.measures.factored import spectrum as spectrum
    from saddles.measures.growth import rank_growth as rank_growth
    from saddles.measures.loss_curves import descents as descents
    from saddles.measures.loss_curves import turning_points as turning_points
    from saddles.measures.margins import alignment_defect as alignment_defect
    from saddles.measures.margins import count_above as count_above
    from saddles.measures.margins import direction_error as direction_error
    from saddles.measures.margins import effective_rank as effective_rank
    from saddles.measures.margins import kkt_residuals as kkt_residuals
    from saddles.measures.margins import unit_margin as unit_margin
    from saddles.measures.modes import alignment as alignment
    from saddles.measures.modes import balance_drift as balance_drift
    from saddles.measures.modes import crossing_time as crossing_time
    from saddles.measures.modes import gram_error as gram_error
    from saddles.measures.modes import invariant_drift as invariant_drift
    from saddles.measures.modes import mode_state as mode_state
    from saddles.measures.spectra import best as best
    from saddles.measures.spectra import stable_rank as stable_rank

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
