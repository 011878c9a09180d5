"""The experiments of the diffusion lab."""

from saddles.diffusion.experiments.circles import EXPERIMENTS as EXPERIMENTS
