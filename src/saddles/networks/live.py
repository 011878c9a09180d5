"""The measures of this lab while a model trains: what the recorder of the probe is given.

    measures = [saddles.networks.LiveRegime(batch), saddles.networks.LiveHeads()]
    with saddles.probe.record(model, every=50, measures=measures) as run:
        ...
    run.result["measures"]["linearity"]

Training waits meanwhile. A measurement costs, in training steps on the same batch (`python -m benchmarks networks`),
about 3 for `LiveRegime` and 4.4 more for each probe, and about 2 for `LiveHeads`, whatever its batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.networks.heads import closure, invariants
from saddles.networks.lazy_or_active import regime

if TYPE_CHECKING:
    from torch import Tensor, nn

OF_HEADS = ("drift", "drift_of_change", "balance", "memory", "linearity", "outside")
"""Of `invariants` and `closure`; the recorder has the ranks itself."""


@arguments_explained
@dataclass(frozen=True, eq=False)
class LiveRegime:
    """Linearity of the change since the start and, with probes, drift of the tangent kernel; see `regime`.

    Args:
        batch: inputs on which the outputs are compared, as for `saddles.networks.regime`.
        probes: random directions for the kernel; 0 leaves it out.
        seed: draws them, the same at every measurement.
    """

    batch: object = field(repr=False)
    probes: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.probes < 0:
            raise SaddlesError.must_be("probes", "at least 0", self.probes)

    def __call__(self, model: "nn.Module", start: "Mapping[str, Tensor]") -> dict[str, float]:
        """`linearity`, `output_change`, `parameter_change` and so on, NaN while nothing has changed."""
        found = regime(model, start, model, self.batch, probes=self.probes, seed=self.seed)
        return {str(name): float(value) for name, value in found.data_vars.items()}


@arguments_explained
@dataclass(frozen=True)
class LiveHeads:
    """Drift of the invariants, balance, memory, linearity and share outside the spans of every head."""

    def __call__(self, model: "nn.Module", start: "Mapping[str, Tensor]") -> dict[str, np.ndarray]:
        """Arrays (layer, head, product); see `invariants` and `closure`."""
        from saddles.probe.weights.live_model import configuration  # loads torch

        told = configuration(model)
        found = {**invariants(start, model, told).data_vars, **closure(start, model, told).data_vars}
        return {name: found[name].values for name in OF_HEADS}
