"""Which solution softmax attention converges to (Sheen et al.: implicit regularization of one-layer attention)."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.margin import low_rank as low_rank
    from saddles.margin import text as text
    from saddles.margin.assumptions import check_assumptions as check_assumptions
    from saddles.margin.attention import AttentionFlow as AttentionFlow
    from saddles.margin.certificate import Certified as Certified
    from saddles.margin.certificate import InfeasibleError as InfeasibleError
    from saddles.margin.convex import max_margin as max_margin
    from saddles.margin.convex import solve as solve
    from saddles.margin.low_rank import RankConstrained as RankConstrained
    from saddles.margin.low_rank import low_rank_margin as low_rank_margin
    from saddles.margin.method import MarginFlow as MarginFlow
    from saddles.margin.model import AttentionModel as AttentionModel
    from saddles.margin.model import DiagonalAttention as DiagonalAttention
    from saddles.margin.model import FactoredAttention as FactoredAttention
    from saddles.margin.model import JointAttention as JointAttention
    from saddles.margin.model import aligned_frames as aligned_frames
    from saddles.margin.model import aligned_weights as aligned_weights
    from saddles.margin.task import Tokens as Tokens
    from saddles.margin.theory import MaxMargin as MaxMargin

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__, renamed={"check": ("check_assumptions", "0.2.0")})
