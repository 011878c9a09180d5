"""Lab `networks`: lazy or active, for any network that can be differentiated."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.networks.deep import follow_deep as follow_deep
    from saddles.networks.diagram import phase_diagram as phase_diagram
    from saddles.networks.heads import adam_start as adam_start
    from saddles.networks.heads import closure as closure
    from saddles.networks.heads import invariants as invariants
    from saddles.networks.lazy_or_active import linearity as linearity
    from saddles.networks.lazy_or_active import regime as regime
    from saddles.networks.live import LiveHeads as LiveHeads
    from saddles.networks.live import LiveRegime as LiveRegime
    from saddles.networks.model import Perceptron as Perceptron
    from saddles.networks.observe import distance as distance
    from saddles.networks.observe import parting_time as parting_time
    from saddles.networks.phases import predicted_border as predicted_border
    from saddles.networks.phases import predicted_linearity as predicted_linearity
    from saddles.networks.side_by_side import beside as beside
    from saddles.networks.task import Regression as Regression
    from saddles.networks.theory import Linearised as Linearised
    from saddles.networks.theory import top_eigenvalue as top_eigenvalue
    from saddles.solvers.methods import GradientDescent as GradientDescent
    from saddles.solvers.methods import GradientFlow as GradientFlow

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
