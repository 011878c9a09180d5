"""The experiments of the linear lab, in the order of the paper."""

from saddles.linear.experiments import (
    figure_1,
    figure_2,
    stages,
    stuck,
    theorem_1,
    theorem_2,
    trade_off,
    transition,
)

EXPERIMENTS = [
    stuck.EXPERIMENT,
    figure_1.EXPERIMENT,
    figure_2.EXPERIMENT,
    theorem_1.EXPERIMENT,
    theorem_2.EXPERIMENT,
    stages.EXPERIMENT,
    transition.EXPERIMENT,
    trade_off.EXPERIMENT,
]
