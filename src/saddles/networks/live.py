"""The measures of this lab while a model trains: what the recorder of the probe is given.

    measures = [saddles.networks.LiveRegime(batch), saddles.networks.LiveHeads()]
    with saddles.probe.record(model, every=50, measures=measures) as run:
        ...
    run.result["measures"]["linearity"]

Training waits meanwhile. A measurement costs, in training steps on the same batch (`python -m benchmarks networks`),
about 3.4 for `LiveRegime` and 3.6 more for each probe, and about 1 for `LiveHeads`, whatever its batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.networks.heads import closure, invariants
from saddles.networks.lazy_or_active import regime
from saddles.probe.layouts.layout import PRODUCTS, Layout

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saddles.probe.weights.adapted import Adapted

OF_HEADS = ("drift", "drift_of_change", "balance", "memory", "linearity", "outside")
"""Of `invariants` and `closure`; the recorder has the ranks itself."""


@arguments_explained
@dataclass(frozen=True, eq=False)
class LiveRegime:
    """Linearity of the change since the start and, with probes, drift of the tangent kernel; see `regime`.

    The recorder keeps the parameters of the start and no buffers: of a batch norm, for instance, the running means are
    those of the moment.

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
    """Drift of the invariants, balance, memory, linearity and share outside the spans of every head.

    Drifts are NaN where gradient flow keeps no such thing (see `applies` of `saddles.networks.invariants`). Of a model
    that PEFT trains, the weights that it computes with are measured, W₀ + s·BA; gradient flow of the factors B and A
    does not keep the invariants of a product that they change, so drifts are NaN there too.
    """

    def __call__(self, model: "nn.Module", start: "Mapping[str, Tensor]") -> dict[str, np.ndarray]:
        """Arrays (layer, head, product); see `invariants` and `closure`."""
        from saddles.probe.weights.adapted import find_adapted  # loads torch
        from saddles.probe.weights.live_model import configuration, parameters

        told, adapted = configuration(model), find_adapted(model)
        if adapted is None:
            laws, closed = invariants(start, model, told), closure(start, model, told)
        else:
            early, late = adapted.state(start), adapted.state(parameters(model))
            told = _with_count(told, adapted.layout)
            laws, closed = invariants(early, late, told), closure(early, late, told)
            laws["applies"] = laws["applies"] & _kept(laws["applies"], adapted)
        found = {**laws.where(laws["applies"]).data_vars, **closed.data_vars}
        return {name: found[name].values for name in OF_HEADS}


def _with_count(told: dict[str, object], layout: Layout) -> dict[str, object]:
    """A configuration that states the number of heads, which modules may know alone; refused where there are none."""
    if not layout.heads:
        name, why = layout.skipped[-1] if layout.skipped else ("the model", "no parameter looks like attention")
        raise SaddlesError(f"No attention heads were found beside the adapter ({name}: {why}). Leave LiveHeads out.")
    counts = {len(heads) for heads in layout.layers().values()}
    return {"num_attention_heads": max(counts), **told} if len(counts) == 1 else told


def _kept(like: xr.DataArray, adapted: "Adapted") -> xr.DataArray:
    """Where gradient flow keeps the invariants of a model with an adapter: of products that it does not change."""
    kept = xr.ones_like(like)
    changed = {module.weight for module in adapted.modules}
    for head in adapted.layout.heads:
        for product, kinds in PRODUCTS.items():
            names = {link.parameter for kind in kinds for link in head.factors[kind].links}
            # A norm without parameters is not seen in a state dict.
            if names & changed or (product == "KQ" and head.normalised):
                kept.loc[{"layer": head.layer, "head": head.head, "product": product}] = False
    return kept
