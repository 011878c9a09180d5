"""Grids of experiments, on one machine or on a Dask cluster, that survive interruption.

`saddles.sweep("linear/figure-1", {"c": [5, 10, 20]}, seeds=3)` runs one cell for each point of the grid and returns
a `Sweep`; this package is that function, too. A cell is what `saddles run` computes at the same settings and seed.
"""

import sys
import types
from typing import TYPE_CHECKING, Any

from saddles.core.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.sweep.begin import Sweep as Sweep
    from saddles.sweep.begin import sweep as sweep
    from saddles.sweep.grid import Grid as Grid
    from saddles.sweep.grid import spaced as spaced

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Grid": "saddles.sweep.grid",
        "Sweep": "saddles.sweep.begin",
        "spaced": "saddles.sweep.grid",
        "sweep": "saddles.sweep.begin",
    },
)


class _Room(types.ModuleType):
    """A package that can be called: importing any module of it puts it where the function `saddles.sweep` was."""

    def __call__(self, *words: Any, **options: Any) -> Any:
        from saddles.sweep.begin import sweep

        return sweep(*words, **options)


sys.modules[__name__].__class__ = _Room
