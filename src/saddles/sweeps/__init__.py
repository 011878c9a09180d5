"""Grids of experiments, on one machine or on a Dask cluster, that survive interruption.

`saddles.sweep("linear/figure-1", {"c": [5, 10, 20]}, seeds=3)` runs one cell for each point of the grid and returns
a `Sweep`. A cell is what `saddles run` computes at the same settings and seed.
"""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.sweeps.api import Sweep as Sweep
    from saddles.sweeps.api import sweep as sweep
    from saddles.sweeps.grid import Grid as Grid
    from saddles.sweeps.grid import spaced as spaced

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
