"""The experiments of the transformers lab."""

from saddles.transformers.experiments import gpt2, vit

EXPERIMENTS = [*vit.EXPERIMENTS, gpt2.EXPERIMENT]
