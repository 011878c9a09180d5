"""The experiments of the transformers lab."""

from typing import Any

from saddles.core.experiment import Experiment
from saddles.transformers.experiments import gpt2, imagenet, vit_cifar

EXPERIMENTS: list[Experiment[Any]] = [*vit_cifar.EXPERIMENTS, imagenet.EXPERIMENT, gpt2.EXPERIMENT]
