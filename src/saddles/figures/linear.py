"""Figures of the linear lab."""

from math import comb

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from saddles.figures.maps import edges
from saddles.figures.style import COLOURS, ERROR_HEAT, GREY, HEAT, INK, MEASURED, THEORY, look, sheet


def figure_1(trajectory: xr.Dataset) -> Figure:
    """Errors (left) and singular values (right) of descent and of the self-consistent dynamics."""
    one = trajectory.isel(seed=0)
    rank = int(trajectory.attrs["rank"])
    descent, theory = one.sel(dynamics="descent"), one.sel(dynamics="self-consistent")
    steps = one["time"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.4)
        for name, colour in (("train_error", COLOURS[0]), ("test_error", COLOURS[3])):
            words = name.replace("_", " ")
            left.plot(steps, descent[name], color=colour, label=f"{words}, gradient descent", **MEASURED)
            left.plot(steps, theory[name], label="self-consistent theory" if colour == COLOURS[3] else None, **THEORY)
        best = float(steps[int(descent["test_error"].argmin("time"))])
        for axis in (left, right):
            axis.axvline(best, color=GREY, linewidth=1, linestyle=":")
            axis.set_xlabel("step of gradient descent")
        left.annotate("best test error", (best, 0.8), xycoords=("data", "axes fraction"), xytext=(4, 0),
                      textcoords="offset points", va="bottom", fontsize=9, color="#555555")  # fmt: skip
        left.set(ylabel="error, mean square over entries", ylim=(0, None), title="Errors")
        left.legend(loc="upper right")
        shown = min(one.sizes["mode"], 10 * rank)
        for mode in reversed(range(shown)):
            colour = COLOURS[mode % len(COLOURS)] if mode < rank else "#c8c8c8"
            width = 2.2 if mode < rank else 1.0
            right.plot(steps, descent["singular_value"].isel(mode=mode), color=colour, linewidth=width)
            if mode <= rank:
                right.plot(steps, theory["singular_value"].isel(mode=mode), **THEORY | {"linewidth": 1.0})
        threshold = float(one["threshold"])
        right.axhline(threshold, color=INK, linewidth=1)
        right.annotate("σ²w", (1, threshold), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                       textcoords="offset points", ha="right", fontsize=10)  # fmt: skip
        right.plot([], [], color=COLOURS[0], linewidth=2.2, label=f"the {rank} largest, gradient descent")
        right.plot([], [], color="#c8c8c8", label=f"the next {shown - rank}")
        right.plot([], [], **THEORY, label="self-consistent theory")
        right.set(ylabel="singular value of A", ylim=(0, None), title="Singular values")
        right.legend(loc="center right")
    return figure


def _boundaries(axis: Axes, gamma_variance: np.ndarray, gamma_w: np.ndarray) -> None:
    # a white line below each boundary keeps it visible on every colour
    axis.plot(gamma_variance, 1 - gamma_variance, color="white", linewidth=3.2)
    axis.plot(
        gamma_variance,
        1 - gamma_variance,
        color="black",
        linewidth=1.8,
        label=r"$\gamma_w+\gamma_{\sigma^2}=1$ (lazy above)",
    )
    axis.plot(gamma_variance, -2 * gamma_variance, color="white", linewidth=3.2)
    axis.plot(
        gamma_variance,
        -2 * gamma_variance,
        color="#D55E00",
        linewidth=1.8,
        label=r"$2\gamma_{\sigma^2}+\gamma_w=0$ (noisy above)",
    )
    axis.axhline(1, color="white", linewidth=2.6)
    axis.axhline(1, color="black", linewidth=1.2, linestyle=":", label=r"$\gamma_w=1$ (too narrow below)")
    axis.set(xlim=edges(gamma_variance)[[0, -1]], ylim=edges(gamma_w)[[0, -1]])


def figure_2(trajectory: xr.Dataset) -> Figure:
    """The phase diagram in four panels over (γ_σ², γ_w)."""
    here = trajectory.isel(time=0).transpose("gamma_w", "gamma_variance")
    across, up = here["gamma_variance"].values, here["gamma_w"].values
    steps = np.maximum(here["best_step"].values, 1)
    panels = [
        (
            "Smallest test error",
            here["best_test_error"].values,
            "mean square over entries",
            {"vmin": 0, "vmax": 1, "cmap": ERROR_HEAT},
        ),
        ("Stable rank at that time", here["stable_rank"].values, r"$\|A\|_F^2\,/\,\|A\|_{op}^2$", {"vmin": 0}),
        ("Steps to the smallest test error", steps, "steps", {"norm": LogNorm(1, steps.max())}),
        (
            "Distance to the self-consistent dynamics there",
            np.log(np.maximum(here["distance_at_best"].values, 1e-12)),
            "ln of the mean square difference",
            {"vmin": -12, "vmax": 0, "cmap": ERROR_HEAT},
        ),
    ]
    with look():
        figure, axes = sheet(2, 2, 10, 8.4, sharex=True, sharey=True)
        for axis, (title, values, unit, options) in zip(axes.flat, panels, strict=True):
            drawn = axis.pcolormesh(across, up, values, shading="nearest", rasterized=True, **{"cmap": HEAT, **options})
            figure.colorbar(drawn, ax=axis, label=unit)
            _boundaries(axis, across, up)
            axis.set_title(title)
        for axis in axes[1]:
            axis.set_xlabel(r"$\gamma_{\sigma^2}$   (variance $\sigma^2=d^{\,\gamma_{\sigma^2}}$)")
        for axis in axes[:, 0]:
            axis.set_ylabel(r"$\gamma_w$   (width $w=d^{\,\gamma_w}$)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def theorem_1(trajectory: xr.Dataset) -> Figure:
    """Error of the predicted Gram matrices against the width: relative at the start, and over its bound."""
    widths = trajectory["width"].values.astype(float)
    dim = int(trajectory.attrs["dim"])
    start = (trajectory["error"] / trajectory["norm"]).isel(time=0).max("side")
    worst = trajectory["ratio"].max(["time", "side"])
    weak = (trajectory["error"] / trajectory["weak"]).max(["time", "side"])
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.2)
        _spread(left, widths / dim, start, COLOURS[0], "measured at t = 0")
        guide = np.sqrt(dim / widths)
        left.plot(widths / dim, guide, **THEORY, label="√(d/w)")
        left.set(ylabel="‖C − Ĉ‖ / ‖C‖", title="Relative error at the start")
        _spread(right, widths / dim, worst, COLOURS[0], "over min{σ²w, √(d/w)‖C‖}")
        _spread(right, widths / dim, weak, COLOURS[3], "over σ²w")
        right.plot(widths / dim, (1 + guide) ** 2, **THEORY, label="Proposition B.1, (1+√(d/w))²")
        right.set(ylabel="largest ‖C − Ĉ‖ over time, over its bound", title="Error against its bound, all times")
        for axis in (left, right):
            axis.set(xscale="log", yscale="log", xlabel="width over dimension, w/d")
            axis.legend()
    return figure


def _spread(axis: Axes, across: np.ndarray, values: xr.DataArray, colour: str, words: str) -> None:
    """Median over seeds as a line with dots, the range as a band."""
    rows = values.transpose("seed", ...).values
    axis.fill_between(across, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axis.plot(across, np.median(rows, axis=0), color=colour, marker="o", markersize=4, label=words, **MEASURED)


def theorem_2(trajectory: xr.Dataset) -> Figure:
    """Test error on the clock t/(d log d), best error and best time against d, for both regimes."""
    dims = trajectory["dim"].values
    clock = trajectory["time"].values
    with look():
        figure, ((curves, errors, times),) = sheet(1, 3, 13, 4.2)
        for i, dim in enumerate(dims):
            shade = 0.35 + 0.65 * (i + 1) / len(dims)
            for regime, colour in (("active", COLOURS[0]), ("lazy", COLOURS[3])):
                line = trajectory["test_error"].sel(regime=regime, dim=dim).median("seed")
                label = regime if i == len(dims) - 1 else None
                curves.plot(clock, line, color=colour, alpha=shade, linewidth=0.8 + 1.2 * shade, label=label)
        curves.set(
            xlabel="t / (d log d)", ylabel="test error, mean square over entries", ylim=(0, 1.25), title="Test error"
        )
        curves.annotate(f"darker: larger d, {dims[0]} to {dims[-1]}", (0.97, 0.03), xycoords="axes fraction",
                        ha="right", fontsize=9, color="#555555")  # fmt: skip
        curves.legend(loc="upper right", ncols=2)
        active = trajectory.sel(regime="active")
        lazy = trajectory["test_error"].sel(regime="lazy").min("time")
        _spread(errors, dims, active["best_error"].transpose("seed", "dim"), COLOURS[0], "active: best")
        _spread(errors, dims, lazy.transpose("seed", "dim"), COLOURS[3], "lazy: lowest")
        first = float(active["best_error"].isel(dim=0).median())
        errors.plot(dims, first * np.sqrt(dims[0] / dims), **THEORY, label="slope −1/2 (Theorem 2)")
        errors.plot(dims, trajectory["floor"].median("seed"), color=INK, linestyle=":", label="Proposition D.1")
        errors.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="test error", title="Best test error")
        _spread(times, dims, active["best_time"].transpose("seed", "dim"), COLOURS[0], "active, measured")
        times.plot(dims, trajectory["leading_time"], **THEORY, label="Δ/(4a_K), leading order")
        times.plot(dims, trajectory["theorem_time"], color=INK, linestyle=":", label="Theorem 2, upper bound")
        times.set(
            xscale="log",
            yscale="log",
            xlabel="dimension d",
            ylabel="t_best / (d log d)",
            title="Time of the best error",
        )
        for axis in (errors, times):
            axis.set_xticks(dims, [str(d) for d in dims])
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.legend()
    return figure


def stages(trajectory: xr.Dataset, milestones: xr.Dataset) -> Figure:
    """Singular values at the largest d with T₁, T₂ and T₃, and the misalignment there against d."""
    dims, clock = trajectory["dim"].values, trajectory["time"].values
    one = trajectory.isel(dim=-1, seed=0)
    rank = one.sizes["mode"] - 1
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.2)
        for mode in range(rank + 1):
            colour, words = (COLOURS[mode], f"s_{mode + 1}") if mode < rank else (GREY, "first of the noise")
            left.plot(clock, one["level"].isel(mode=mode), color=colour, label=words, **MEASURED)
        for i, name in enumerate(("T1", "T2", "T3")):
            when = float(milestones[name].isel(dim=-1, seed=0))
            left.axvline(when, color=INK, linewidth=1, linestyle=":")
            left.annotate(f"T{'₁₂₃'[i]}", (when, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
                          textcoords="offset points", fontsize=10)  # fmt: skip
        left.set(yscale="log", xlabel="t / (d log d), on the paper's clock", ylabel="singular value over σ²w",
                 title=f"Singular values, d = {dims[-1]}")  # fmt: skip
        left.legend(loc="lower right")
        x = trajectory["misalignment"]
        for i, name in enumerate(("T1", "T2", "T3")):
            at = abs(x["time"] - milestones[name]).argmin("time")
            _spread(right, dims, x.isel(time=at).transpose("seed", "dim"), COLOURS[i], f"at T{'₁₂₃'[i]}")
        last = x.isel(time=-1)
        _spread(right, dims, last.transpose("seed", "dim"), GREY, "at the end")
        right.plot(dims, float(last.isel(dim=0).median()) * dims[0] / dims, **THEORY, label="slope −1")
        right.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="misalignment x of Definition C.1",
                  title="Alignment with the truth")  # fmt: skip
        right.set_xticks(dims, [str(d) for d in dims])
        right.xaxis.set_minor_formatter(NullFormatter())
        right.legend()
    return figure


def stuck(trajectory: xr.Dataset) -> Figure:
    """Modes of one balanced network with those that stay at zero, and how many do from every start."""
    one, clock = trajectory.isel(seed=0), trajectory["time"].values
    rank = trajectory.sizes["mode"]
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.2)
        for mode in range(rank):
            up = float(one["start"].isel(mode=mode)) > 0
            label = {True: "started above zero", False: "started below zero"}[up]
            seen = any((float(one["start"].isel(mode=k)) > 0) == up for k in range(mode))
            left.plot(clock, one["share"].isel(mode=mode), color=COLOURS[0] if up else COLOURS[3],
                      label=None if seen else label, **MEASURED)  # fmt: skip
        left.plot(clock, one["mixed_share"].min("mode"), **THEORY, label="slowest mode, σ²w > 0, same start")
        left.set(xlabel="gradient time × smallest rate", ylabel="s_i over s_i*", title="Balanced modes, one start")
        left.legend()
        count = (trajectory["share"].isel(time=-1) < 0.5).sum("mode").values
        edges = np.arange(rank + 2) - 0.5
        right.hist(count, edges, color=COLOURS[3], alpha=0.8, label="measured")
        chance = np.array([comb(rank, k) for k in range(rank + 1)]) / 2**rank
        right.plot(np.arange(rank + 1), chance * len(count), marker="o", **THEORY, label=f"binomial, {rank} at ½")
        right.set(xlabel="modes that end at zero", ylabel="starts", title=f"{len(count)} starts")
        right.legend()
    return figure


def transition(trajectory: xr.Dataset) -> Figure:
    """Kernel growth over the scan of σ²w, and the crossing against d."""
    dims = trajectory["dim"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.2)
        for truth, colour in (("low rank", COLOURS[0]), ("full rank", COLOURS[3])):
            part = trajectory.sel(truth=truth)
            for i, dim in enumerate(dims):
                growth = part["growth"].sel(dim=dim).median("seed")
                scale = part["scale"].sel(dim=dim).median("seed")
                label = f"{truth} A*" if i == len(dims) - 1 else None
                shade = 0.4 + 0.6 * (i + 1) / len(dims)
                left.plot(part["time"] * scale, growth, color=colour, alpha=shade, label=label,
                          marker="o", markersize=3, linewidth=1.4)  # fmt: skip
            crossing = part["crossing"].transpose("seed", "dim")
            _spread(right, dims, crossing, colour, f"{truth} A*, measured")
            norm = part["norm"].median("seed")
            right.plot(dims, norm, **THEORY, label="‖A* + E‖_op" if truth == "low rank" else None)
        left.axhline(np.sqrt(2), color=INK, linewidth=1)
        left.annotate("√2: s₁ = σ²w", (0.02, np.sqrt(2)), xycoords=("axes fraction", "data"),
                      xytext=(0, 3), textcoords="offset points", fontsize=9)  # fmt: skip
        left.set(xscale="log", yscale="log", xlabel="σ²w", ylabel="‖C1(end)‖ / ‖C1(0)‖", title="Growth of the kernel")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter("{x:g}")
        left.yaxis.set_minor_formatter(NullFormatter())
        left.legend(title=f"darker: larger d, {dims[0]} to {dims[-1]}")
        right.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="σ²w at the transition", title="Transition")
        right.set_xticks(dims, [str(d) for d in dims])
        right.xaxis.set_minor_formatter(NullFormatter())
        right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.yaxis.set_major_formatter("{x:g}")
        right.yaxis.set_minor_formatter(NullFormatter())
        right.legend()
    return figure


def trade_off(trajectory: xr.Dataset) -> Figure:
    """Best test error and steps to it, along the distance to the transition and against each other."""
    distance = trajectory["time"].values
    error = trajectory["best_test_error"].transpose("seed", "time")
    steps = trajectory["best_step"].transpose("seed", "time")
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 13, 4.0)
        _spread(left, distance, error, COLOURS[0], "gradient descent")
        left.set(ylabel="best test error, mean square over entries", yscale="log", title="Test error")
        _spread(middle, distance, steps, COLOURS[3], "gradient descent")
        middle.set(ylabel="steps to the best test error", ylim=(0, None), title="Training time")
        for axis in (left, middle):
            axis.set_xlabel(r"distance to the transition, $1 - \gamma_w - \gamma_{\sigma^2}$")
        middle.legend(title="line: median, band: range over seeds")
        drawn = None
        for i in range(error.sizes["seed"]):
            right.plot(steps[i], error[i], color=GREY, linewidth=0.8, zorder=1)
            drawn = right.scatter(steps[i], error[i], c=distance, cmap=HEAT, s=28, zorder=2)
        if drawn is not None:
            figure.colorbar(drawn, ax=right, label="distance to the transition")
        right.set(xlabel="steps to the best test error", ylabel="best test error", yscale="log", title="The trade-off")
    return figure
