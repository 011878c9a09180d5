"""Figures of the lab of learning in context."""

import xarray as xr
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, MEASURED, THEORY, look, sheet


def staircase(trajectory: xr.Dataset) -> Figure:
    """Loss of separate and of merged heads (left), and the error of the predicted times by start (right)."""
    clock = trajectory["time"].values
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 13, 4)
        end, merged_end = (float(trajectory[name][0]) for name in ("end", "merged_end"))
        left.plot(clock * end, trajectory["loss"].isel(seed=0), color=COLOURS[0], label="gradient flow", **MEASURED)
        left.step(clock * end, trajectory["predicted_loss"].isel(seed=0), where="post", label="alternating flows",
                  **THEORY)  # fmt: skip
        left.set(xlabel="gradient time", ylabel="loss", ylim=(0, None), title="Separate keys and queries")
        left.legend()
        middle.plot(clock * merged_end, trajectory["merged_loss"].isel(seed=0), color=COLOURS[1], **MEASURED)
        for level in trajectory["plateau"].values[0]:
            middle.axhline(level, color=GREY, linewidth=0.8)
        middle.set(xlabel="gradient time", ylabel="loss", ylim=(0, None), title="Merged: no pause at these losses")
        for i, start in enumerate(trajectory["start"].values):
            one = trajectory.isel(start=i)
            error = abs(one["stage_time"] / one["seen_time"] - 1)
            right.loglog(one["seen_time"].values.ravel(), error.values.ravel(), "o", color=COLOURS[i],
                         label=f"start {start:g}", markersize=4)  # fmt: skip
        right.set(xlabel="time of the drop", ylabel="relative error of the prediction", title="Times, all covariances")
        right.legend()
    return figure


def lazy_active(trajectory: xr.Dataset) -> Figure:
    """Loss for every σ²w at the largest width (left), error of the theory over the width (right)."""
    clock = trajectory["time"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 10.5, 4)
        for i, threshold in enumerate(trajectory["threshold"].values):
            one = trajectory.isel(threshold=i, width=-1, seed=0)
            left.plot(clock, one["loss"], color=COLOURS[i % 7], label=f"σ²w = {threshold:g}", **MEASURED)
            left.plot(clock, one["predicted_loss"], **THEORY)
            left.plot(clock, one["lazy_loss"], color=GREY, linewidth=0.9)
            gap = abs(trajectory["predicted_loss"] - trajectory["loss"]).max("time").isel(threshold=i)
            right.loglog(trajectory["width"], gap.mean("seed"), "o-", color=COLOURS[i % 7])
        left.set(xlabel="part of the run", ylabel="loss", ylim=(0, 1.1 * trajectory.attrs["start"]),
                 title="Flow, self-consistent theory (dashed), lazy (grey)")  # fmt: skip
        left.legend()
        right.set(xlabel="width w", ylabel="largest distance of the loss", title="Error of the theory")
    return figure


def finite_prompts(trajectory: xr.Dataset) -> Figure:
    """Loss along descent on prompts (left) and the distance to exact descent (right)."""
    clock = trajectory["time"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 10.5, 4)
        for i, batch in enumerate(trajectory["batch"].values):
            one = trajectory.isel(batch=i)
            left.plot(clock, one["loss"].isel(seed=0), color=COLOURS[i], label=f"{batch} prompts a step", **MEASURED)
            right.semilogy(clock[1:], one["distance"].mean("seed")[1:], color=COLOURS[i], **MEASURED)
        left.plot(clock, trajectory["exact_loss"].isel(seed=0), label="exact", **THEORY)
        left.set(xlabel="gradient time", ylabel="exact loss", ylim=(0, None), title="Descent on drawn prompts")
        left.legend()
        right.set(xlabel="gradient time", ylabel="distance of M, root mean square", title="Distance to exact descent")
    return figure


def conjecture(trajectory: xr.Dataset) -> Figure:
    """Measured against conjectured slopes (left), and the error by how close the μ are (right)."""
    error = abs(trajectory["conjectured_slope"] / trajectory["slope"] - 1)
    with look():
        figure, ((left, right),) = sheet(1, 2, 10.5, 4)
        for stage in range(trajectory.sizes["stage"]):
            left.loglog(trajectory["conjectured_slope"].isel(stage=stage), trajectory["slope"].isel(stage=stage), ".",
                        color=COLOURS[stage % 7], label=f"drop {stage + 1}", markersize=4)  # fmt: skip
        ends = [float(trajectory["conjectured_slope"].min()), float(trajectory["conjectured_slope"].max())]
        left.plot(ends, ends, **THEORY)
        left.set(xlabel="conjectured", ylabel="measured", title="Slope of the stage times against log(1/α)")
        left.legend()
        right.semilogy(trajectory["closest"], error.max("stage"), ".", color=COLOURS[0], markersize=4)
        right.axhline(0.03, color=GREY, linewidth=0.8)
        right.set(xlabel="largest ratio of neighbouring μ", ylabel="largest error of a problem",
                  title="Relative error of the slopes")  # fmt: skip
    return figure
