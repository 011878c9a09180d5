"""One call for a first look: `saddles.plot(measured, predicted)`.

Losses and errors share a panel, every other quantity has its own. Measurements are solid and coloured, theory is dashed
and dark; a quantity, and a component of it, has the same colour in every trajectory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saddles.core.trajectory import instead
from saddles.errors import SaddlesError
from saddles.figures import probe
from saddles.figures.style import COLOURS, MEASURED, THEORY, look, sheet

PANELS = 4
"""Most panels, side by side."""
LINES = 12
"""Most lines of one quantity; those that end largest are drawn."""
LOG_RANGE = 1e3
"""A loss that falls by more than this has a logarithmic axis."""
LATER = 0.45
"""Opacity of the last of several measurements; the first has 1."""


def plot(*trajectories: xr.Dataset | xr.DataTree, variables: Sequence[str] | None = None) -> Figure:
    """Draw trajectories over each other.

    Args:
        trajectories: what `simulate`, `predict`, `load` or a recording returns. Those made by a theory are dashed.
        variables: what to draw; None chooses: losses and errors, then what has one more axis than time.

    A recording of a real model is drawn alone: the stable rank of every layer's change; of a network without heads its
    measures, or the ranks of its matrices.
    """
    if not trajectories:
        raise SaddlesError("`plot` needs at least one trajectory, such as the result of `simulate`.")
    for one in trajectories:
        refuse_others("trajectories", one)
        if isinstance(one, xr.DataTree):
            if len(trajectories) > 1:
                raise SaddlesError("`plot` draws a recording alone. Call it once for each.")
            return _recording(one, variables)
    if isinstance(variables, str):
        raise SaddlesError.must_be("variables", "a list of names", variables, f"Write [{variables!r}]")
    if variables is not None and not len(variables):
        raise SaddlesError.must_be("variables", "one or more names", variables, "Leave it out for a first look")
    data = [one for one in trajectories if isinstance(one, xr.Dataset)]
    panels = _panels(data, variables)
    clock = "step" if all("step" in one.coords for one in data) else "time"
    with look():
        figure, (axes,) = sheet(1, len(panels), 1.2 + 4.4 * len(panels), 4.2)
        for axis, names in zip(axes, panels, strict=True):
            for same, colour in zip(_told_apart(data, names), COLOURS, strict=False):
                _draw(axis, data, same, clock, colour, alone=len(names) == 1)
            _finish(axis, data, names, clock)
    return figure


def refuse_others(name: str, thing: object) -> None:
    """Refuse what is no trajectory."""
    if not isinstance(thing, xr.Dataset | xr.DataTree):
        raise SaddlesError.must_be(name, "a trajectory, an xarray.Dataset or DataTree", thing, instead(thing))


def _recording(tree: xr.DataTree, variables: Sequence[str] | None) -> Figure:
    if "heads" in tree.children and not tree["heads"].sizes.get("layer", 1):
        groups = [tree[name].to_dataset() for name in ("measures", "modules") if name in tree.children]
        filled = [group for group in groups if group.data_vars]
        if not filled:
            raise SaddlesError("The recording has neither heads nor measures nor matrices: there is nothing to draw.")
        return plot(filled[0], variables=variables)
    return probe.stable_rank(tree)


def is_theory(trajectory: xr.Dataset) -> bool:
    """Whether a theory made it."""
    return trajectory.attrs.get("kind") == "predicted" or "theory" in trajectory.attrs


def _panels(data: Sequence[xr.Dataset], variables: Sequence[str] | None) -> list[list[str]]:
    """Names of the variables of each panel."""
    over_time = {
        str(name): variable
        for one in data
        for name, variable in one.data_vars.items()
        if "time" in variable.dims and variable.size and np.issubdtype(variable.dtype, np.number)
    }
    if variables is not None:
        for name in variables:
            if name not in over_time:
                raise SaddlesError.unknown("variable", name, over_time)
        return [[name] for name in variables]
    errors = [name for name in over_time if "loss" in name or "error" in name]
    # Matrices and larger have too many entries for a first look, unless there is nothing else.
    rest = [name for name, variable in over_time.items() if name not in errors and variable.ndim < 3]
    panels = [errors[: len(COLOURS)]] * bool(errors) + [[name] for name in rest]
    panels = (panels or [[name] for name in over_time])[:PANELS]
    if not panels:
        raise SaddlesError("The trajectories must hold a number over time; they hold none.")
    return panels


def _told_apart(data: Sequence[xr.Dataset], names: Sequence[str]) -> list[list[str]]:
    """The names, those together that are the same curve in every trajectory: one would hide the other."""
    groups: list[list[str]] = []
    for name in names:
        same = (group for group in groups if all(_equal(one, group[0], name) for one in data))
        if (group := next(same, None)) is not None:
            group.append(name)
        else:
            groups.append([name])
    return groups


def _equal(one: xr.Dataset, first: str, second: str) -> bool:
    if first not in one or second not in one:
        return first not in one and second not in one
    return one[first].dims == one[second].dims and np.array_equal(one[first], one[second], equal_nan=True)


def _draw(
    axis: Axes, data: Sequence[xr.Dataset], same: Sequence[str], clock: str, colour: str, alone: bool
) -> None:  # fmt: skip
    """Draw what is the same curve under all its names; where it is alone, its components have colours of their own."""
    name, words = same[0], " = ".join(same).replace("_", " ")
    measured = [one for one in data if not is_theory(one)]
    for one in data:
        if name not in one or "time" not in one[name].dims:
            continue
        lines = _lines(one[name])
        theory = is_theory(one)
        place = 0 if theory else next(k for k, other in enumerate(measured) if other is one)
        fade = 1.0 - (1.0 - LATER) * place / max(1, len(measured) - 1)
        for k, line in enumerate(lines):
            several = len(lines) > 1 and alone  # beside others, a quantity has one colour and its name
            # Whatever the order of the arguments, the thin dashes lie on the thick line and not under it.
            style: dict[str, Any] = {**THEORY, "zorder": 3} if theory else {**MEASURED, "alpha": fade}
            if not theory:
                style |= {"color": COLOURS[k % len(COLOURS)] if several else colour}
                style |= {"linewidth": 1.6} if len(lines) > 1 else {}
            if several:
                words = "measured" if len(measured) < len(data) else None
            label = None if k or theory or place else words
            axis.plot(one[clock], line, label=label, **style)


def _lines(variable: xr.DataArray) -> np.ndarray:
    """(line, time): all components, or those that end largest, in their order."""
    rows = variable.transpose("time", ...).values.reshape(variable.sizes["time"], -1).T
    if len(rows) <= LINES:
        return rows
    last = np.nan_to_num(np.abs(rows[:, -1]), nan=-1.0)
    return rows[np.sort(np.argsort(-last, kind="stable")[:LINES])]


def _finish(axis: Axes, data: Sequence[xr.Dataset], names: Sequence[str], clock: str) -> None:
    unit = "step" if clock == "step" else next(iter(data))["time"].attrs.get("unit", "time")
    alone = len(names) == 1
    axis.set(xlabel=unit, title=names[0].replace("_", " ") if alone else "loss and error")
    values = np.concatenate([one[name].values.ravel() for one in data for name in names if name in one])
    values = values[np.isfinite(values)]
    falls = any(word in name for name in names for word in ("loss", "error"))
    if falls and values.size and values.min() > 0 and values.max() > LOG_RANGE * values.min():
        axis.set_yscale("log")
    theories = [str(one.attrs.get("theory", "theory")).partition("(")[0] for one in data if is_theory(one)]
    if theories:
        axis.plot([], [], label=", ".join(dict.fromkeys(theories)), **THEORY)
    if axis.get_legend_handles_labels()[1]:
        axis.legend()
