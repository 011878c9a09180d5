"""The experiments of the diagonal lab."""

from saddles.diagonal.experiments.figure_2 import FIGURE_2, FIGURE_8_9
from saddles.diagonal.experiments.full_head import FULL_HEAD
from saddles.diagonal.experiments.linear import LINEAR
from saddles.diagonal.experiments.perturb import FIGURE_10, FIGURE_11
from saddles.diagonal.experiments.transformer import TRANSFORMER

EXPERIMENTS = [FIGURE_2, FIGURE_8_9, LINEAR, TRANSFORMER, FIGURE_10, FIGURE_11, FULL_HEAD]
