"""saddles: predict, simulate, record and compare how neural networks learn.

Start with `simulate`, `predict` and `compare`; `saddles.protocols` says what a model, a theory and a method are.
"""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from saddles import concepts as concepts
    from saddles import diagonal as diagonal
    from saddles import diffusion as diffusion
    from saddles import figures as figures
    from saddles import incontext as incontext
    from saddles import linear as linear
    from saddles import margin as margin
    from saddles import measures as measures
    from saddles import networks as networks
    from saddles import probe as probe
    from saddles import studies as studies
    from saddles import transformers as transformers
    from saddles.core.assumptions import Assumptions as Assumptions
    from saddles.core.claim import Claim as Claim
    from saddles.core.compare import compare as compare
    from saddles.core.dispatch import predict as predict
    from saddles.core.dispatch import simulate as simulate
    from saddles.core.experiment import Experiment as Experiment
    from saddles.core.experiment import Size as Size
    from saddles.core.experiment import register as register
    from saddles.core.status import Status as Status
    from saddles.core.store import load as load
    from saddles.core.store import save as save
    from saddles.core.trajectory import trajectory as trajectory
    from saddles.errors import SaddlesError as SaddlesError
    from saddles.figures.films import animate as animate
    from saddles.figures.plotting import plot as plot
    from saddles.protocols import AXIS as AXIS
    from saddles.protocols import Method as Method
    from saddles.protocols import Model as Model
    from saddles.protocols import Theory as Theory
    from saddles.sweeps.api import sweep as sweep

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
