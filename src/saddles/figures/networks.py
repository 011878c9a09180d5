"""Figures of lab `networks`."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.figures.style import COLOURS, HEAT, INK, MEASURED, THEORY, look, sheet


def phase_diagram(trajectory: xr.Dataset) -> Figure:
    """Linearity, test accuracy and the rank of the change over (γ_σ², γ_w), with the border e = ½."""
    last = trajectory.isel(time=-1).mean("seed").transpose("gamma_w", "gamma_variance", ...)
    across, up = last["gamma_variance"].values, last["gamma_w"].values
    slopes = trajectory["slope"].values
    panels = [
        ("Linearity of the change, e", "linearity", "0: lazy … 1: active", {"vmin": 0, "vmax": 1}),
        ("Test accuracy", "test_accuracy", "share of test images", {"vmin": 0}),
        (r"Stable rank of $\Delta W_1$", "stable_rank", r"$\|\Delta W_1\|_F^2\,/\,\|\Delta W_1\|_{op}^2$", {"vmin": 1}),
    ]
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.8, sharex=True, sharey=True)
        for axis, (title, name, unit, options) in zip(axes, panels, strict=True):
            drawn = axis.pcolormesh(
                across, up, last[name].values, cmap=HEAT, shading="nearest", rasterized=True, **options
            )
            figure.colorbar(drawn, ax=axis, label=unit)
            _borders(axis, trajectory, across, up)
            axis.set(title=title, xlabel=r"$\gamma_{\sigma^2}$   (variance $\sigma^2=d^{\,\gamma_{\sigma^2}}$)")
        axes[0].set_ylabel(r"$\gamma_w$   (width $w=d^{\,\gamma_w}$)")
        spread = f" ± {np.ptp(slopes) / 2:.2f}" if len(slopes) > 1 else ""
        words = [trajectory.attrs["activation"], trajectory.attrs.get("loss", "squared") + " loss"]
        words += [trajectory.attrs["source"], f"d = {trajectory.attrs['dim']}"]
        figure.suptitle(f"{', '.join(words)}: slope of e = ½ is {np.mean(slopes):.2f}{spread}", fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _borders(axis: Axes, trajectory: xr.Dataset, across: np.ndarray, up: np.ndarray) -> None:
    # A white line below each border keeps it visible on every colour.
    if trajectory.attrs.get("loss", "squared") == "squared":  # what the theory speaks of
        theory = trajectory["theory_border"].mean("seed").values
        axis.plot(theory, up, color="white", linewidth=3.4)
        axis.plot(theory, up, **THEORY, label="theory of the linear network, e = ½")
    border = trajectory["border"].values
    for number, row in enumerate(border):
        axis.plot(row, up, color="white", linewidth=3.6)
        axis.plot(row, up, color=COLOURS[3], linewidth=1.8, label=None if number else "measured e = ½, each seed")
    half = (across[1] - across[0]) / 2
    axis.set(
        xlim=(across[0] - half, across[-1] + half), ylim=(up[0] - (up[1] - up[0]) / 2, up[-1] + (up[1] - up[0]) / 2)
    )


def invariants(trajectory: xr.Dataset) -> Figure:
    """Drift of C_KQ and C_VO against the rate, and of C_KQ with and without the biases."""
    last = trajectory["drift"].isel(time=-1)
    rates = last["rate"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.2, sharey=True)
        for optimiser, colour in (("sgd", COLOURS[0]), ("adam", COLOURS[3])):
            for product, style in (("KQ", "-"), ("VO", ":")):
                values = last.sel(optimiser=optimiser, product=product, biases=False).transpose("seed", "rate").values
                _seeds(
                    left,
                    rates,
                    values,
                    colour,
                    f"{optimiser.upper() if optimiser == 'sgd' else 'Adam'}, {product}",
                    style,
                )
        first = float(last.sel(optimiser="sgd", product="KQ", biases=False, rate=rates[0]).median())
        left.plot(rates, first * rates / rates[0], **THEORY, label="proportional to the rate")
        left.set(title="Without biases", ylabel="drift of the invariant, ‖C − C₀‖ / ‖C₀‖")
        chosen = {"optimiser": "sgd", "product": "KQ", "biases": True}
        for name, colour, words in (
            ("drift", COLOURS[0], "biases counted"), ("drift_without_bias", COLOURS[1], "weights alone")
        ):  # fmt: skip
            values = trajectory[name].isel(time=-1).sel(chosen).transpose("seed", "rate").values
            _seeds(right, rates, values, colour, words)
        right.set(title="Keys and queries with biases, SGD")
        for axis in (left, right):
            axis.set(xscale="log", yscale="log", xlabel="learning rate, over the largest; same gradient time")
            axis.legend()
    return figure


def closure(trajectory: xr.Dataset) -> Figure:
    """Medians over heads along training: balance, memory, linearity, share outside the spans, rank."""
    panels = [
        ("balance", "Balance", "‖M − (R G_Q Rᵀ)^½‖ / ‖M‖"),
        ("memory", "Memory of the start lost", "‖M − (R (G_Q + C₀) Rᵀ)^½‖ / ‖M‖"),
        ("linearity", "Linearity of the head", "‖ΔK ΔQᵀ‖ / ‖ΔA‖"),
        ("outside", "Outside the start's spans", "share of ΔA"),
        ("stable_rank", "Stable rank of ΔKQ", "‖ΔA‖_F² / ‖ΔA‖²"),
    ]
    steps = trajectory["time"].values
    with look():
        figure, (axes,) = sheet(1, 5, 18, 4.0)
        for axis, (name, title, label) in zip(axes, panels, strict=True):
            for kind, style in (("vit", "-"), ("gpt2", "--")):
                for optimiser, colour in (("adam", COLOURS[3]), ("sgd", COLOURS[0])):
                    chosen = trajectory[name].sel(model=kind, optimiser=optimiser, product="KQ")
                    values = chosen.median(["layer", "head"]).transpose("seed", "time").values
                    words = f"{'ViT' if kind == 'vit' else 'GPT-2'}, {'Adam' if optimiser == 'adam' else 'SGD'}"
                    _seeds(axis, steps, values, colour, words, style)
            axis.set(title=title, ylabel=label, xlabel="step", xscale="log")
            if name not in ("balance", "stable_rank"):
                axis.set(yscale="log")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _seeds(axis: Axes, across: np.ndarray, rows: np.ndarray, colour: str, words: str, style: str = "-") -> None:
    """Median over seeds as a line, their range as a band."""
    if len(rows) > 1:
        axis.fill_between(across, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axis.plot(
        across, np.median(rows, axis=0), color=colour, linestyle=style, linewidth=MEASURED["linewidth"], label=words
    )


def regime(heads: xr.Dataset) -> Figure:
    """Linearity, share outside the spans and drift of the invariant for every head of a model."""
    panels = [
        ("linearity", "Linearity of the head"),
        ("outside", "Outside the start's spans"),
        ("drift", "Drift of the invariant"),
    ]
    with look():
        figure, axes = sheet(2, 3, 12, 6.4, sharex=True, sharey=True)
        for row, product in zip(axes, ("KQ", "VO"), strict=True):
            for axis, (name, title) in zip(row, panels, strict=True):
                values = heads[name].sel(product=product).transpose("head", "layer").values
                drawn = axis.pcolormesh(heads["layer"], heads["head"], values, cmap=HEAT, shading="nearest", vmin=0)
                figure.colorbar(drawn, ax=axis)
                axis.set(title=f"{title}, {product}", xlabel="layer", ylabel="head")
    return figure


def linearised(trajectory: xr.Dataset) -> Figure:
    """Distance between networks and their linearisations over time, and the largest by width; ViTs below."""
    activation = str(trajectory.attrs.get("activation"))
    rows = [
        (activation, trajectory["distance"].transpose("width", "seed", "time"), {"relu": -0.75}.get(activation, -1.0))
    ]
    if "vit_distance" in trajectory:  # runs of earlier versions have none
        rows.append(("ViT", trajectory["vit_distance"].transpose("vit_width", "seed", "vit_step"), -0.5))
    with look():
        figure, axes = sheet(len(rows), 2, 11, 4.2 * len(rows))
        for pair, (name, apart, slope) in zip(axes, rows, strict=True):
            _parting(pair, name, apart, slope)
    return figure


def _parting(axes: np.ndarray, name: str, distance: xr.DataArray, slope: float) -> None:
    """One kind of network, distances by width, seed and step; the slope is that predicted by the experiment."""
    left, right = axes
    widths, steps = (distance[axis].values for axis in (distance.dims[0], distance.dims[2]))
    apart = distance.values
    most = np.nanmax(apart, axis=-1)
    for number, width in enumerate(widths):
        _seeds(left, steps[1:], apart[number][:, 1:], COLOURS[number % len(COLOURS)], f"w = {width}")
    left.axhline(0.1, color=INK, linewidth=1)
    left.annotate("parted", (0.01, 0.1), xycoords=("axes fraction", "data"), xytext=(0, 3),
                  textcoords="offset points", fontsize=9)  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="step", ylabel="‖f − f_lin‖ / ‖f − f₀‖")
    left.set(title=f"{name}: distance over time", ylim=(0.15 * np.nanmin(apart[..., 1:]), None))  # room for the legend
    left.legend(loc="lower center", ncols=3)
    _seeds(right, widths, most.T, COLOURS[0], "largest over time")
    line = np.median(most[0]) * (widths / widths[0]) ** slope
    right.plot(widths, line, **THEORY, label=f"slope {slope:g}".replace("-", "−"))
    right.set(xscale="log", yscale="log", xlabel="width w", ylabel="‖f − f_lin‖ / ‖f − f₀‖")
    right.set_xticks(widths, [str(width) for width in widths])
    right.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    right.set(title=f"{name}: largest distance, by width", ylim=(0.7 * most.min(), 1.4 * most.max()))
    right.legend()


def depth(trajectory: xr.Dataset) -> Figure:
    """e over the reach, over σ²w relative to two layers' scale, and the border by width, for each depth."""
    last = trajectory["linearity"].isel(time=-1).transpose("layers", "seed", "width", "reach")
    reach, widths = last["reach"].values, last["width"].values
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.4)
        for number, layers in enumerate(last["layers"].values):
            colour, words = COLOURS[number % len(COLOURS)], f"L = {layers}"
            widest = last.values[number, :, -1]
            _seeds(axes[0], 10**reach, widest, colour, words)
            _seeds(axes[1], 10 ** (2 / layers * reach), widest, colour, words)
            border = 10 ** (2 / layers * trajectory["border"].sel(layers=layers).transpose("seed", "width").values)
            _seeds(axes[2], widths, border / border[:, -1:], colour, words)
        for axis, label, title in (
            (axes[0], r"$(\sigma^2w)^{L/2}/s$", "One quantity decides"),
            (axes[1], r"$\sigma^2w/s^{2/L}$", "In the variance: deeper is sharper"),
        ):
            axis.axhline(0.5, color=INK, linewidth=1)
            axis.set(xscale="log", xlabel=label, ylabel="linearity e, widest networks", title=title, ylim=(0, 1))
        axes[2].axhline(1, **THEORY, label="border of σ²w")
        axes[2].set(xscale="log", yscale="log", xlabel="width w", ylabel="σ²w at e = ½, over the widest's",
                    title="The border by width", ylim=(0.2, 5))  # fmt: skip
        axes[2].set_xticks(widths, [str(width) for width in widths])
        axes[2].set_yticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        axes[2].minorticks_off()
        for axis in axes:
            axis.legend()
        words = f"{trajectory.attrs['activation']}, {trajectory.attrs['source']}, d = {trajectory.attrs['dim']}"
        figure.suptitle(words, fontsize=11)
    return figure


def vit_regime(trajectory: xr.Dataset) -> Figure:
    """Linearity, rank and test accuracy of ViTs over width and initial scale, and e over a√w."""
    last = trajectory.isel(time=-1).transpose("seed", "width", "scale", ...)
    scales, widths = last["scale"].values, last["width"].values
    across, up = np.log2(scales), np.log2(widths)
    short = (last["loss"] > last.attrs["until"]).values.mean(0) >= 0.5
    panels = [
        ("Linearity of the change, e", "linearity", "0: lazy … 1: active", {"vmin": 0, "vmax": 1}),
        (r"Stable rank of heads' $\Delta KQ$", "stable_rank", "median over heads", {"vmin": 1}),
        ("Test accuracy", "test_accuracy", "share of unseen images", {}),
    ]
    with look():
        figure, (axes,) = sheet(1, 4, 18, 4.6)
        for axis, (title, name, unit, options) in zip(axes, panels, strict=False):
            values = last[name].mean("seed").values
            drawn = axis.pcolormesh(across, up, values, cmap=HEAT, shading="nearest", rasterized=True, **options)
            figure.colorbar(drawn, ax=axis, label=unit)
            _vit_borders(axis, last, across, up)
            rows, columns = np.nonzero(short)
            axis.plot(across[columns], up[rows], "x", color="white", markersize=5)
            axis.set(title=title, xlabel="initial scale a, over PyTorch's")
            axis.set_xticks(across[::2], [f"{scale:g}" for scale in np.round(scales[::2], 3)])
            axis.set_yticks(up, [str(width) for width in widths])
        axes[0].set_ylabel("width w")
        handles, labels = axes[0].get_legend_handles_labels()
        for number, width in enumerate(widths):
            e = last["linearity"].values[:, number]
            _seeds(axes[3], scales * np.sqrt(width), e, COLOURS[number % len(COLOURS)], f"w = {width}")
        axes[3].axhline(0.5, color=INK, linewidth=1)
        axes[3].set(xscale="log", yscale="log", xlabel=r"$a\sqrt{w}$", ylabel="e", title="What decides")
        axes[3].set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axes[3].set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
        axes[3].minorticks_off()
        axes[3].legend()
        words = f"ViTs on {last.attrs['source']}, trained to {100 * float(last.attrs['until']):g} % of the first loss"
        figure.suptitle(words + (" (×: not reached)" if short.any() else ""), fontsize=11)
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _vit_borders(axis: Axes, last: xr.Dataset, across: np.ndarray, up: np.ndarray) -> None:
    border = np.log2(last["border"].values)
    there = np.isfinite(border).all(0)
    if there.any():  # through the middle of what was measured
        line = border[:, there].mean() - 0.5 * (up - up[there].mean())
        axis.plot(line, up, color="white", linewidth=3.4)
        axis.plot(line, up, **THEORY, label="slope of a ~ w^(−½)")
    for number, row in enumerate(border):
        axis.plot(row, up, color="white", linewidth=3.6)
        axis.plot(row, up, color=COLOURS[3], linewidth=1.8, label=None if number else "measured e = ½, each seed")
    wide, high = ((values[1] - values[0]) / 2 for values in (across, up))
    axis.set(xlim=(across[0] - wide, across[-1] + wide), ylim=(up[0] - high, up[-1] + high))


def fine_tune(trajectory: xr.Dataset) -> Figure:
    """What merges keep against e of the joint change, and what half a change misses against e/2."""
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.4)
        for number, rate in enumerate(trajectory["rate"].values):
            one = trajectory.sel(rate=rate)
            colour, words = COLOURS[number % len(COLOURS)], f"rate {rate:g}"
            left.plot(one["joint_linearity"].values.ravel(), one["kept"].values.ravel(), "o", color=colour, label=words)
            right.plot(one["linearity"].values.ravel() / 2, one["half_missed"].values.ravel(), "o", color=colour,
                       label=words)  # fmt: skip
        left.axhline(1, color=INK, linewidth=1)
        left.set(xlabel="e of the joint change", ylabel="share of both gains that is kept", title="Adding two changes")
        ends = np.array([trajectory["linearity"].min(), trajectory["linearity"].max()]) / 2
        right.plot(ends, ends, **THEORY, label="second order: e/2")
        right.set(xlabel="e/2", ylabel="missed, relative to half of the effect", title="Half a change")
        for axis in (left, right):
            axis.legend()
    return figure
