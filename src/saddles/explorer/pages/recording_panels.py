"""Panels of a recorded or inspected training run: ranks by layer and head, spectra, when values become active."""

import re
from collections.abc import Hashable

import numpy as np
import xarray as xr

from saddles.explorer import draw
from saddles.explorer.page import Panel, Results
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.pages.trajectory_panels import positions
from saddles.explorer.view import RefusedError
from saddles.measures import rank_growth

SHOWN = 12
"""Singular values over time that are drawn."""
MATRICES = 16
RUNS = ("scale", "seed")
"""Axes of the runs of lab `transformers`."""


def of_lab(view: Runs, data: xr.Dataset) -> xr.Dataset:
    """A trajectory of lab `transformers` as a recording: one scale and seed, at the steps whose spectra are kept."""
    runs: dict[Hashable, int] = {axis: data.sizes[axis] for axis in RUNS}
    one = data.isel(dict.fromkeys(RUNS, 0) | positions(view, runs, runs))
    rows = np.flatnonzero(np.isin(one["step"].values, one["instant"].values))
    spectra = one["singular_value"].transpose("instant", "layer", "head", "product", "index")
    return one.drop_dims("instant").isel(time=rows).assign(singular_value=(("time", *spectra.dims[1:]), spectra.values))


def is_of_lab(data: xr.Dataset) -> bool:
    """Whether `of_lab` can read it."""
    return {*RUNS, "layer", "head", "product", "instant"} <= set(data.dims) and "singular_value" in data


def panels(view: Runs, parts: Results) -> list[Panel]:
    """Four panels of the heads, and one of the matrices where they were measured."""
    heads = parts["heads"]
    check(view, heads)
    now = round(view.instant * (heads.sizes["time"] - 1))
    one = heads.sel(product=view.product).isel(layer=view.layer, head=view.head)
    shown = [
        _map(view, heads, now),
        _spectrum(view, one, now),
        _growth(view, heads, one, now),
        _layers(view, heads, now),
    ]
    if "train_loss" in heads:
        shown.append(_losses(heads, now))
    matrices = parts.get("modules")
    if matrices is not None and matrices.sizes.get("module") and view.measure in matrices:
        shown.append(_matrices(view, matrices, now))
    return shown


def check(view: Runs, heads: xr.Dataset) -> None:
    """Refuse a layer, head or product that the run has not."""
    if not heads.sizes.get("time"):
        raise RefusedError("run", "This recording has no rows yet. Wait for its first measurement.")
    for name, place in (("layer", view.layer), ("head", view.head)):
        if place >= heads.sizes[name]:
            raise RefusedError(name, f"This run has {name}s 0 to {heads.sizes[name] - 1}; got {place}.")
    known = heads["product"].values
    if view.product not in known:
        raise RefusedError("product", f"This run has the products {', '.join(known)}; got {view.product}.")


def measured(view: Runs) -> str:
    """The chosen measure in words."""
    return re.sub(r"energy rank (\d+)", r"rank at \1 %", view.measure.replace("_", " "))


def _map(view: Runs, heads: xr.Dataset, now: int) -> Panel:
    values = heads[view.measure].sel(product=view.product).isel(time=now).transpose("layer", "head").values
    step = int(heads["step"][now])
    top = float(np.nanmax(heads[view.measure].sel(product=view.product).values))
    frame = {"symbol": "square-open", "size": 16, "line": {"width": 2.5}}
    told = "layer %{y}, head %{x}: %{z:.3g}<extra></extra>"
    look = {"zmin": 0, "zmax": top, "xgap": 1, "ygap": 1, "hovertemplate": told}
    data = [
        draw.heat(values, heads["head"].values, heads["layer"].values, **look),
        draw.dots([view.head], [view.layer], "", "white", marker=frame, hoverinfo="skip"),
    ]
    most = np.unravel_index(int(np.nanargmax(values)), values.shape)
    words = (
        f"{measured(view)} of the change of {view.product} at step {step}, by layer and head; largest "
        f"{np.nanmax(values):.3g} at layer {most[0]}, head {most[1]}."
    )
    ends = [-0.5, values.shape[1] - 0.5], [values.shape[0] - 0.5, -0.5]  # layer 0 above; the frame has no say
    x, y = ({"dtick": max(1, abs(b - a) // 12), "showgrid": False, "range": [a, b]} for a, b in ends)
    layout = draw.layout("head", "layer", x=x, y=y)
    return Panel(f"{measured(view)} by layer and head, step {step}", words, data, layout)


def _spectrum(view: Runs, one: xr.Dataset, now: int) -> Panel:
    step = int(one["step"][now])
    spectrum = one["singular_value"].isel(time=now).values
    spectrum = spectrum[np.isfinite(spectrum)]
    data = []
    if "initial_singular_value" in one:
        first = one["initial_singular_value"].values
        first = first[np.isfinite(first)]
        data.append(draw.line(1 + np.arange(len(first)), first, "initial product", "#D55E00", line={"width": 1.6}))
    marks = {"mode": "lines+markers", "marker": {"size": 5}}
    data.append(draw.line(1 + np.arange(len(spectrum)), spectrum, f"change, step {step}", draw.colour(2), **marks))
    floor = float(one["noise_floor"][now]) if "noise_floor" in one else 0.0
    shapes = [draw.level(floor, "rounding")] if floor > 0 else []
    top = f"{spectrum[0]:.3g}" if len(spectrum) else "none"
    words = (
        f"Singular values of the change of {view.product} of layer {view.layer}, head {view.head} at step {step}; "
        f"the largest is {top}."
    )
    return Panel(f"Spectrum: layer {view.layer}, head {view.head}", words, data,
                 draw.layout("index", "singular value", y={"type": "log"}, shapes=shapes))  # fmt: skip


def _growth(view: Runs, heads: xr.Dataset, one: xr.Dataset, now: int) -> Panel:
    steps, values = one["step"].values, one["singular_value"].values
    values = values[:, : min(SHOWN, values.shape[1])]
    mine = rank_growth(heads.sel(product=[view.product]).isel(layer=[view.layer], head=[view.head]))
    gains = mine["gain"].values.reshape(len(steps))
    look = {"mode": "lines+markers", "marker": {"size": 4}, "line": {"width": 1.6}}
    data = [draw.line(steps, column, "", draw.colour(k), **look) for k, column in enumerate(values.T)]
    rows = np.flatnonzero(gains > 0)
    before = np.cumsum(np.maximum(np.nan_to_num(gains), 0))
    marked = [(steps[r], values[r, min(int(before[r]) - 1, values.shape[1] - 1)]) for r in rows]
    if marked:
        x, y = zip(*marked, strict=True)
        data.append(draw.dots(x, y, "one more is active", draw.THEORY, marker={"symbol": "triangle-up", "size": 11}))
    count = mine["active"].values.reshape(len(steps))
    count = count[np.isfinite(count)]  # a row between whole spectra has none
    ends = int(count[-1]) if count.size else 0
    words = (
        f"The largest singular values of this head's change over training, each a line; {ends} are active at "
        f"the end; the count rose in {int(mine['rises'])} rows, by at most {int(mine['largest_gain'])} at a time."
    )
    return Panel("Stages: singular values over training", words, data,
                 draw.layout("training step", "singular value", shapes=[draw.upright(float(steps[now]))]))  # fmt: skip


def _layers(view: Runs, heads: xr.Dataset, now: int) -> Panel:
    chosen = heads[view.measure].sel(product=view.product)
    steps = heads["step"].values
    data = []
    for k in range(heads.sizes["layer"]):
        mean, width = chosen.isel(layer=k).mean("head"), 3 if k == view.layer else 1.5
        # Where the colours begin anew the lines are dotted.
        look = {"width": width, "dash": "dot" if k // len(draw.SHADES) % 2 else "solid"}
        data.append(draw.line(steps, mean, f"layer {k}" if k < 12 else "", draw.colour(k), line=look))
    ends = chosen.isel(time=-1).mean("head").values
    told = ", ".join(f"{v:.2f}" for v in ends[:12])
    words = f"Mean {measured(view)} of each layer's heads over training; at the end {told}."
    shapes = [draw.upright(float(steps[now]))]
    return Panel(f"{measured(view)}, mean over a layer's heads", words, data,
                 draw.layout("training step", measured(view), y={"rangemode": "tozero"}, shapes=shapes))  # fmt: skip


def _losses(heads: xr.Dataset, now: int) -> Panel:
    steps = heads["step"].values
    data = [draw.line(steps, heads["train_loss"], "training", draw.colour(0))]
    tested = heads["test_loss"].dropna("time") if "test_loss" in heads else heads["train_loss"][:0]
    if tested.size:
        data.append(draw.line(tested["step"], tested, "test", draw.colour(3), mode="lines+markers"))
    ends = float(heads["train_loss"][0]), float(heads["train_loss"][-1])
    words = f"Training loss from {ends[0]:.3g} to {ends[1]:.3g}, mean since the measurement before, and test loss."
    shapes = [draw.upright(float(steps[now]))]
    return Panel("Loss", words, data, draw.layout("training step", "cross-entropy, nats", shapes=shapes))


def _matrices(view: Runs, matrices: xr.Dataset, now: int) -> Panel:
    here = matrices.isel(time=min(now, matrices.sizes["time"] - 1))
    order = np.argsort(-np.nan_to_num(here["frobenius_norm"].values))[:MATRICES][::-1]
    names = [str(name) for name in here["module"].values[order]]
    values = here[view.measure].values[order]
    data = [{"type": "bar", "orientation": "h", "x": draw.values(values), "y": names,
             "marker": {"color": draw.colour(0)}, "hovertemplate": "%{y}: %{x:.3g}<extra></extra>"}]  # fmt: skip
    words = (
        f"{measured(view)} of the {len(names)} plain matrices that moved most; first {names[-1]} with {values[-1]:.3g}."
    )
    y = {"tickfont": {"size": 10}, "showgrid": False, "automargin": True}
    layout = draw.layout(measured(view), "", height=90 + 22 * len(names), y=y)
    return Panel("Matrices that moved most", words, data, layout, wide=True)


def say(view: Runs, parts: Results) -> str:
    """Steps, heads and status."""
    heads = parts["heads"]
    steps = heads["step"].values
    status = heads.attrs.get("status", "")
    sizes = f"{heads.sizes['layer']} layers of {heads.sizes['head']} heads"
    return f"{len(steps)} rows, steps {int(steps[0])} to {int(steps[-1])}, {sizes}; {status}."
