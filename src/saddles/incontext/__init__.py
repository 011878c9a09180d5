"""Attention that learns to learn in context, and one theory for every staircase (Zhang et al.; Kunin et al.)."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.incontext.method import GradientFlow as GradientFlow
    from saddles.incontext.method import PromptDescent as PromptDescent
    from saddles.incontext.model import Merged as Merged
    from saddles.incontext.model import Separate as Separate
    from saddles.incontext.model import Wide as Wide
    from saddles.incontext.neurons import Neurons as Neurons
    from saddles.incontext.neurons import Samples as Samples
    from saddles.incontext.softmax import Softmax as Softmax
    from saddles.incontext.task import Regression as Regression
    from saddles.incontext.theory import AlternatingFlows as AlternatingFlows
    from saddles.incontext.theory import SelfConsistent as SelfConsistent
    from saddles.solvers.methods import GradientDescent as GradientDescent

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
