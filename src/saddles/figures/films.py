"""Films of learning: `saddles.animate(trajectory, "film.gif")`.

Three moments are worth one: the staircase that sharpens as the start shrinks (a trajectory with an axis `decade`), the
output that first goes to the wrong cluster (`output` with two coordinates or more), and heads that wake up one after
another (a recording). Any other trajectory is drawn as time passes.
"""

import importlib
import importlib.util
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib import animation
from matplotlib.figure import Figure

from saddles.errors import SaddlesError
from saddles.figures.plotting import plot, refuse_others
from saddles.figures.style import COLOURS, GREY, HEAT, INK, MEASURED, THEORY, look, sheet
from saddles.runtime.files import as_path, new_path, refuse_existing
from saddles.runtime.progress import bar

FRAMES = 60
"""Pictures of a film along time."""
HOLD = 8
"""How often the last picture is repeated, so that it can be looked at."""
RATE = 12
"""Pictures in a second."""
SLOW = 2
"""Pictures in a second of a film along few starts."""

Film = tuple[Figure, Callable[[int], None], int, int]
"""The figure, a function that draws picture k on it, how many there are, and how many in a second."""


def animate(trajectory: xr.Dataset | xr.DataTree, path: str | os.PathLike[str], *, dpi: int = 90) -> Path:
    """Write a film of a trajectory as a GIF, or as MP4 where ffmpeg or imageio-ffmpeg is installed.

    Args:
        trajectory: what `simulate`, an experiment or a recording returns.
        path: file to write, which must not exist; its ending chooses the kind.
        dpi: pixels in an inch; a panel is about four inches high.
    """
    refuse_others("trajectory", trajectory)
    file = as_path(path)
    writers = {".gif": "pillow", ".mp4": "ffmpeg"}
    if file.suffix not in writers:
        raise SaddlesError.must_be("path", "a file that ends in .gif or .mp4", file.name)
    writer, tool = writers[file.suffix], ffmpeg()
    if writer == "ffmpeg" and tool is None:
        raise SaddlesError(f"A {file.suffix} file needs {writer}, which is not installed. Write a .gif instead.")
    if not (isinstance(dpi, int | float) and 0 < dpi < math.inf):
        raise SaddlesError.must_be("dpi", "a positive number", dpi)
    refuse_existing(file)
    with look(), mpl.rc_context({"animation.ffmpeg_path": tool or "ffmpeg"}):
        figure, draw, count, rate = _film(trajectory)
        frames = [*range(count), *[count - 1] * HOLD]
        draw(0)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the axes stay where they are, and need not be placed for every picture
        film = animation.FuncAnimation(figure, draw, frames=frames, init_func=lambda: None, interval=1000 / rate)
        with new_path(file) as draft, bar(f"{file.name}, pictures", len(frames)) as shown:
            film.save(draft, writer=writer, fps=rate, dpi=dpi, progress_callback=lambda k, _: shown.reach(k + 1))
    return file


def ffmpeg() -> str | None:
    """The program that writes MP4 files, on the path or from imageio-ffmpeg; None where there is neither."""
    found = shutil.which("ffmpeg")
    if found is None and importlib.util.find_spec("imageio_ffmpeg"):
        found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    return found


def _film(trajectory: xr.Dataset | xr.DataTree) -> Film:
    if isinstance(trajectory, xr.DataTree):
        if "heads" not in trajectory.children:
            raise SaddlesError("`animate` needs a trajectory or a recording with heads.")
        return _heads(trajectory["heads"].to_dataset())
    if "decade" in trajectory.dims and "loss" in trajectory:
        return _staircase(trajectory)
    if "output" in trajectory and trajectory["output"].sizes.get("coordinate", 0) > 1:
        return _output(trajectory)
    return _passing(trajectory)


def _staircase(trajectory: xr.Dataset) -> Film:
    """Loss and weights at smaller and smaller starts, beside the prediction."""
    clock, decades = trajectory["time"].values, trajectory["decade"].values
    beta = trajectory["beta"].transpose("time", "decade", "coordinate") if "beta" in trajectory else None
    figure, (axes,) = sheet(1, 2 if beta is not None else 1, 9 if beta is not None else 5, 4)

    def draw(k: int) -> None:
        for axis in axes:
            axis.clear()
            axis.set(xlabel="t / log(1/α)", xlim=(clock[0], clock[-1]))
        axes[0].plot(clock, trajectory["loss"].isel(decade=k), color=COLOURS[0], label="gradient flow", **MEASURED)
        if "predicted_loss" in trajectory:
            axes[0].step(clock, trajectory["predicted_loss"], where="post", label="theory, α → 0", **THEORY)
        axes[0].set(
            title=f"Loss, initial scale α = 1e-{int(decades[k])}", ylim=(0, 1.05 * float(trajectory["loss"].max()))
        )
        axes[0].legend(loc="upper right")
        if beta is None:
            return
        for i in range(beta.sizes["coordinate"]):
            axes[1].plot(clock, beta.isel(decade=k, coordinate=i), color=COLOURS[i % len(COLOURS)], linewidth=1.6)
            if "predicted_beta" in trajectory:
                axes[1].step(clock, trajectory["predicted_beta"].isel(coordinate=i), where="post", **THEORY)
        low, high = float(beta.min()), float(beta.max())
        axes[1].set(title="Weights: one at a time", ylim=(low - 0.05 * (high - low), high + 0.05 * (high - low)))

    return figure, draw, len(decades), SLOW


def _output(trajectory: xr.Dataset) -> Film:
    """The output in the plane of the first two concepts, and the target that it reaches at last."""
    output = trajectory["output"].transpose("time", ..., "coordinate")
    lines = output.values.reshape(output.sizes["time"], -1, output.sizes["coordinate"])[..., :2]
    target = trajectory["target"].values[..., :2].reshape(-1, 2)[0] if "target" in trajectory else None
    figure, ((axis,),) = sheet(1, 1, 5, 5)
    ends = lines if target is None else np.concatenate([lines.reshape(-1, 2), target[None]])
    high, low = np.nanmax(ends.reshape(-1, 2), 0), np.minimum(np.nanmin(ends.reshape(-1, 2), 0), 0)
    room = 0.08 * (high - low)
    places = _places(len(lines))

    def draw(k: int) -> None:
        now = places[k]
        axis.clear()
        if target is not None:
            corners = np.array([[target[0], 0], [0, target[1]]])
            axis.plot(*corners.T, linestyle="", marker="o", color=GREY, markersize=11, label="trained on")
            axis.plot(*target, linestyle="", marker="*", color=COLOURS[3], markersize=18, label="asked for")
        for run in range(lines.shape[1]):
            axis.plot(*lines[: now + 1, run].T, color=COLOURS[0], label=None if run else "output", **MEASURED)
            axis.plot(*lines[now, run], marker="o", color=INK, markersize=6)
        unit = trajectory["time"].attrs.get("unit", "time")
        axis.set(xlabel="concept 1", ylabel="concept 2", title=f"{unit} {float(trajectory['time'][now]):.3g}",
                 xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))  # fmt: skip
        axis.legend(loc="lower right")

    return figure, draw, len(places), RATE


def _heads(heads: xr.Dataset) -> Film:
    """Norm of every head's change, layer by head, as training goes on."""
    norm = heads["frobenius_norm"].transpose("time", "layer", "head", "product")
    steps, products = heads["step"].values, [str(p) for p in norm["product"].values]
    top = [float(norm.sel(product=product).max()) for product in products]
    figure, (axes,) = sheet(1, len(products), 4.6 * len(products), 4)
    images = []
    for axis, product, most in zip(axes, products, top, strict=True):
        image = axis.imshow(np.zeros(norm.shape[1:3]), cmap=HEAT, vmin=0, vmax=most, aspect="auto", origin="lower")
        axis.set(xlabel="head", ylabel="layer", xticks=range(norm.sizes["head"]), yticks=range(norm.sizes["layer"]))
        figure.colorbar(image, ax=axis, label=f"‖Δ{product}‖")
        images.append(image)
    places = _places(len(steps))

    def draw(k: int) -> None:
        for axis, image, product in zip(axes, images, products, strict=True):
            image.set_data(norm.isel(time=places[k]).sel(product=product).values)
            axis.set_title(f"Δ{product}, step {int(steps[places[k]])}")

    return figure, draw, len(places), RATE


def _passing(trajectory: xr.Dataset) -> Film:
    """What `plot` draws, as time passes."""
    figure = plot(trajectory)
    lines = [(line, np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for axis in figure.axes for line in
             axis.get_lines()]  # fmt: skip
    figure.draw_without_rendering()
    for axis in figure.axes:  # axes and legends stay as they are for the whole run
        axis.set(xlim=axis.get_xlim(), ylim=axis.get_ylim())
        if (legend := axis.get_legend()) is not None:
            legend.set_loc(tuple(axis.transAxes.inverted().transform(legend.get_window_extent().p0)))
    places = _places(trajectory.sizes["time"])

    def draw(k: int) -> None:
        for line, x, y in lines:
            line.set_data(x[: places[k] + 1], y[: places[k] + 1])

    return figure, draw, len(places), RATE


def _places(count: int) -> Sequence[int]:
    """Instants that become pictures: all, or FRAMES of them."""
    return np.unique(np.linspace(0, count - 1, min(count, FRAMES)).round().astype(int)).tolist()
