"""Lab `diffusion`: concept learning in a conditional diffusion model, in pictures of circles."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.diffusion.classifier import ClassifierPlan as ClassifierPlan
    from saddles.diffusion.classifier import concept_classifier as concept_classifier
    from saddles.diffusion.evaluation import Evaluation as Evaluation
    from saddles.diffusion.images import Circles as Circles
    from saddles.diffusion.training import Plan as Plan
    from saddles.diffusion.training import train as train
    from saddles.diffusion.unet import UNetShape as UNetShape
    from saddles.diffusion.vdm import VDM as VDM
    from saddles.diffusion.vdm import make_vdm as make_vdm

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
