"""The experiments of the lab of learning in context."""

from saddles.incontext.experiments import conjecture, finite_prompts, lazy_active, order, rank, staircase

EXPERIMENTS = [
    staircase.EXPERIMENT,
    order.EXPERIMENT,
    rank.EXPERIMENT,
    lazy_active.EXPERIMENT,
    finite_prompts.EXPERIMENT,
    conjecture.EXPERIMENT,
]
