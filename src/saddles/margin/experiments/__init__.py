"""The experiments of the margin lab. The paper has none: these are the first."""

from saddles.margin.experiments.aligned import ALIGNED
from saddles.margin.experiments.diagonal import DIAGONAL
from saddles.margin.experiments.general import GENERAL
from saddles.margin.experiments.initialisation import INITIALISATION
from saddles.margin.experiments.kkt import KKT
from saddles.margin.experiments.rank import RANK
from saddles.margin.experiments.real_tokens import REAL_TOKENS

EXPERIMENTS = [DIAGONAL, KKT, ALIGNED, GENERAL, RANK, INITIALISATION, REAL_TOKENS]
