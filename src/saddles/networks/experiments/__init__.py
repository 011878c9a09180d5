"""The experiments of lab `networks`."""

from typing import Any

from saddles.core.experiment import Experiment
from saddles.networks.experiments import (
    closure,
    depth,
    fine_tune,
    invariants,
    linearised,
    narrow_head,
    phase_diagram,
    vit_regime,
)

EXPERIMENTS: list[Experiment[Any]] = [
    phase_diagram.EXPERIMENT,
    depth.EXPERIMENT,
    vit_regime.EXPERIMENT,
    linearised.EXPERIMENT,
    invariants.EXPERIMENT,
    closure.EXPERIMENT,
    narrow_head.EXPERIMENT,
    fine_tune.EXPERIMENT,
]
