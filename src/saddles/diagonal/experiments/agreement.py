"""Whether a flow learns what Algorithm 1 predicts, in that order and at those times."""

from typing import Any

import numpy as np
import xarray as xr

from saddles.core.dispatch import predict, simulate
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.method import Flow
from saddles.diagonal.theory import Incremental
from saddles.measures.activations import stages

FACTS = ("agrees", "same_before", "gap", "margin", "time_error", "finite_error", "scale_error")


def log_alpha(decades: float) -> float:
    """Log α of α = 10^(−decades)."""
    return -float(decades) * float(np.log(10))


def freedom(model: Any, seed: int) -> float:
    """2 max|log|p₀|, log|q₀||: by how much the start may shift log-scales, to be divided by log(1/α)."""
    u, v = model.start(seed)
    return 2 * float(np.abs(np.log(np.abs(np.concatenate([u + v, u - v])))).max())


def compare_stages(model: Any, task: Any, seed: int, count: int, decades: list[int]) -> Trajectory:
    """Predicted against detected stages for several α.

    Returns variables over (decade, stage): `agrees` (coordinate and sign are as predicted), `same_before`
    (the same coordinates were active before it), `gap` and `margin` (of the two smallest Δ, relative to Δ and to
    the stage's time, divided by 2 max|log p₀, q₀|/log(1/α): above 1 the start cannot reverse the order by itself),
    `time_error` and `finite_error` (relative error of the limit's and of the finite form's time), and `scale_error`
    (largest |log_α|u+v| − b| over coordinates at the activation, the invariant of (20)); these three are NaN where
    the stage does not agree.
    """
    limit = predict(model, task, Incremental(count + 1), seed=seed)
    end = 1.05 * float(limit["stage_time"][-1])
    rows = [_one(model, task, seed, min(count, limit.sizes["stage"]), d, limit, end) for d in decades]
    variables = {
        name: (("time", "decade", "stage"), np.stack([row[name] for row in rows])[None]) for name in FACTS
    }  # fmt: skip
    return make_trajectory(variables, [0.0], unit="end of the run", coords={"decade": decades})


def _one(
    model: Any, task: Any, seed: int, count: int, decades: int, limit: xr.Dataset, end: float
) -> dict[str, np.ndarray]:
    scale = log_alpha(decades)
    flow = simulate(model, task, Flow(scale, until=end), seed=seed)
    seen = stages(flow)
    finite = predict(model, task, Incremental(count, log_alpha=scale), seed=seed)
    allowed = freedom(model, seed) / -scale
    found = {name: np.full(count, np.nan) for name in FACTS}
    found["gap"] = limit["stage_gap"].values[:count] / allowed
    found["margin"] = limit["stage_margin"].values[:count] / allowed
    names = ("stage_coordinate", "stage_sign")
    for k in range(count):
        here, there = ([int(run[name][k]) if k < run.sizes["stage"] else -9 for name in names] for run in (seen, limit))
        before = [set(run["stage_coordinate"].values[:k].tolist()) for run in (seen, limit)]
        found["agrees"][k], found["same_before"][k] = here == there, before[0] == before[1]
        if here == there:
            when = float(seen["unit_time"][k])
            found["time_error"][k] = abs(when / float(limit["stage_time"][k]) - 1)
            found["scale_error"][k] = np.abs(_at(flow, when) - limit["stage_log_scale"].values[k]).max()
            if k < finite.sizes["stage"] and int(finite["stage_coordinate"][k]) == here[0]:
                found["finite_error"][k] = abs(when / float(finite["stage_time"][k]) - 1)
    return found


def _at(flow: xr.Dataset, when: float) -> np.ndarray:
    """Log-scale weights at a rescaled time, linear between saved instants."""
    clock, rows = flow["rescaled_time"].values, flow["log_scale"].values
    after = int(np.clip(np.searchsorted(clock, when), 1, len(clock) - 1))
    part = (when - clock[after - 1]) / (clock[after] - clock[after - 1])
    return (1 - part) * rows[after - 1] + part * rows[after]
