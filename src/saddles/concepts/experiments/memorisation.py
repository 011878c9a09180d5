"""Transient memorisation in networks of several layers: shared by figures 2c, 3, 13 and 14.

The text's rate of 0.1 on the summed loss does not converge here (sharpness about depth × a_max = 32), so
the loss is averaged over coordinates as in the authors' code, with rate 0.01 in low dimension.

Claims and their thresholds. Transient memorisation is a rise of the test loss by more than 1 % of its
first value between two descents.

- *Low dimension.* It depends on the initial weights, so it cannot be asked of every seed; "seen" is read
  as at least one seed in ten.
- *High dimension.* In no seed.
"""

from functools import partial
from typing import Any

import xarray as xr

from saddles.concepts.experiments import PAPER
from saddles.concepts.experiments.grids import pair, train_grid
from saddles.concepts.model import MLP
from saddles.concepts.sgd import SGD
from saddles.concepts.task import Identity
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.measures.loss_curves import descents


def run_dimensions(settings: dict[str, Any], context: Context) -> Trajectory:
    """Four linear layers, μ = (2, 4), in high and in low dimension (figures 2c and 3)."""
    parts = {
        "high": (settings["dim"], settings["dim"], settings["rate"], settings["seeds"]),
        "low": (2, 4, settings["rate_low"], settings["seeds_low"]),
    }
    found = {}
    for name, (dim, hidden, rate, count) in parts.items():
        seeds = context.seeds(count)
        tasks = [Identity((2.0, 4.0), 0.05, dim=dim, samples=settings["samples"], rotate=True, seed=s) for s in seeds]
        method = SGD(rate, settings["batch"], settings["epochs"], "mean", settings["save_every"])
        make = partial(train_grid, MLP((hidden,) * 3), [tasks], seeds, method, [f"d = {dim}"])
        found[name] = context.part(name, make)
    return join(found)


def run_low(settings: dict[str, Any], context: Context) -> Trajectory:
    """Three linear layers of three units, d = 3, s = 2, no rotation (figures 13 and 14)."""
    seeds = context.seeds(settings["seeds"])
    cases = [(1.0, 2.0), (2.0, 4.0)]
    tasks = [[Identity(mu, 0.05, dim=3, samples=settings["samples"], seed=s) for s in seeds] for mu in cases]
    method = SGD(settings["rate"], settings["batch"], settings["epochs"], "mean", settings["save_every"])
    return train_grid(MLP((3, 3)), tasks, seeds, method, [f"μ = {pair(mu)}" for mu in cases])


def join(found: dict[str, Trajectory]) -> Trajectory:
    """Put two runs with clocks of their own along `setting`: `time` becomes steps, the gradient time a variable."""
    parts = []
    for part in found.values():
        clock = part["time"].values
        part = part.assign_coords(time=part["step"].values.astype(float)).drop_vars("step")
        part["gradient_time"] = (("time", "setting"), clock[:, None])
        parts.append(part)
    most = max(part.sizes["seed"] for part in parts)
    parts = [part.assign_coords(seed=list(range(part.sizes["seed"]))).reindex(seed=list(range(most))) for part in parts]
    whole = xr.concat(
        parts,
        "setting",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    whole["time"].attrs["unit"] = "steps"
    return whole.transpose("time", ...)


def depth_claims(trajectory: Trajectory, size: str, where: str) -> list[Claim]:
    """Judge where the test loss rises between two descents."""
    found = descents(trajectory["test_loss"].where(trajectory["test_loss"].notnull().all("time"), drop=False))
    judge = partial(check, paper=PAPER, where=where, size=size)
    claims = []
    for label in trajectory["setting"].values:
        one = found.sel(setting=label)
        real = trajectory["test_loss"].sel(setting=label).isel(time=0).notnull().values
        depth = one["depth"].values[real]
        if str(label).startswith("d = ") and str(label) != "d = 2":
            text = f"High dimension ({label}): the test loss never rises, largest rise between descents over its start"
            claims.append(judge(text, values=list(depth), relation="<=", threshold=0.01))
        else:
            text = f"Low dimension ({label}): transient memorisation is seen, fraction of seeds with a rise above 1 %"
            claims.append(judge(text, values=float((depth > 0.01).mean()), relation=">=", threshold=0.1))
    return claims
