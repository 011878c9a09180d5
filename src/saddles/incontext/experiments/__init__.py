"""The experiments of the lab of learning in context."""

from saddles.incontext.experiments import conjecture, finite_prompts, lazy_active, staircase

EXPERIMENTS = [staircase.EXPERIMENT, lazy_active.EXPERIMENT, finite_prompts.EXPERIMENT, conjecture.EXPERIMENT]
