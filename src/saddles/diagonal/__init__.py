"""Networks h(x; u ⊙ v), learned one coordinate at a time (Boix-Adserà et al.: gradual rank increase)."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.diagonal.assumptions import check_assumptions as check_assumptions
    from saddles.diagonal.method import Descent as Descent
    from saddles.diagonal.method import Flow as Flow
    from saddles.diagonal.model import AttentionHead as AttentionHead
    from saddles.diagonal.model import Diagonal as Diagonal
    from saddles.diagonal.model import DiagonalTransformer as DiagonalTransformer
    from saddles.diagonal.model import FullHead as FullHead
    from saddles.diagonal.model import LinearDiagonal as LinearDiagonal
    from saddles.diagonal.network import Network as Network
    from saddles.diagonal.perturb import perturbed_descents as perturbed_descents
    from saddles.diagonal.perturb import perturbed_flows as perturbed_flows
    from saddles.diagonal.quadratic import saddle_path as saddle_path
    from saddles.diagonal.task import Supervised as Supervised
    from saddles.diagonal.task import TeacherStudent as TeacherStudent
    from saddles.diagonal.task import cross_entropy as cross_entropy
    from saddles.diagonal.task import squared_error as squared_error
    from saddles.diagonal.theory import Incremental as Incremental

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
