"""What is saved of a network while it trains, and when two runs part."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.core.validation import check_keep
from saddles.errors import SaddlesError
from saddles.networks.task import Regression
from saddles.solvers.dynamics import Path

KEEPABLE = ("outputs", "test_outputs")

ROUNDING = 1e-6
"""Share of the outputs below which a difference is rounding, in either precision."""

PARTED = 0.1
"""Two runs have parted where they differ by more than this share of what was learned."""


class Data(eqx.Module):
    """A task on the device."""

    inputs: Float[Array, "sample into"]
    targets: Float[Array, "sample output"]
    test_inputs: Float[Array, "test into"]
    test_targets: Float[Array, "test output"]
    keep: tuple[str, ...] = eqx.field(static=True)

    def scores(
        self, values: Float[Array, "sample output"], tested: Float[Array, "test output"]
    ) -> dict[str, Float[Array, "..."]]:
        """Losses and accuracy, and the outputs where they are to be kept."""
        right = jnp.argmax(tested, 1) == jnp.argmax(self.test_targets, 1)
        seen = {
            "loss": half_mean_square(values, self.targets),
            "test_loss": half_mean_square(tested, self.test_targets),
            "test_accuracy": jnp.mean(right.astype(values.dtype)),
        }
        whole = {"outputs": values, "test_outputs": tested}
        return seen | {name: whole[name] for name in self.keep}


def half_mean_square(values: Float[Array, "sample output"], targets: Float[Array, "sample output"]) -> Float[Array, ""]:
    """(1/2n) Σ ‖f − y‖²."""
    return jnp.sum((values - targets) ** 2) / (2 * values.shape[0])


def data_of(task: Regression, keep: Sequence[str] | None, precision: str) -> Data:
    """The task on the device, in the precision asked for."""
    parts = (task.inputs, task.targets, task.test_inputs, task.test_targets)
    kept = check_keep(keep, KEEPABLE)
    return Data(*(jnp.asarray(part, dtype=precision) for part in parts), keep=kept)


def to_trajectory(path: Path, task: Regression, **provenance: Any) -> Trajectory:
    """Label what a method saw."""
    axes = {"outputs": ("time", "sample", "output"), "test_outputs": ("time", "test_sample", "output")}
    variables = {name: (axes.get(name, ("time",)), np.asarray(values)) for name, values in path.saved.items()}
    return make_trajectory(
        variables, path.times, coords=path.coords, lab="networks", task=task, **path.facts, **provenance
    )


def distance(real: xr.Dataset, linearised: xr.Dataset) -> xr.DataArray:
    """‖f − f_lin‖/‖f − f₀‖ on the training inputs at every time; 0 at the start, NaN while nothing has changed."""
    for run in (real, linearised):
        if "outputs" not in run:
            raise SaddlesError(
                "A run without `outputs` cannot be compared. Simulate and predict with keep=['outputs']."
            )
    axes = ["sample", "output"]
    apart = ((real["outputs"] - linearised["outputs"]) ** 2).sum(axes) ** 0.5
    moved = ((real["outputs"] - real["outputs"].isel(time=0)) ** 2).sum(axes) ** 0.5
    size = (real["outputs"].isel(time=0) ** 2).sum(axes) ** 0.5
    # The closed form gives f₀ itself only up to rounding.
    still = (moved == 0) & (apart <= ROUNDING * size)
    return xr.where(still, 0.0, apart / moved.where(moved > 0))


def parting_time(real: xr.Dataset, linearised: xr.Dataset, threshold: float = PARTED) -> float:
    """The first time at which `distance` passes the threshold; infinite where it never does."""
    apart = distance(real, linearised)
    late = np.flatnonzero(apart.values > threshold)
    return float(apart["time"].values[late[0]]) if late.size else float("inf")


def flattened(values: Array) -> Array:
    """All outputs of all samples as one vector."""
    return jnp.reshape(values, -1)


def leaves_of(weights: Sequence[np.ndarray], precision: str) -> tuple[Array, ...]:
    """Weights on the device."""
    return jax.tree.map(lambda one: jnp.asarray(one, dtype=precision), tuple(weights))
