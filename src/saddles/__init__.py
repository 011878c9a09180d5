"""saddles: predict, simulate, record and compare how neural networks learn."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from saddles import concepts as concepts
    from saddles import diagonal as diagonal
    from saddles import diffusion as diffusion
    from saddles import linear as linear
    from saddles import margin as margin
    from saddles import measures as measures
    from saddles import probe as probe
    from saddles import studies as studies
    from saddles import transformers as transformers
    from saddles.core.compare import compare as compare
    from saddles.core.dispatch import predict as predict
    from saddles.core.dispatch import simulate as simulate
    from saddles.core.store import load as load
    from saddles.core.store import save as save
    from saddles.errors import SaddlesError as SaddlesError
    from saddles.sweeps.api import sweep as sweep

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "SaddlesError": "saddles.errors",
        "compare": "saddles.core.compare",
        "diagonal": "saddles.diagonal",
        "concepts": "saddles.concepts",
        "diffusion": "saddles.diffusion",
        "linear": "saddles.linear",
        "load": "saddles.core.trajectory",
        "margin": "saddles.margin",
        "measures": "saddles.measures",
        "probe": "saddles.probe",
        "predict": "saddles.core.dispatch",
        "save": "saddles.core.trajectory",
        "simulate": "saddles.core.dispatch",
        "studies": "saddles.studies",
        "sweep": "saddles.sweeps.api",
        "transformers": "saddles.transformers",
    },
)
