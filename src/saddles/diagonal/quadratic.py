"""The saddle-to-saddle path of the linear diagonal network, for quadratic loss, by another road.

With s = ∫g dτ in rescaled time, coordinate i may be positive only while s_i = +1 and negative only
while s_i = −1. Between jumps β rests at the least-squares solution under these signs and s moves
linearly, until the next s_i reaches ±1 (Pesme and Flammarion, Saddle-to-saddle dynamics in diagonal linear
networks, 2023; Berthier, Incremental learning in diagonal linear networks, 2022). Each rest is a
non-negative least-squares problem, solved directly: no flow, no Newton, nothing of Algorithm 1's code.
"""

from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import nnls

FLAT = 1e-10
"""Forces below this part of the first are 0, and an s_i this close to ±1 is there: both are round-off of least squares,
which is solved directly. Algorithm 1 follows flows and must allow ten times as much (`rest.ZERO`)."""


def saddle_path(inputs: np.ndarray, targets: np.ndarray, max_stages: int = 100) -> xr.Dataset:
    """Stages of min mean (x·β − y)² from vanishing initialisation.

    Args:
        inputs: (sample, coordinate).
        targets: (sample,).

    Returns:
        `stage_time`, `stage_coordinate`, `stage_sign`, `stage_loss`, `support_size` (stage) and `stage_beta`
        (stage, coordinate), as `predict` names them.
    """
    count, size = inputs.shape
    pull, beta, now = np.zeros(size), np.zeros(size), 0.0
    first = 2 / count * np.abs(inputs.T @ targets).max()
    rows = []
    while len(rows) < max_stages:
        force = 2 / count * inputs.T @ (targets - inputs @ beta)
        force[np.abs(force) <= FLAT * first] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            wait = (np.sign(force) - pull) / force
        # A coordinate that is on its barrier and pushed outwards is active already: it has nothing to wait for.
        wait[(force == 0) | (np.abs(np.sign(force) - pull) <= FLAT)] = np.inf
        new = int(np.argmin(wait))
        if not np.isfinite(wait[new]):
            break
        now += wait[new]
        pull = pull + wait[new] * force
        # Put exactly onto ±1, or the round-off of the sum would decide whether it is on the edge.
        pull[new] = np.sign(force[new])
        edge = np.flatnonzero(np.abs(np.abs(pull) - 1) <= FLAT)
        side = np.sign(pull[edge])
        beta = np.zeros(size)
        # With the signs taken into the columns, least squares under these signs is non-negative least squares.
        beta[edge] = side * nnls(inputs[:, edge] * side, targets)[0]
        loss = float(np.mean((targets - inputs @ beta) ** 2))
        rows.append((now, new, int(pull[new]), loss, int((beta != 0).sum()), beta))
    names = ("stage_time", "stage_coordinate", "stage_sign", "stage_loss", "support_size")
    variables: dict[str, Any] = {name: ("stage", np.array([row[i] for row in rows])) for i, name in enumerate(names)}
    variables["stage_beta"] = (("stage", "coordinate"), np.array([row[-1] for row in rows]).reshape(len(rows), size))
    return xr.Dataset(variables, coords={"stage": np.arange(len(rows))})
