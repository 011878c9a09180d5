"""The experiments of lab `networks`."""

from typing import Any

from saddles.core.experiment import Experiment
from saddles.networks.experiments import closure, invariants, phase_diagram

EXPERIMENTS: list[Experiment[Any]] = [phase_diagram.EXPERIMENT, invariants.EXPERIMENT, closure.EXPERIMENT]
