"""Figures: they see trajectories only. Matplotlib is loaded with the first one."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.figures import concept_flows as concept_flows
    from saddles.figures import concepts as concepts
    from saddles.figures import diagonal as diagonal
    from saddles.figures import diffusion as diffusion
    from saddles.figures import films as films
    from saddles.figures import incontext as incontext
    from saddles.figures import linear as linear
    from saddles.figures import lora as lora
    from saddles.figures import margin as margin
    from saddles.figures import networks as networks
    from saddles.figures import plotting as plotting
    from saddles.figures import probe as probe
    from saddles.figures import regime as regime
    from saddles.figures import sweep as sweep
    from saddles.figures import transformers as transformers

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
