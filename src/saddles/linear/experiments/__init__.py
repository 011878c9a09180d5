"""The experiments of the linear lab, in the order of the paper."""

from saddles.linear.experiments import figure_1, figure_2, theorem_1, theorem_2, trade_off, transition

EXPERIMENTS = [
    figure_1.EXPERIMENT,
    figure_2.EXPERIMENT,
    theorem_1.EXPERIMENT,
    theorem_2.EXPERIMENT,
    transition.EXPERIMENT,
    trade_off.EXPERIMENT,
]
