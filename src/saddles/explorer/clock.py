"""Instants that are dense where something happens: a stage is short beside the plateau before it."""

import math

import numpy as np
import xarray as xr

ROWS = 200
"""Saved instants, always: one compiled program for all views of a model's size."""
NEAR = 0.6
"""Share of the instants that lie around the stages."""
FINE = 50
"""Points per instant on which the density of instants is tabulated."""


def around(predicted: xr.Dataset, decades: float, rows: int = ROWS) -> np.ndarray:
    """Instants from 0 until after the last predicted stage, most of them around the stages.

    From initial weights 10^−decades a stage takes about 1/log(1/α) of the time that leads up to it, so that evenly
    spaced instants would show it as a jump.

    Args:
        predicted: with `stage_time`, from which the first entry is left out where it is 0, the start.
        decades: −log₁₀ of the initial scale.
        rows: how many instants.
    """
    stages = predicted["stage_time"].values
    stages = stages[stages > 0]
    if not len(stages):
        return np.linspace(0.0, float(predicted["time"][-1]) or 10.0, rows)
    end = 1.2 * float(stages[-1])
    widths = np.diff(stages, prepend=0.0).clip(0.05 * stages) / max(decades * math.log(10), 1.0)
    fine = np.linspace(0.0, end, FINE * rows + 1)
    # Logistic curves around the stages on top of a straight line: the share of instants that have passed.
    near = np.mean(
        [0.5 + 0.5 * np.tanh((fine - at) / (2 * width)) for at, width in zip(stages, widths, strict=True)], axis=0
    )
    share = (1 - NEAR) * fine / end + NEAR * (near - near[0]) / (near[-1] - near[0])
    return np.interp(np.linspace(0.0, 1.0, rows), share, fine)
