"""Figures of the lab of learning in context."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from saddles.figures.maps import coloured
from saddles.figures.style import COLOURS, GREY, MEASURED, THEORY, log_ticks, look, sheet


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


def phase_diagram(trajectory: xr.Dataset) -> Figure:
    """Errors of the lazy and of the self-consistent theory over (w, σ²), and σ²w along the border."""
    widths, mean = trajectory["width"].values, trajectory.mean("seed")
    across, up = np.log10(widths), np.log10(trajectory["variance"].values)
    predicted, seen = mean["theory_border"].values, trajectory["border"].transpose("seed", "width").values
    panels = ("lazy_error", "Error of the lazy theory"), ("theory_error", "Error of the self-consistent theory")
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.4)
        for axis, (name, title) in zip(axes, panels, strict=False):
            errors = np.log10(mean[name].transpose("variance", "width").values)
            coloured(
                figure, axis, across, up, errors, r"$\log_{10}$ largest distance of the loss, over the first", -4, 0
            )
            axis.plot(across, np.log10(predicted), **THEORY | {"color": "white"})
            axis.set(title=title, xlabel=r"$\log_{10}$ width $w$", ylabel=r"$\log_{10}$ variance $\sigma^2$")
        right = axes[-1]
        right.semilogx(widths, (seen * widths).T, "o", color=COLOURS[0])
        right.semilogx([], [], "o", color=COLOURS[0], label="gradient flow")
        right.semilogx(widths, predicted * widths, label="self-consistent theory", **THEORY)
        right.set(xlabel="width $w$", ylabel=r"$\sigma^2 w$ at the border", ylim=(0, None))
        right.set_title(f"Where the lazy theory is off by {100 * trajectory.attrs['level']:g} %")
        right.legend(loc="lower right")
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
        right.axhline(0.03, color=GREY, linewidth=0.8, label="3 %: what the claim allows")
        right.legend(loc="lower right")
        right.set(xlabel="largest ratio of neighbouring μ", ylabel="largest error of a problem",
                  title="Relative error of the slopes")  # fmt: skip
    return figure


def order(trajectory: xr.Dataset) -> Figure:
    """Covariances in and out of order by how close their eigenvalues are (left), and the predicted times (right)."""
    when = trajectory["seen_time"].fillna(float("inf"))
    after = when.diff("direction") > 0
    share = after.mean("direction")
    last = when.isel(start=-1)
    with look():
        figure, ((left, right),) = sheet(1, 2, 10.5, 4)
        for i, start in enumerate(trajectory["start"].values):
            left.plot(trajectory["closest"], share.isel(start=i) + 0.02 * (1 - 2 * i), "os"[i], color=COLOURS[i],
                      label=f"start {start:g}", markersize=4, alpha=0.8)  # fmt: skip
        left.set(xlabel="largest ratio of neighbouring eigenvalues", ylabel="neighbours learned from the largest down",
                 title="Order of the directions", ylim=(-0.08, 1.08))  # fmt: skip
        left.set_yticks([0, 0.5, 1], ["none", "half", "all"])
        left.legend(loc="center left")
        for k in range(trajectory.sizes["direction"]):
            right.loglog(trajectory["predicted_time"].isel(direction=k), last.isel(direction=k), "o",
                         color=COLOURS[k % 7], label=f"direction {k}", markersize=4)  # fmt: skip
        ends = [float(trajectory["predicted_time"].min()), float(trajectory["predicted_time"].max())]
        right.plot(ends, ends, **THEORY)
        right.set(
            xlabel="predicted by alternating flows", ylabel="in the flow", title="Time at which it is half learned"
        )
        right.legend()
    return figure


def rank(trajectory: xr.Dataset) -> Figure:
    """The first directions of two heads of rank two (left), waits inside a head (middle) and between heads (right)."""
    starts = trajectory["start"].values
    gaps = trajectory["seen_time"].diff("direction")
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 13, 4)
        for i, start in enumerate(starts):
            loss = trajectory["loss"].isel(start=i, seed=0)
            left.plot(trajectory["time"], loss, color=COLOURS[i], label=f"start {start:g}", **MEASURED)
        for level in trajectory["plateau"].values[0]:
            left.axhline(level, color=GREY, linewidth=0.8)
        left.set(xlabel="gradient time since the first direction", ylabel="loss", ylim=(0, None),
                 title="The first head of rank two")  # fmt: skip
        left.legend(loc="upper right", bbox_to_anchor=(1, 0.92))  # below the line of the first loss
        middle.set_xscale("log")
        right.set(xscale="log", yscale="log")
        for i in range(trajectory.sizes["seed"]):
            inner, outer = (gaps.isel(direction=k, seed=i).values for k in (0, 1))
            told = inner[0] + float(trajectory["slope"][i]) * np.log(starts[0] / starts)
            for axis, seen, line in ((middle, inner, told), (right, outer, outer[0] * starts[0] / starts)):
                axis.plot(1 / starts, line, label="" if i else "predicted slope", **THEORY)
                axis.plot(1 / starts, seen, "o", color=COLOURS[0], markersize=5, label="" if i else "measured")
        for axis in (middle, right):
            axis.legend(title="a line for each covariance", loc="upper left")
            axis.margins(y=0.3)
        middle.set(xlabel="1 / start", ylabel="gradient time", title="Wait inside a head")
        right.set(xlabel="1 / start", ylabel="gradient time", title="Wait between heads: slope 1")
    return figure


def softmax(trajectory: xr.Dataset) -> Figure:
    """Loss of softmax and of linear heads, separate (left) and merged (middle), and the next wait by start (right)."""
    clock, starts = trajectory["time"].values, trajectory["start"].values
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 13, 4)
        last = trajectory.isel(start=-1, seed=0)
        left.plot(clock, last["linear_loss"], color=GREY, label="linear", **MEASURED)
        for i, start in enumerate(starts):
            one = trajectory["loss"].isel(start=i, seed=0)
            left.plot(clock, one, color=COLOURS[i], label=f"softmax, start {start:g}", **MEASURED)
            merged = trajectory["merged_loss"].isel(start=i, seed=0)
            middle.plot(np.linspace(0, 1, len(clock)), merged, color=COLOURS[i], **MEASURED)
        for axis in (left, middle):
            for place, level in enumerate(trajectory["plateau"].values):
                words = None if place else "predicted for linear heads"
                axis.axhline(level, color=GREY, linewidth=0.8, linestyle="--", label=words)
        left.set(xlabel="gradient time × start", ylabel="loss", ylim=(0, None), title="Separate keys and queries")
        left.legend(loc="upper right", bbox_to_anchor=(1, 0.92))  # between two of the lines
        middle.set(xlabel="part of the run", ylabel="loss", ylim=(0, None), title="Merged keys and queries")
        for name, colour, words in (("linear_wait", GREY, "linear"), ("wait", COLOURS[0], "softmax")):
            right.loglog(1 / starts, trajectory[name], "o-", color=colour, markersize=4)
            right.plot([], [], "o-", color=colour, markersize=4, label=words)
        right.set(xlabel="1 / start", ylabel="gradient time", title="From the first drop to the second")
        for which in (right.xaxis, right.yaxis):
            log_ticks(which)
        right.legend(title="a line for each seed")
    return figure


def modular_addition(trajectory: xr.Dataset) -> Figure:
    """Loss (left) and learned frequencies (middle) from a small start, and the loss from a large one (right)."""
    clock = trajectory["time"].values
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 13, 4)
        for axis, name in ((left, "loss"), (right, "large_loss")):
            for i in range(trajectory.sizes["seed"]):
                axis.plot(clock, trajectory[name].isel(seed=i), color=COLOURS[i % 7], **MEASURED)
            for level in trajectory["plateau"].values:
                axis.axhline(level, color=GREY, linewidth=0.8)
        left.plot([], [], color=GREY, linewidth=0.8, label="power of the frequencies left")
        left.axvline(float(trajectory["predicted_drop"][0]), label="predicted, first encoding",
                     **THEORY | {"color": COLOURS[0]})  # fmt: skip
        left.set(xlabel="gradient time × start", ylabel="loss", ylim=(0, None), title="Small start, all encodings")
        left.legend()
        for k in range(trajectory.sizes["frequency"]):
            middle.plot(clock, trajectory["learned"].isel(seed=0, frequency=k), color=COLOURS[k % 7],
                        label=f"frequency {k}", **MEASURED)  # fmt: skip
        middle.set(xlabel="gradient time × start", ylabel="part that is answered", title="One frequency at a time")
        middle.legend(title="by falling power")
        right.set(xlabel="gradient time", ylabel="loss", ylim=(0, None), title="Large start")
    return figure
