"""What the experiments of this lab share: runs laid out as settings × seeds."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory


def lay_out(
    trained: Trajectory, tasks: Sequence[Sequence[Identity]], seeds: Sequence[int], labels: Sequence[str], network: str
) -> Trajectory:
    """The axis `run` of a training of tasks[setting][seed] becomes `setting` × `seed`.

    Only the concepts' coordinates are kept; `stray` is the norm of the output beyond them.

    Args:
        labels: one for each setting.
        network: a few words on the network, for figures.
    """
    shape = (len(tasks), len(seeds))
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, values in trained.data_vars.items():
        axis = values.dims.index("run")
        dims = (*map(str, values.dims[:axis]), "setting", "seed", *map(str, values.dims[axis + 1 :]))
        variables[str(name)] = (dims, values.values.reshape(*values.shape[:axis], *shape, *values.shape[axis + 1 :]))
    coords = {name: trained.coords[name] for name in trained.coords if "run" not in trained.coords[name].dims}
    whole = xr.Dataset(variables, coords=coords, attrs=trained.attrs)
    whole = whole.assign_coords(setting=list(labels), seed=list(seeds))
    concepts = tasks[0][0].concepts
    beyond = whole["output"].isel(coordinate=slice(concepts, None))
    whole["stray"] = np.sqrt((beyond**2).sum("coordinate"))
    whole = whole.isel(coordinate=slice(0, concepts))
    whole["time"].attrs["unit"] = "gradient time"
    whole.attrs["network"] = network
    return whole


def pair(values: Sequence[float]) -> str:
    """(0.05, 1) as text."""
    return f"({', '.join(f'{value:g}' for value in values)})"
