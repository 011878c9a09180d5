"""The experiments of the concepts lab, in the order of the paper; the last two are this project's."""

from saddles.concepts.experiments import (
    breakdown,
    depth,
    figure_5,
    figure_7,
    figure_10,
    lemmas,
    memorisation,
    orders,
    pivot_law,
    searches,
    theory_vs_sgd,
)

EXPERIMENTS = [
    orders.FIGURE_2A,
    orders.FIGURE_2B,
    memorisation.FIGURE_2C,
    memorisation.FIGURE_3,
    figure_5.EXPERIMENT,
    figure_7.EXPERIMENT,
    searches.FIGURE_8,
    searches.FIGURE_9,
    figure_10.EXPERIMENT,
    orders.FIGURE_11,
    orders.FIGURE_12,
    memorisation.FIGURE_13,
    memorisation.FIGURE_14,
    depth.EXPERIMENT,
    theory_vs_sgd.EXPERIMENT,
    breakdown.EXPERIMENT,
    pivot_law.EXPERIMENT,
    lemmas.EXPERIMENT,
]
