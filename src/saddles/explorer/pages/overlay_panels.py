"""Panels of several runs on shared axes: one curve a run."""

import os
from dataclasses import dataclass

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.explorer import draw
from saddles.explorer.page import Panel, Results
from saddles.explorer.pages import recording_panels, trajectory_panels
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.view import RefusedError


@dataclass(frozen=True)
class Curve:
    """A variable of one run over its clock."""

    clock: np.ndarray
    unit: str
    values: np.ndarray
    what: str
    where: tuple[str, ...] = ()
    """The position along each further axis, in words."""


def panels(view: Runs, runs: dict[str, Results]) -> list[Panel]:
    """The chosen variable, and the loss where it is another, of all runs: name of a run -> its groups."""
    made = []
    for of in (_chosen, _loss):
        curves = {}
        for name, parts in runs.items():
            try:
                curve = of(view, parts)
            except SaddlesError as error:
                raise RefusedError("over", f"{name}: {error}") from error
            first = next(iter(curves.values()), curve)
            if curve is not None and first is not None and (curve.what, curve.unit) == (first.what, first.unit):
                curves[name] = curve
        if len(curves) > 1:
            made.append(_panel(view, curves, len(runs) - len(curves)))
    if not made:
        raise RefusedError("over", "These runs have nothing over time to lay over each other. Choose other runs.")
    return made


def _chosen(view: Runs, parts: Results) -> Curve | None:
    if "heads" in parts:
        heads = parts["heads"]
        recording_panels.check(view, heads)
        values = heads[view.measure].sel(product=view.product).isel(layer=view.layer, head=view.head)
        where = (view.product, f"layer {view.layer}", f"head {view.head}")
        return Curve(heads["step"].values, "training step", values.values, recording_panels.measured(view), where)
    data, name = trajectory_panels.chosen(view, parts)
    trajectory_panels.positions(view, data[name].sizes, data.sizes)
    return _over_time(view, data, name)


def _loss(view: Runs, parts: Results) -> Curve | None:
    if "heads" in parts:
        heads = parts["heads"]
        known = "train_loss" in heads
        return Curve(heads["step"].values, "training step", heads["train_loss"].values, "train loss") if known else None
    data, name = trajectory_panels.chosen(view, parts)
    return _over_time(view, data, "loss") if name != "loss" and "loss" in data else None


def _over_time(view: Runs, data: xr.Dataset, name: str) -> Curve | None:
    """One curve: axes that no position is chosen for at their first."""
    values = data[name]
    if values.sizes.get("time", 1) < 2:
        return None
    one = trajectory_panels.at_quietly(view, values)
    clock, unit = trajectory_panels.clock_of(data, values)
    where = tuple(f"{axis} {one[axis].item()}" for axis in values.dims if axis != "time" and axis in one.coords)
    return Curve(clock, unit, one.values, name.replace("_", " "), where)


def _panel(view: Runs, shown: dict[str, Curve], left: int) -> Panel:
    first = next(iter(shown.values()))
    data = [
        draw.line(curve.clock, curve.values, title, draw.colour(place), line={"width": 2})
        for place, (title, curve) in enumerate(zip(_titles(list(shown)), shown.values(), strict=True))
    ]
    ends = ", ".join(f"{curve.values[-1]:.3g}" for curve in shown.values())
    shared = [part for part in first.where if all(part in curve.where for curve in shown.values())]
    title = ", ".join([first.what, *shared])
    words = f"{title} over {first.unit}, {len(shown)} runs, one curve each; at the end {ends}."
    if left:
        words += f" {left} without it, or on another clock, are left out."
    end = max(float(curve.clock[round(view.instant * (len(curve.clock) - 1))]) for curve in shown.values())
    layout = draw.layout(first.unit, first.what, shapes=[draw.upright(end)])
    return Panel(f"{title}: {len(shown)} runs", words, data, layout, wide=True)


def _titles(names: list[str]) -> list[str]:
    """The names without the folders that all of them share."""
    shared = os.path.commonpath(names) if len(names) > 1 else ""
    return [name.removeprefix(shared).lstrip("/") or name for name in names]
