"""Studies: comparisons between labs, through stored trajectories."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.studies.sim import order_against_sim as order_against_sim
    from saddles.studies.sim import sim_for as sim_for

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
