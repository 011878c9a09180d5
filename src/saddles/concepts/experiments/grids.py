"""What the experiments of this lab share: runs laid out as settings × seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from saddles.concepts.model import MLP, OneLayer
from saddles.concepts.sgd import SGD, Batch, train
from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory


def train_grid(
    model: MLP | OneLayer,
    tasks: Sequence[Sequence[Identity]],
    seeds: Sequence[int],
    method: SGD,
    labels: Sequence[str],
    keep: Sequence[str] = (),
) -> Trajectory:
    """Train one network on tasks[setting][seed], all in one program; only the concepts' coordinates are kept."""
    batch = grid_batch(model, tasks, seeds, method)
    return lay_out(train(batch.models, batch.tasks, batch.seeds, method, keep=keep), batch, tasks, seeds, labels)


def grid_batch(model: MLP | OneLayer, tasks: Sequence[Sequence[Identity]], seeds: Sequence[int], method: SGD) -> Batch:
    """Every run of tasks[setting][seed]."""
    flat = [task for row in tasks for task in row]
    return Batch([model] * len(flat), flat, list(seeds) * len(tasks), method)


def lay_out(
    found: Trajectory, batch: Batch, tasks: Sequence[Sequence[Identity]], seeds: Sequence[int], labels: Sequence[str]
) -> Trajectory:
    """The axis `run` becomes `setting` × `seed`. `stray` is the norm of the output beyond the concepts."""
    shape = (len(tasks), len(seeds))
    variables: dict[str, Any] = {}
    for name, values in found.data_vars.items():
        axis = values.dims.index("run")
        dims = (*values.dims[:axis], "setting", "seed", *values.dims[axis + 1 :])
        variables[str(name)] = (dims, values.values.reshape(*values.shape[:axis], *shape, *values.shape[axis + 1 :]))
    coords = {name: found.coords[name] for name in found.coords if "run" not in found.coords[name].dims}
    whole = xr.Dataset(variables, coords=coords, attrs=found.attrs)
    whole = whole.assign_coords(setting=list(labels), seed=list(seeds))
    concepts = batch.tasks[0].concepts
    beyond = whole["output"].isel(coordinate=slice(concepts, None))
    whole["stray"] = np.sqrt((beyond**2).sum("coordinate"))
    whole = whole.isel(coordinate=slice(0, concepts))
    whole["time"].attrs["unit"] = "gradient time"
    whole.attrs["network"] = _words(batch.models[0], batch.method)
    return whole


def _words(model: MLP | OneLayer, method: SGD) -> str:
    network = model if isinstance(model, MLP) else MLP()
    layers = len(network.widths) + 1
    name = f"{layers} layer{'s' if layers > 1 else ''}, {'ReLU' if network.activation == 'relu' else 'linear'}"
    return name + (", loss averaged over coordinates" if method.loss == "mean" else "")


def pair(values: Sequence[float]) -> str:
    """(0.05, 1) as text."""
    return f"({', '.join(f'{value:g}' for value in values)})"
