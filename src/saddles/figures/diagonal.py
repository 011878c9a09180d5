"""Figures of the diagonal lab."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, GREY, INK, MEASURED, THEORY, look, sheet

CLOCK = "rescaled time t / log(1/α)"
THIN: dict[str, Any] = THEORY | {"linewidth": 0.8}
WORDS = {"key_query": "W_K W_Qᵀ", "value_output": "W_V W_Oᵀ"}


def _shades(count: int) -> np.ndarray:
    return colormaps["viridis"](np.linspace(0.05, 0.88, count))


def _alpha(decades: float | np.integer) -> str:
    return f"α = 1e−{decades:g}"


def _family(trajectory: xr.Dataset, family: str) -> np.ndarray:
    return np.flatnonzero(trajectory["family"].values == family)


def figure_2(trajectory: xr.Dataset) -> Figure:
    """Loss for every α with the staircase (left), both families of weights at the smallest α (right)."""
    clock, decades = trajectory["time"].values, trajectory["decade"].values
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 14, 4.3)
        for i, colour in enumerate(_shades(len(decades))):
            left.plot(clock, trajectory["loss"].isel(decade=i), color=colour, label=_alpha(decades[i]), linewidth=1.8)
        left.step(clock, trajectory["predicted_loss"], where="post", label="Algorithm 1, α → 0", **THEORY)
        left.set(xlabel=CLOCK, ylabel="loss", ylim=(0, None), title="Loss")
        left.legend()
        for axis, family in ((middle, "value_output"), (right, "key_query")):
            _weights(axis, trajectory.isel(decade=-1), family)
            axis.set_title(f"Entries of {WORDS[family]}, {_alpha(decades[-1])}")
        middle.plot([], [], color=COLOURS[0], label="gradient flow")
        middle.plot([], [], **THEORY, label="Algorithm 1")
        middle.legend(loc="upper left")
    return figure


def _weights(axis: Axes, trajectory: xr.Dataset, family: str) -> None:
    clock = trajectory["time"].values
    for number, i in enumerate(_family(trajectory, family)):
        axis.plot(clock, trajectory["beta"].isel(coordinate=i), color=COLOURS[number % 6], linewidth=1.4)
        axis.step(clock, trajectory["predicted_beta"].isel(coordinate=i), where="post", **THIN)
    axis.set_xlabel(CLOCK)
    axis.set_ylabel("entry")


def figure_8_9(trajectory: xr.Dataset) -> Figure:
    """Both families of weights, one column per α."""
    decades = trajectory["decade"].values
    with look():
        figure, axes = sheet(2, len(decades), 2.6 * len(decades) + 1, 6.0, sharex=True, sharey="row")
        for row, family in zip(axes, ("key_query", "value_output"), strict=True):
            for i, axis in enumerate(row):
                _weights(axis, trajectory.isel(decade=i), family)
                axis.set(xlabel="", ylabel=f"entries of {WORDS[family]}" if i == 0 else "")
                if family == "key_query":
                    axis.set_title(_alpha(decades[i]))
        for axis in axes[1]:
            axis.set_xlabel("t / log(1/α)")
        axes[0, 0].plot([], [], color=COLOURS[0], label="gradient flow")
        axes[0, 0].plot([], [], **THIN, label="Algorithm 1, α → 0")
        axes[0, 0].legend(loc="lower left")
    return figure


def linear(trajectory: xr.Dataset) -> Figure:
    """Weights of the flow, of Algorithm 1 and of the independent path; the loss."""
    clock = trajectory["time"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 12, 4.4, width_ratios=[2, 1])
        for i in range(trajectory.sizes["coordinate"]):
            left.plot(clock, trajectory["beta"].isel(coordinate=i), color=COLOURS[i % 6], linewidth=1.8)
            left.step(clock, trajectory["predicted_beta"].isel(coordinate=i), where="post", **THEORY)
            left.step(clock, trajectory["independent_beta"].isel(coordinate=i), where="post", color=GREY, linewidth=4,
                      alpha=0.35, zorder=0)  # fmt: skip
        left.plot(
            [], [], color=COLOURS[0], linewidth=1.8, label=f"gradient flow, {_alpha(trajectory.attrs['decades'])}"
        )
        left.plot([], [], **THEORY, label="Algorithm 1")
        left.plot([], [], color=GREY, linewidth=4, alpha=0.5, label="constrained least squares")
        _ticks(left, trajectory["stage_time"].values)
        left.set(xlabel=CLOCK, ylabel="weight", title="Weights, exits included", xscale="log")
        first = float(trajectory["stage_time"][0])
        for axis in (left, right):
            axis.set_xlim(0.8 * first, clock[-1])
        left.legend(loc="upper left")
        right.plot(clock, trajectory["loss"], color=COLOURS[0], **MEASURED)
        right.set(xlabel=CLOCK, ylabel="loss", yscale="log", xscale="log", title="Loss",
                  ylim=(1e-6 * float(trajectory["loss"][0]), 2 * float(trajectory["loss"][0])))  # fmt: skip
        _ticks(right, trajectory["stage_time"].values)
    return figure


def _ticks(axis: Axes, times: np.ndarray) -> None:
    """Small marks on the lower edge where stages are predicted."""
    axis.plot(times, np.zeros_like(times), linestyle="", marker="|", markersize=9, color=INK, clip_on=False,
              transform=axis.get_xaxis_transform())  # fmt: skip


def transformer(trajectory: xr.Dataset) -> Figure:
    """Weights of W_V W_Oᵀ with a symmetric and with a broken start, one colour per head."""
    families = list(dict.fromkeys(trajectory["family"].values.tolist()))
    decades = trajectory["decade"].values[-1]
    with look():
        figure, axes = sheet(1, 2, 12.5, 4.6, sharey=True)
        titles = ("same start for all heads", "one exponent per head")
        for axis, name, words in zip(axes[0], ("symmetric", "broken"), titles, strict=True):
            clock = trajectory["time"].values * float(trajectory[f"{name}_end"])
            shown = [f for f in families if f.endswith("value_output")]
            for number, family in enumerate(shown):
                for count, i in enumerate(_family(trajectory, family)):
                    axis.plot(clock, trajectory[f"{name}_beta"].isel(coordinate=i), color=COLOURS[number % 6],
                              linewidth=1.7, linestyle=("-", "--")[number % 2], alpha=0.85,
                              label=family.removesuffix(" value_output") if count == 0 else None)  # fmt: skip
            for i, family in enumerate(trajectory["family"].values):
                if family.endswith("key_query"):
                    axis.plot(clock, trajectory[f"{name}_beta"].isel(coordinate=i), color=GREY, linewidth=1, zorder=0)
            marks = trajectory[f"{name}_stage_time"].values
            _ticks(axis, marks[marks <= clock[-1]])
            axis.set(xlabel=CLOCK, title=f"{_alpha(decades)}, {words}")
        axes[0, 0].plot([], [], color=GREY, linewidth=1, label="entries of W_K W_Qᵀ")
        axes[0, 0].plot([], [], linestyle="", marker="|", color=INK, label="predicted stages")
        axes[0, 0].set(ylabel="entries of W_V W_Oᵀ (linear below 0.1, then logarithmic)")
        for axis in axes[0]:
            axis.set_yscale("symlog", linthresh=0.1, linscale=0.5)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def perturbation(trajectory: xr.Dataset) -> Figure:
    """Weights after a perturbation (solid; pale with SGD) and without it (dashed), one column per instant."""
    shown = min(5, trajectory.sizes["start"])
    clock = trajectory["time"].values
    with look():
        figure, axes = sheet(2, shown, 2.7 * shown + 1, 6.0, sharex=True, sharey="row")
        for row, family in zip(axes, ("key_query", "value_output"), strict=True):
            for number, axis in enumerate(row):
                one = trajectory.isel(start=number)
                for count, i in enumerate(_family(trajectory, family)):
                    colour = COLOURS[count % 6]
                    if "perturbed_sgd_beta" in one:
                        axis.plot(clock, one["perturbed_sgd_beta"].isel(coordinate=i), color=colour, linewidth=4,
                                  alpha=0.25)  # fmt: skip
                    axis.plot(clock, one["perturbed_beta"].isel(coordinate=i), color=colour, linewidth=1.6)
                    axis.plot(clock, one["beta"].isel(coordinate=i), **THEORY | {"linewidth": 0.9})
                if family == "key_query":
                    axis.set_title(f"at τ = {float(one['started']):.3g}")
            row[0].set_ylabel(f"entries of {WORDS[family]}")
        for axis in axes[1]:
            axis.set_xlabel("epochs after the noise")
        axes[0, 0].plot([], [], color=COLOURS[0], label="perturbed")
        if "perturbed_sgd_beta" in trajectory:
            axes[0, 0].plot([], [], color=COLOURS[0], linewidth=4, alpha=0.25, label="perturbed, SGD")
        axes[0, 0].plot([], [], **THEORY | {"linewidth": 0.9}, label="unperturbed")
        axes[0, 0].legend(loc="best")
    return figure


def full_head(trajectory: xr.Dataset) -> Figure:
    """Singular values of both products and the loss, of one seed at the smallest α."""
    one, clock = trajectory.isel(seed=0), trajectory["time"].values
    scale = ""
    if "decade" in one.dims:  # results of version 0.1 have one α only
        one, scale = one.isel(decade=-1), f", {_alpha(trajectory['decade'].values[-1])}"
    with look():
        figure, ((left, middle, right),) = sheet(1, 3, 14, 4.2)
        for axis, family in ((left, "value_output"), (middle, "key_query")):
            for mode in range(trajectory.sizes["mode"]):
                axis.plot(clock, one["singular_value"].sel(family=family).isel(mode=mode),
                          color=COLOURS[mode % 6], **MEASURED)  # fmt: skip
            axis.set(title=f"Singular values of {WORDS[family]}{scale}", ylabel="singular value", ylim=(0, None))
        right.plot(clock, one["loss"], color=COLOURS[0], **MEASURED)
        right.set(title="Loss", ylabel="loss", yscale="log")
        for axis in (left, middle, right):
            axis.set_xlabel(CLOCK)
    return figure
