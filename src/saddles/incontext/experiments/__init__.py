"""The experiments of the lab of learning in context."""

from saddles.incontext.experiments import (
    conjecture,
    finite_prompts,
    lazy_active,
    modular_addition,
    order,
    phase_diagram,
    rank,
    softmax,
    staircase,
)

EXPERIMENTS = [
    staircase.EXPERIMENT,
    order.EXPERIMENT,
    rank.EXPERIMENT,
    lazy_active.EXPERIMENT,
    phase_diagram.EXPERIMENT,
    finite_prompts.EXPERIMENT,
    softmax.EXPERIMENT,
    conjecture.EXPERIMENT,
    modular_addition.EXPERIMENT,
]
