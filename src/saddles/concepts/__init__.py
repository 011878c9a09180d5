"""The structured identity mapping task (Yang et al.: Dynamics of Concept Learning)."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.concepts.assumptions import check_assumptions as check_assumptions
    from saddles.concepts.ensemble import flow_many as flow_many
    from saddles.concepts.failures import failure as failure
    from saddles.concepts.method import SGD as SGD
    from saddles.concepts.method import Batch as Batch
    from saddles.concepts.method import train as train
    from saddles.concepts.method import train_together as train_together
    from saddles.concepts.model import MLP as MLP
    from saddles.concepts.model import OneLayer as OneLayer
    from saddles.concepts.model import SymmetricTwoLayer as SymmetricTwoLayer
    from saddles.concepts.schedule import events as events
    from saddles.concepts.schedule import predicted_events as predicted_events
    from saddles.concepts.task import Identity as Identity
    from saddles.concepts.theory import OneLayerTheory as OneLayerTheory
    from saddles.concepts.theory import TwoLayerTheory as TwoLayerTheory
    from saddles.solvers.methods import GradientDescent as GradientDescent
    from saddles.solvers.methods import GradientFlow as GradientFlow

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    __file__,
    renamed={"assumptions": ("check_assumptions", "0.2.0"), "stages": ("predicted_events", "0.2.0")},
)
