"""Whether a flow learns what Algorithm 1 predicts, in that order and at those times."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import xarray as xr

from saddles import diagonal, measures
from saddles.core.dispatch import predict, simulate
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.activations import clock_of

PAPER = "boix2023rank"
FACTS = (
    "agrees", "same_before", "gap", "margin", "time_error", "finite_error", "scale_error", "risen", "seen", "foreseen",
)  # fmt: skip

N = TypeVar("N")
"""A model of this lab: a dataclass with the field `log_alpha`."""


def log_alpha(decades: float) -> float:
    """The natural logarithm of α = 10^(−decades)."""
    return -float(decades) * float(np.log(10))


def at_scale(model: N, decades: float) -> N:
    """The same model with initial weights of scale α = 10^(−decades)."""
    return dataclasses.replace(model, log_alpha=log_alpha(decades))  # type: ignore[type-var]


def freedom(model: "diagonal.Network", seed: int) -> float:
    """2 max|log|p₀|, log|q₀||: by how much the start may shift log-scales, to be divided by log(1/α)."""
    u, v = model.start(seed=seed)
    return 2 * float(np.abs(np.log(np.abs(np.concatenate([u + v, u - v])))).max())


def compare_stages(
    model: "diagonal.Network", task: "diagonal.TeacherStudent", seed: int, count: int, decades: Sequence[int]
) -> Trajectory:
    """Predicted against detected stages for several α.

    Returns variables over (decade, stage): `agrees` (coordinate and sign are as predicted), `same_before`
    (the same coordinates were active before it), `gap` and `margin` (of the two smallest Δ, relative to Δ and to
    the stage's time, divided by 2 max|log p₀, q₀|/log(1/α): above 1 the start cannot reverse the order by itself),
    `risen` (how many coordinates become active in the flow nearer to this stage's time than to any other's),
    `seen` and `foreseen` (1 + the coordinate of the stage, with its sign, detected and predicted; 0 for none),
    `time_error` and `finite_error` (relative error of the limit's and of the finite form's time), and `scale_error`
    (largest |log_α|u+v| − b| over coordinates at the activation, the invariant of (20)); these three are NaN where
    the stage does not agree.
    """
    limit = predict(model, task, diagonal.Incremental(count + 1))
    # The prediction has one stage more than is compared; runs end a little after it, so that a late stage is still
    # seen.
    end = 1.05 * float(limit["stage_time"][-1])
    rows = [_at_one_scale(model, task, seed, min(count, limit.sizes["stage"]), d, limit, end) for d in decades]
    variables = {
        name: (("time", "decade", "stage"), np.stack([row[name] for row in rows])[None]) for name in FACTS
    }  # fmt: skip
    return make_trajectory(variables, [0.0], unit="end of the run", coords={"decade": list(decades)})


def _at_one_scale(
    model: "diagonal.Network", task: "diagonal.TeacherStudent", seed: int, count: int, decades: int,
    limit: xr.Dataset, end: float,
) -> dict[str, np.ndarray]:  # fmt: skip
    small = at_scale(model, decades)
    flow = simulate(small, task, diagonal.Flow(until=end), seed=seed)
    seen = measures.stages(flow)
    finite = predict(small, task, diagonal.Incremental(count, finite=True), seed=seed)
    allowed = freedom(model, seed) / -log_alpha(decades)
    result = {name: np.full(count, np.nan) for name in FACTS}
    result["gap"] = limit["stage_gap"].values[:count] / allowed
    result["margin"] = limit["stage_margin"].values[:count] / allowed
    times = limit["stage_time"].values
    # Half-way between two predicted stages: a flow's activation belongs to the nearer one.
    edges = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [np.inf]])
    result["risen"] = np.histogram(seen["unit_time"].values, edges)[0][:count].astype(float)
    names = ("stage_coordinate", "stage_sign")
    for k in range(count):
        # −9 is no coordinate: a stage that was not seen agrees with none
        here, there = ([int(run[name][k]) if k < run.sizes["stage"] else -9 for name in names] for run in (seen, limit))
        before = [set(run["stage_coordinate"].values[:k].tolist()) for run in (seen, limit)]
        result["seen"][k], result["foreseen"][k] = (np.sign(one[1]) * max(one[0] + 1, 0) for one in (here, there))
        result["agrees"][k], result["same_before"][k] = here == there, before[0] == before[1]
        if here == there:
            when = float(seen["unit_time"][k])
            result["time_error"][k] = abs(when / float(limit["stage_time"][k]) - 1)
            result["scale_error"][k] = np.abs(_log_scale_at(flow, when) - limit["stage_log_scale"].values[k]).max()
            if k < finite.sizes["stage"] and int(finite["stage_coordinate"][k]) == here[0]:
                result["finite_error"][k] = abs(when / float(finite["stage_time"][k]) - 1)
    return result


def agreement_with_another_teacher(order: xr.Dataset, firm: np.ndarray) -> float | None:
    """Share of qualifying stages at which the flow does what is predicted for the next teacher; None for one teacher.

    Args:
        order: `seen` and `foreseen` (seed, ..., stage).
        firm: which stages qualify, of the same shape.
    """
    if order.sizes["seed"] < 2:
        return None
    met = order["seen"].values == np.roll(order["foreseen"].values, 1, axis=0)
    return float(met[firm].mean()) if firm.any() else float("nan")


def _log_scale_at(flow: xr.Dataset, when: float) -> np.ndarray:
    """Log-scale weights at a rescaled time, linear between saved instants."""
    clock, rows = flow["time"].values, flow["log_scale"].values
    after = int(np.clip(np.searchsorted(clock, when), 1, len(clock) - 1))
    part = (when - clock[after - 1]) / (clock[after] - clock[after - 1])
    return (1 - part) * rows[after - 1] + part * rows[after]


def stairs(predicted: xr.Dataset, clock: np.ndarray) -> xr.Dataset:
    """A prediction on another clock: constant from stage to stage."""
    return predicted.isel(time=np.searchsorted(clock_of(predicted), clock, side="right") - 1)
