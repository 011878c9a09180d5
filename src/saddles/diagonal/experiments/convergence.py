"""How curves come nearer to Algorithm 1's staircase as α falls: distances and their slopes against log(1/α)."""

import numpy as np
import xarray as xr

from saddles.core.claim import too_few
from saddles.measures.lines import slope

SMALL = 4
"""Decades from which on a slope against log(1/α) is fitted: above α = 1e-4 nothing is asymptotic yet."""


def distance(trajectory: xr.Dataset, late: float = 1.0) -> np.ndarray:
    """Mean over time of |loss − staircase| over the first loss, for each α; stages come `late` times as late."""
    gap = abs(trajectory["loss"] - delayed(trajectory["predicted_loss"], late)).mean("time")
    return (gap / trajectory["predicted_loss"][0]).values


def delayed(staircase: xr.DataArray, late: float) -> xr.DataArray:
    """A staircase whose stages come `late` times as late."""
    clock = staircase["time"].values
    return staircase.isel(time=np.searchsorted(clock, clock / late, side="right") - 1).assign_coords(time=clock)


def slope_of(trajectory: xr.Dataset, distances: np.ndarray, scales: str = "decade") -> float:
    """Log-log slope of a distance against log(1/α), one distance per decade."""
    decades = trajectory[scales].values.astype(float)
    small = decades >= SMALL
    return float(slope(np.log(decades[small]), np.log(distances[small])))


def too_few_small(decades: xr.DataArray, name: str) -> str:
    """Why no slope is judged, where there are fewer than two small scales."""
    return too_few(f"`{name}` from {SMALL} on", decades.values[decades.values >= SMALL])


def slopes_of_stages(errors_by_scale: xr.DataArray) -> np.ndarray:
    """Median over stages of the log-log slope of an error, one per seed, over stages that agree at every α."""
    clock = np.log(errors_by_scale["deep"].values.astype(float))
    result = []
    for errors in errors_by_scale.transpose("seed", "deep", "order_stage").values:
        whole = np.isfinite(errors).all(axis=0) & (errors > 0).all(axis=0)
        if whole.any():
            result.append(np.median(slope(clock, np.log(errors[:, whole]))))
    return np.array(result)
