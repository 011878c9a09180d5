"""saddles: predict, simulate, record and compare how neural networks learn."""

from typing import TYPE_CHECKING

from saddles.core.lazy import lazy_exports

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
    from saddles.core.errors import SaddlesError as SaddlesError
    from saddles.core.trajectory import load as load
    from saddles.core.trajectory import save as save
    from saddles.core.verbs import predict as predict
    from saddles.core.verbs import simulate as simulate
    from saddles.sweep.begin import sweep as sweep

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "SaddlesError": "saddles.core.errors",
        "compare": "saddles.core.compare",
        "diagonal": "saddles.diagonal",
        "concepts": "saddles.concepts",
        "diffusion": "saddles.diffusion",
        "linear": "saddles.linear",
        "load": "saddles.core.trajectory",
        "margin": "saddles.margin",
        "measures": "saddles.measures",
        "probe": "saddles.probe",
        "predict": "saddles.core.verbs",
        "save": "saddles.core.trajectory",
        "simulate": "saddles.core.verbs",
        "studies": "saddles.studies",
        "sweep": "saddles.sweep",
        "transformers": "saddles.transformers",
    },
)
