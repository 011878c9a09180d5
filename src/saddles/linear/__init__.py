"""Two-layer linear networks, from lazy to active (Tu, Aranguri, Jacot: Mixed Dynamics)."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.linear.model import TwoLayer as TwoLayer
    from saddles.linear.phases import leading_time as leading_time
    from saddles.linear.phases import phase as phase
    from saddles.linear.phases import recovery_time as recovery_time
    from saddles.linear.task import Completion as Completion
    from saddles.linear.task import Denoising as Denoising
    from saddles.linear.task import MatrixCost as MatrixCost
    from saddles.linear.task import Regression as Regression
    from saddles.linear.task import Sensing as Sensing
    from saddles.linear.theory import Aligned as Aligned
    from saddles.linear.theory import Balanced as Balanced
    from saddles.linear.theory import Lazy as Lazy
    from saddles.linear.theory import SelfConsistent as SelfConsistent
    from saddles.solvers.methods import GradientDescent as GradientDescent
    from saddles.solvers.methods import GradientFlow as GradientFlow

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
