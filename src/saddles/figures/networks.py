"""Figures of lab `networks`.

The number that the lab calls linearity, e, is 0 where a change is linear: figures call it what it is large for, the
share beyond the linear part. It is not bounded by 1, so colours that end there have an arrow.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from saddles.figures.maps import coloured
from saddles.figures.style import COLOURS, GREY, INK, MEASURED, THEORY, log_ticks, look, sheet

BEYOND = "e, share beyond the linear part"
"""What `linearity` is called on an axis."""
LAZY_TO_ACTIVE = "e; 0: linear, lazy … 1: active"
PUT_RIGHT = {"relu": "ReLU", "cifar10": "CIFAR-10", "digits": "handwritten digits", "made": "synthetic images"}
"""Settings as they are written in a sentence."""
KEPT = (-1.0, 2.0)
"""Shares kept that lie outside are marked at the frame: beside one of −30 all others would be one line."""
APART = r"$\|f-f_{\mathrm{lin}}\|\;/\;\|f-f_0\|$"
"""Distance from the linearised network, over what was learned."""


def phase_diagram(trajectory: xr.Dataset) -> Figure:
    """e, test accuracy and the rank of the change over (γ_σ², γ_w), with the border e = ½."""
    last = trajectory.isel(time=-1).transpose("seed", "gamma_w", "gamma_variance", ...)
    mean = last.mean("seed")
    across, up = last["gamma_variance"].values, last["gamma_w"].values
    panels = [
        ("Change beyond its linear part", "linearity", LAZY_TO_ACTIVE, (0, 1)),
        ("Test accuracy", "test_accuracy", "share of test images", (0,)),
        (r"Stable rank of $\Delta W_1$", "stable_rank", r"$\|\Delta W_1\|_F^2\,/\,\|\Delta W_1\|_{op}^2$", (1,)),
    ]
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.8, sharex=True, sharey=True)
        figure.set_layout_engine("constrained", w_pad=0.12)  # between a bar's label and the next map
        for axis, (title, name, unit, limits) in zip(axes, panels, strict=True):
            coloured(figure, axis, across, up, mean[name].values, unit, *limits)
            _borders(axis, trajectory, last["linearity"].values, across, up)
            axis.set(title=title, xlabel=r"$\gamma_{\sigma^2}$   (variance $\sigma^2=d^{\,\gamma_{\sigma^2}}$)")
        axes[0].set_ylabel(r"$\gamma_w$   (width $w=d^{\,\gamma_w}$)")
        words = [_put_right(trajectory.attrs["activation"]), trajectory.attrs.get("loss", "squared") + " loss"]
        words += [_put_right(trajectory.attrs["source"]), f"d = {trajectory.attrs['dim']}"]
        told = _slope(trajectory["slope"].values, one=_crossed_once(last["linearity"].values))
        figure.suptitle(": ".join([", ".join(words), *told]), fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _crossed_once(rows: np.ndarray) -> bool:
    """Whether e passes ½ at most once in every row: only then is there one border, and a slope of it."""
    above = rows >= 0.5
    return bool(((above[..., 1:] != above[..., :-1]).sum(-1) <= 1).all())


def _slope(slopes: np.ndarray, one: bool) -> list[str]:
    if not one:
        return ["e = ½ is passed more than once in some rows, so that it has no one slope"]
    if np.isnan(slopes).any():  # too few rows have a border
        return []
    half = float(np.ptp(slopes)) / 2
    spread = f" ± {half:.{2 if half >= 0.005 else 3}f} (half the range over seeds)" if len(slopes) > 1 else ""
    return [f"slope of e = ½ is {_signed(float(np.mean(slopes)), '.2f')}{spread}"]


def _borders(axis: Axes, trajectory: xr.Dataset, rows: np.ndarray, across: np.ndarray, up: np.ndarray) -> None:
    # A white line below each border keeps it visible on every colour.
    if trajectory.attrs.get("loss", "squared") == "squared":  # what the theory speaks of
        theory = trajectory["theory_border"].mean("seed").values
        axis.plot(theory, up, color="white", linewidth=3.4)
        axis.plot(theory, up, **THEORY, label="theory of the linear network, e = ½")
    if _crossed_once(rows):
        _seed_borders(axis, trajectory["border"].values, up)
    else:  # one number per row would jump between several borders
        for one in rows:
            axis.contour(across, up, one, levels=[0.5], colors="white", linewidths=3.6)
            axis.contour(across, up, one, levels=[0.5], colors=COLOURS[3], linewidths=1.8)
        axis.plot([], [], color=COLOURS[3], linewidth=1.8, label="measured e = ½, each seed")


def _seed_borders(axis: Axes, border: np.ndarray, up: np.ndarray) -> None:
    for number, row in enumerate(border):
        mark = "o" if len(up) == 1 else None  # a line of one point has no length
        axis.plot(row, up, color="white", linewidth=3.6, marker=mark, markersize=9)
        axis.plot(row, up, color=COLOURS[3], linewidth=1.8, marker=mark,
                  label=None if number else "measured e = ½, each seed")  # fmt: skip


def invariants(trajectory: xr.Dataset) -> Figure:
    """Drift of C_KQ and C_VO against the rate, and of C_KQ with and without the biases."""
    last = trajectory["drift"].isel(time=-1)
    rates = last["rate"].values
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 5.2, sharey=True)
        for optimiser, colour, name in (("sgd", COLOURS[0], "SGD"), ("adam", COLOURS[3], "Adam")):
            for product, style in (("KQ", "-"), ("VO", ":")):
                values = last.sel(optimiser=optimiser, product=product, biases=False).transpose("seed", "rate").values
                _seeds(left, rates, values, colour, f"{name}, {product}", style)
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
            _plain_log(axis.xaxis, rates)
            # Below the axis: the curves may run through any corner.
            _legend(axis, trajectory, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return figure


def closure(trajectory: xr.Dataset) -> Figure:
    """Medians over heads along training: balance, memory, quadratic share, share outside the spans, rank."""
    panels = [
        ("balance", "Distance from balance", "relative to the keys; 0: balanced"),
        ("memory", "Memory of the start lost", "relative distance from what\ngradient flow would keep"),
        (
            "linearity",
            "Quadratic share of the change",
            r"$\|\Delta W_K\,\Delta W_Q^\top\|\,/\,\|\Delta(W_KW_Q^\top)\|$",
        ),
        ("outside", "Outside the start's spans", r"share of $\Delta(W_KW_Q^\top)$"),
        ("stable_rank", "Stable rank of the change", r"of $\Delta(W_KW_Q^\top)$"),
    ]
    steps = trajectory["time"].values
    with look():
        figure, axes = sheet(2, 3, 12, 6.8)
        for axis, (name, title, label) in zip(axes.flat, panels, strict=False):
            for kind, style in (("vit", "-"), ("gpt2", "--")):
                for optimiser, colour in (("adam", COLOURS[3]), ("sgd", COLOURS[0])):
                    chosen = trajectory[name].sel(model=kind, optimiser=optimiser, product="KQ")
                    values = chosen.median(["layer", "head"]).transpose("seed", "time").values
                    words = f"{'ViT' if kind == 'vit' else 'GPT-2'}, {'Adam' if optimiser == 'adam' else 'SGD'}"
                    _seeds(axis, steps, values, colour, words, style)
            axis.set(title=title, ylabel=label, xlabel="step", xscale="log")
            log_ticks(axis.xaxis)
            if name not in ("balance", "stable_rank"):
                axis.set(yscale="log")
        rest = axes.flat[-1]
        rest.set_axis_off()
        handles, labels = axes.flat[0].get_legend_handles_labels()
        handles, labels = _with_band(handles, labels, trajectory)
        rest.legend(handles, labels, loc="center", title="keys and queries, median over heads", fontsize=10)
    return figure


def narrow_head(trajectory: xr.Dataset) -> Figure:
    """What is learned of directions outside the start's spans, and e, over their size."""
    ratio, last = trajectory["ratio"].values, trajectory.isel(time=-1)
    with look():
        figure, axes = sheet(1, 2, 11, 4.6)
        panels = ("learned", "Learned of the direction", "share"), ("linearity", "Change beyond its linear part", "e")
        for axis, (name, title, label) in zip(axes.flat, panels, strict=True):
            _seeds(axis, ratio, last[name].transpose("seed", "ratio").values, COLOURS[0], "flow")
            axis.lines[-1].set_marker("o")  # the border is told by the nearest targets on its two sides
            axis.axvline(1.0, **THEORY, label=r"predicted: $\sigma_{\min}(A_0)$")
            axis.set(title=title, ylabel=label, xlabel=r"singular value of the direction, over $\sigma_{\min}(A_0)$",
                     xscale="log")  # fmt: skip
            _plain_log(axis.xaxis, np.append(1.0, ratio[np.abs(np.log(ratio)) > 0.1]))  # no two labels beside 1
            _legend(axis, trajectory, loc="upper left")
    return figure


def _seeds(axis: Axes, across: np.ndarray, rows: np.ndarray, colour: str, words: str, style: str = "-") -> None:
    """Median over seeds as a line, their range as a band."""
    if len(rows) > 1:
        axis.fill_between(across, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    mark = "o" if len(across) == 1 else None
    axis.plot(across, np.median(rows, axis=0), color=colour, linestyle=style, marker=mark,
              linewidth=MEASURED["linewidth"], label=words)  # fmt: skip


def _with_band(handles: list, labels: list[str], trajectory: xr.Dataset) -> tuple[list, list[str]]:
    """A legend that says what the bands of `_seeds` are, where there are any."""
    if trajectory.sizes["seed"] == 1:
        return handles, labels
    return [*handles, Patch(color=GREY, alpha=0.4, linewidth=0)], [*labels, "range over seeds"]


def _legend(axis: Axes, trajectory: xr.Dataset, **options: object) -> None:
    axis.legend(*_with_band(*axis.get_legend_handles_labels(), trajectory), **options)  # pyright: ignore[reportArgumentType]


def linearised(trajectory: xr.Dataset) -> Figure:
    """Distance between networks and their linearisations over time, and the largest by width; ViTs below."""
    activation = str(trajectory.attrs.get("activation"))
    slope = {"relu": -0.75}.get(activation, -1.0)
    rows = [(_put_right(activation), trajectory["distance"].transpose("width", "seed", "time"), slope)]
    if "vit_distance" in trajectory:  # runs of earlier versions have none
        rows.append(("ViT", trajectory["vit_distance"].transpose("vit_width", "seed", "vit_step"), -0.5))
    with look():
        figure, axes = sheet(len(rows), 2, 11, 4.4 * len(rows))
        for pair, (name, apart, slope) in zip(axes, rows, strict=True):
            _parting(pair, name, apart, slope, trajectory)
    return figure


def _parting(axes: np.ndarray, name: str, distance: xr.DataArray, slope: float, trajectory: xr.Dataset) -> None:
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
    left.set(xscale="log", yscale="log", xlabel="step", ylabel=APART)
    left.set(title=f"{name}: distance over time", ylim=(0.1 * np.nanmin(apart[..., 1:]), None))  # room for the legend
    log_ticks(left.xaxis)
    log_ticks(left.yaxis)
    _legend(left, trajectory, loc="lower center", ncols=3)
    _seeds(right, widths, most.T, COLOURS[0], "largest over time")
    line = np.median(most[0]) * (widths / widths[0]) ** slope
    if len(widths) > 1:
        right.plot(widths, line, **THEORY, label=f"expected slope, {_signed(slope, 'g')}")
    right.set(xscale="log", yscale="log", xlabel="width w", ylabel=APART)
    _plain_log(right.xaxis, widths)
    ends = min(most.min(), line.min()), max(most.max(), line.max())
    right.set(title=f"{name}: largest distance, by width", ylim=(0.7 * ends[0], 1.4 * ends[1]))
    log_ticks(right.yaxis)
    _legend(right, trajectory)


def depth(trajectory: xr.Dataset) -> Figure:
    """e over the reach, over σ²w relative to two layers' scale, and the border by width, for each depth."""
    last = trajectory["linearity"].isel(time=-1).transpose("layers", "seed", "width", "reach")
    reach, widths = last["reach"].values, last["width"].values
    highest, seen = 1.0, [1.0]
    with look():
        figure, (axes,) = sheet(1, 3, 14, 4.6)
        for number, layers in enumerate(last["layers"].values):
            colour, words = COLOURS[number % len(COLOURS)], f"L = {layers}"
            widest = last.values[number, :, -1]
            _seeds(axes[0], 10**reach, widest, colour, words)
            _seeds(axes[1], 10 ** (2 / layers * reach), widest, colour, words)
            border = 10 ** (2 / layers * trajectory["border"].sel(layers=layers).transpose("seed", "width").values)
            lengths = border / border[:, -1:]
            _seeds(axes[2], widths, lengths, colour, words)
            seen += list(lengths[np.isfinite(lengths)])
            highest = max(highest, float(np.nanmax(widest)))
        for axis, label, title in (
            (axes[0], r"$(\sigma^2w)^{L/2}/s$", "e over the reach, by depth"),
            (axes[1], r"$\sigma^2w/s^{2/L}$", "e over the variance, by depth"),
        ):
            axis.axhline(0.5, color=INK, linewidth=1)
            axis.set(xscale="log", xlabel=label, ylabel=f"{BEYOND} (w = {widths[-1]})", title=title)
            axis.set(ylim=(0, 1.02 * highest))
        axes[2].axhline(1, **THEORY, label="where σ²w alone decides")
        axes[2].set(xscale="log", yscale="log", xlabel="width w", ylabel="σ²w at e = ½, over the widest's",
                    title="The border by width")  # fmt: skip
        # There may be no border to set the limits.
        axes[2].set(xlim=(0.92 * widths[0], 1.08 * widths[-1]))
        axes[2].set(ylim=(min(0.2, 0.9 * min(seen)), max(5.0, 1.1 * max(seen))))
        _plain_log(axes[2].xaxis, widths)
        axes[2].set_yticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        axes[2].yaxis.set_minor_formatter(NullFormatter())
        for axis in axes:
            _legend(axis, trajectory)
        words = [_put_right(trajectory.attrs["activation"]), _put_right(trajectory.attrs["source"])]
        figure.suptitle(f"{', '.join(words)}, d = {trajectory.attrs['dim']}", fontsize=11)
    return figure


def vit_regime(trajectory: xr.Dataset) -> Figure:
    """e, rank and test accuracy of ViTs over width and initial scale, and e over a√w."""
    last = trajectory.isel(time=-1).transpose("seed", "width", "scale", ...)
    scales, widths = last["scale"].values, last["width"].values
    across, up = np.log2(scales), np.log2(widths)
    short = (last["loss"] > last.attrs["until"]).values.mean(0) >= 0.5
    panels = [
        ("Change beyond its linear part", "linearity", LAZY_TO_ACTIVE, (0, 1)),
        (r"Stable rank of heads' $\Delta KQ$", "stable_rank", "median over heads", (1,)),
        ("Test accuracy", "test_accuracy", "share of unseen images", ()),
    ]
    with look():
        figure, axes = sheet(2, 2, 11, 9)
        figure.set_layout_engine("constrained", w_pad=0.12)
        for axis, (title, name, unit, limits) in zip(axes.flat, panels, strict=False):
            coloured(figure, axis, across, up, last[name].mean("seed").values, unit, *limits)
            _vit_borders(axis, last, up)
            rows, columns = np.nonzero(short)
            axis.plot(across[columns], up[rows], "x", color="white", markersize=6)
            axis.set(title=title, xlabel="initial scale a, over PyTorch's", ylabel="width w")
            axis.set_xticks(ticks := _powers(across), [f"{2.0**tick:.3g}" for tick in ticks])
            axis.set_yticks(up, [str(width) for width in widths])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        by_reach = axes[1, 1]
        for number, width in enumerate(widths):
            e = last["linearity"].values[:, number]
            _seeds(by_reach, scales * np.sqrt(width), e, COLOURS[number % len(COLOURS)], f"w = {width}")
        by_reach.axhline(0.5, color=INK, linewidth=1)
        by_reach.set(xscale="log", yscale="log", xlabel=r"$a\sqrt{w}$", ylabel=BEYOND, title="e over a√w, by width")
        log_ticks(by_reach.xaxis)
        log_ticks(by_reach.yaxis)
        _legend(by_reach, trajectory)
        words = f"ViTs on {_put_right(last.attrs['source'])}, trained to {100 * float(last.attrs['until']):g} % of the "
        words += "first loss" + (" (×: not reached)" if short.any() else "")
        figure.suptitle(words, fontsize=11)
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _powers(logarithms: np.ndarray) -> np.ndarray:
    """Whole numbers in their range, for ticks at powers of two; the values themselves where it has fewer than two."""
    whole = np.arange(np.ceil(logarithms[0] - 1e-9), np.floor(logarithms[-1] + 1e-9) + 1)
    return whole if len(whole) > 1 else logarithms


def _vit_borders(axis: Axes, last: xr.Dataset, up: np.ndarray) -> None:
    border = np.log2(last["border"].values)
    there = np.isfinite(border).all(0)
    if there.any() and len(up) > 1:  # through the middle of what was measured
        line = border[:, there].mean() - 0.5 * (up - up[there].mean())
        axis.plot(line, up, color="white", linewidth=3.4)
        axis.plot(line, up, **THEORY, label="estimate a ~ 1/√w, through the same middle")
    _seed_borders(axis, border, up)


def fine_tune(trajectory: xr.Dataset) -> Figure:
    """What merges keep against e of the joint change, and what half a change misses against e/2."""
    with look():
        figure, ((left, right),) = sheet(1, 2, 11, 4.6)
        kept = trajectory["kept"].values
        clipped = bool(((kept < KEPT[0]) | (kept > KEPT[1])).any())
        for number, rate in enumerate(trajectory["rate"].values):
            one = trajectory.sel(rate=rate)
            colour, words = COLOURS[number % len(COLOURS)], f"rate {np.format_float_positional(rate, trim='-')}"
            _shares(left, one["joint_linearity"].values.ravel(), one["kept"].values.ravel(), colour, words)
            right.plot(one["linearity"].values.ravel() / 2, one["half_missed"].values.ravel(), "o", color=colour,
                       label=words)  # fmt: skip
        left.axhline(1, color=INK, linewidth=1)
        left.set(xlabel="e of the joint change", ylabel="share of both gains that is kept", title="Adding two changes")
        if clipped:
            left.set_ylim(*KEPT)
        ends = np.array([trajectory["linearity"].min(), trajectory["linearity"].max()]) / 2
        right.plot(ends, ends, **THEORY, label="second order: e/2")
        right.set(xlabel="e/2", ylabel="missed, relative to half of the effect", title="Half a change")
        for axis in (left, right):
            axis.legend()
    return figure


def _shares(axis: Axes, across: np.ndarray, values: np.ndarray, colour: str, words: str) -> None:
    """Points; those outside of KEPT at the frame, as arrows with their numbers."""
    inside = (values >= KEPT[0]) & (values <= KEPT[1])
    axis.plot(across[inside], values[inside], "o", color=colour, label=words)
    for x, value in zip(across[~inside], values[~inside], strict=True):
        low = value < KEPT[0]
        axis.plot([x], [KEPT[0] if low else KEPT[1]], "v" if low else "^", color=colour, markersize=9, clip_on=False)
        axis.annotate(_signed(value, ".3g"), (x, KEPT[0] if low else KEPT[1]), xytext=(0, 8 if low else -8),
                      textcoords="offset points", ha="center", va="bottom" if low else "top", fontsize=9)  # fmt: skip


def _plain_log(axis: Axis, values: np.ndarray) -> None:
    """Ticks of a logarithmic axis where there are values, and nowhere else."""
    axis.set_ticks(values, [f"{value:.3g}" if value < 1 else f"{value:g}" for value in values])
    axis.set_tick_params(which="minor", size=0)
    axis.set_minor_formatter(NullFormatter())


def _signed(number: float, form: str) -> str:
    """A number with a minus sign, not a hyphen."""
    return format(number, form).replace("-", "−")


def _put_right(name: object) -> str:
    return PUT_RIGHT.get(str(name), str(name))
