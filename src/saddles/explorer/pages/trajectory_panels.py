"""Panels of any trajectory: a variable over time, at one instant, over a grid, its stages."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.explorer import draw
from saddles.explorer.page import Panel, Results
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.view import QUOTED, RefusedError
from saddles.measures import stages

FIRST = ("singular_value", "beta", "output", "weights", "test_error", "best_test_error", "test_loss", "loss")
SWEEPS_OWN = ("cell_", "claim_")
"""What a sweep adds to the variables of its experiment, for its own use."""
SHOWN = 16
"""Lines of one plot."""
NAMED = 8
"""Lines that the legend names."""
LISTED = 12
"""Variables that a message lists."""
OFFERED = 1000
"""Positions of an axis that a list offers."""
NAMES: draw.Json = {"type": "category", "tickangle": "auto", "automargin": True}
"""An axis of names."""
WHOLE = 1e9
"""Steps up to here are written in full."""
ROWS = 2000
"""Instants of one line; more are thinned out."""


def variables(data: xr.Dataset) -> list[str]:
    """The numeric variables, those of most interest first."""
    names = [str(n) for n, v in data.data_vars.items() if v.dtype.kind in "fiu" and v.size > 1 and v.ndim]
    order = [*FIRST, *(name for name in names if not name.startswith(SWEEPS_OWN)), *names]
    return sorted(names, key=order.index)


def names(parts: Results) -> list[str]:
    """The variables of a run, with their groups."""
    return list(_places(parts))


def _places(parts: Results) -> dict[str, tuple[str, str]]:
    """Name with group -> group and variable; a variable's own name may have dots too."""
    rows = [(group, name) for group, data in parts.items() for name in variables(data)]
    return {f"{group}.{name}" if group else name: (group, name) for group, name in rows}


def chosen(view: Runs, parts: Results) -> tuple[xr.Dataset, str]:
    """The dataset and the variable of a view."""
    known = names(parts)
    if not known:
        raise RefusedError("run", "This run has no numbers along an axis. Choose another run.")
    full = view.variable or known[0]
    if full not in known:
        sentence = f"Unknown variable {full[:QUOTED]!r}. This run has {', '.join(known[:LISTED])}."
        raise RefusedError("variable", sentence)
    group, name = _places(parts)[full]
    return parts[group], name


def moves(view: Runs, parts: Results) -> bool:
    """Whether what is drawn has instants."""
    data, name = chosen(view, parts)
    return data[name].sizes.get("time", 1) > 1


def positions(view: Runs, sizes: Mapping[Hashable, int], known: Mapping[Hashable, int]) -> dict[str, int]:
    """The positions that a view names along the axes of one variable; `known` are those of all variables."""
    named: dict[str, int] = {}
    for pair in view.at.replace(",", " ").split():
        axis, equals, place = pair.partition("=")
        if not equals or axis not in known or not place.isdecimal() or int(place) >= known[axis]:
            told = ", ".join(f"{axis}=0 to {size - 1}" for axis, size in known.items() if axis != "time")
            sentence = f"Positions along further axes must be {told}" if told else "There are no further axes"
            raise RefusedError("at", f"{sentence}; got {pair[:QUOTED]!r}.")
        named[axis] = int(place)
    return {axis: place for axis, place in named.items() if axis in sizes}


def axes(values: xr.DataArray | xr.Dataset, only: Sequence[str] | None = None) -> dict[str, list[str]]:
    """The labels of the positions along each further axis."""
    found = [str(axis) for axis, size in values.sizes.items() if axis != "time" and 1 < size <= OFFERED]
    return {axis: _labels(values, axis) for axis in found if only is None or axis in only}


def _labels(values: xr.DataArray | xr.Dataset, axis: str) -> list[str]:
    labels = values[axis].values.tolist() if axis in values.coords else list(range(values.sizes[axis]))
    return [f"{label:.4g}" if isinstance(label, float) else str(label) for label in labels]


def _at(view: Runs, data: xr.Dataset, values: xr.DataArray, free: int) -> xr.DataArray:
    """Fix further axes (all but time and `free` others, the longest) at the positions asked for."""
    values = values.isel(positions(view, values.sizes, data.sizes))
    axes = sorted((a for a in values.dims if a != "time"), key=lambda a: -values.sizes[a])
    return values.isel(dict.fromkeys(axes[free:], 0))


def clock_of(data: xr.Dataset, values: xr.DataArray) -> tuple[np.ndarray, str]:
    """The instants of a variable and their unit."""
    for name, words in (("step", "step"), ("rescaled_time", "rescaled time")):
        if name in data.coords and data[name].dims == ("time",):
            return data[name].values, words
    return values["time"].values, str(data["time"].attrs.get("unit", "time"))


def panels(view: Runs, parts: Results) -> list[Panel]:
    """The variable over time and at one instant, the loss; or a map where there is no time to speak of."""
    data, name = chosen(view, parts)
    values = data[name]
    grid = _grid(data, values)
    if grid:
        values = values.where(data["cell_done"] == 1)
    if values.sizes.get("time", 1) < 2:
        still = values.isel(time=0) if "time" in values.dims else values
        grid_ = _at(view, data, still, 2)
        return [_map(grid_, name) if grid_.ndim == 2 else _profile(_at(view, data, still, 1), name)]
    lines = _at(view, data, values, 1).transpose("time", ...)
    clock, unit = clock_of(data, lines)
    now = round(view.instant * (len(clock) - 1))
    shown = [_over_time(lines, name, clock, unit, now, _stages(data, name, lines), _foreseen(view, data, name, lines))]
    if lines.ndim == 2:
        shown.append(_profile(lines.isel(time=now), name, f" at {unit} {_instant(float(clock[now]))}"))
    if grid:
        shown.append(_over_grid(view, data, values, name, now))
    if name != "loss" and "loss" in data and "time" in data["loss"].dims:
        loss = at_quietly(view, data["loss"])
        shown.append(_over_time(loss, "loss", clock, unit, now, None, _foreseen(view, data, "loss", loss)))
    return shown


def _grid(data: xr.Dataset, values: xr.DataArray) -> list[str]:
    """The axes of a sweep that a variable has; none for other trajectories."""
    return [str(a) for a in data["cell_done"].dims if a in values.dims] if "cell_done" in data else []


def _over_grid(view: Runs, data: xr.Dataset, values: xr.DataArray, name: str, now: int) -> Panel:
    """A sweep's variable over its first two axes, at one instant and at the positions asked for beyond them."""
    axes = _grid(data, values)[:2]
    here = values.isel(time=now) if "time" in values.dims else values
    places = dict(pair.split("=") for pair in view.at.replace(",", " ").split())
    here = here.isel({str(a): int(places.get(str(a), 0)) for a in here.dims if a not in axes})
    return _map(here.transpose(*axes), name) if len(axes) == 2 else _profile(here, name)


def at_quietly(view: Runs, values: xr.DataArray) -> xr.DataArray:
    """The same positions, for a variable that may lack some of the axes."""
    pairs = [pair.partition("=") for pair in view.at.replace(",", " ").split()]
    here = values.isel({axis: int(place) for axis, _, place in pairs if axis in values.dims})
    return here.isel({axis: 0 for axis in here.dims if axis != "time"})


def _foreseen(view: Runs, data: xr.Dataset, name: str, lines: xr.DataArray) -> np.ndarray | None:
    """What is stored as the prediction of the lines, (time, line), where there is one at the same instants."""
    found = data.get(f"predicted_{name}")
    if found is None or "time" not in found.dims:
        return None
    pairs = [pair.partition("=") for pair in view.at.replace(",", " ").split()]
    found = found.isel({axis: int(place) for axis, _, place in pairs if axis in found.dims})
    found = found.isel({axis: 0 for axis in found.dims if axis not in lines.dims}).transpose("time", ...)
    return found.values.reshape(found.sizes["time"], -1) if found.dims in (lines.dims, ("time",)) else None


def _stages(data: xr.Dataset, name: str, lines: xr.DataArray) -> xr.Dataset | None:
    """Activations, of weights and singular values that have grown from small."""
    if name not in ("beta", "singular_value") or lines.ndim != 2:
        return None
    one = xr.Dataset({name: lines.reset_coords(drop=True)})
    if "rescaled_time" in data.coords:
        one = one.assign_coords(rescaled_time=("time", data["rescaled_time"].values))
    try:
        active = stages(one, threshold=1e-2 * float(np.nanmax(np.abs(lines.values))), variable=name)
    except (SaddlesError, ValueError):
        return None
    return active if active.sizes["stage"] else None


def _title(name: str) -> str:
    return name.replace("_", " ")


def _instant(at: float) -> str:
    """A step in full, as people count steps; another instant in four digits."""
    return f"{at:.0f}" if at.is_integer() and abs(at) < WHOLE else f"{at:.4g}"


def _range(numbers: np.ndarray) -> str:
    fine = numbers[np.isfinite(numbers)]
    return f"between {fine.min():.3g} and {fine.max():.3g}" if fine.size else "without finite numbers"


def _along(values: xr.DataArray, axis: Hashable) -> tuple[list[float] | list[str], draw.Json]:
    """Where the positions along an axis are drawn: at their numbers, or under their names, side by side.

    Numbers that go up and down are names, as seeds are: a map's rows would lie over each other.
    """
    if axis not in values.coords:
        return list(range(values.sizes[axis])), {}
    labels = values[axis].values
    if (
        labels.dtype.kind in "fiu"
        and axis != "seed"
        and abs(np.sign(np.diff(labels.astype(float))).sum()) == len(labels) - 1
    ):
        return labels.tolist(), {}
    names = [str(label) for label in labels.tolist()]
    return (names, NAMES) if len(set(names)) == len(names) else (list(range(len(names))), {})


def _over_time(
    lines: xr.DataArray, name: str, clock: np.ndarray, unit: str, now: int, active: xr.Dataset | None,
    foreseen: np.ndarray | None,
) -> Panel:  # fmt: skip
    keep = np.unique(np.linspace(0, len(clock) - 1, min(ROWS, len(clock))).astype(int))
    grid = lines.values.reshape(len(clock), -1)
    order = np.argsort(-np.abs(np.nan_to_num(grid)).max(axis=0), kind="stable")[:SHOWN]
    axis = str(lines.dims[1]) if lines.ndim == 2 else ""
    labels = lines[axis].values if axis and axis in lines.coords else np.arange(grid.shape[1])
    titles = [f"{axis} {labels[k]}" if axis and place < NAMED else "" for place, k in enumerate(order)]
    data = [
        draw.line(clock[keep], grid[keep, k], title, draw.colour(place), line={"width": 1.8}, mode=_mode(grid[keep, k]))
        for place, (k, title) in enumerate(zip(order, titles, strict=True))
    ]
    told = ""
    if foreseen is not None:
        mine = foreseen[:, order] if foreseen.shape[1] == grid.shape[1] else foreseen  # one for all lines
        data.append(draw.lines(clock[keep], mine[keep].T, "predicted", theory=True))
        told = " The stored prediction is dashed."
    if active is not None:
        own = np.interp(active["stage_time"].values, _own_clock(lines, clock), clock)
        marks = zip(own, active["stage_coordinate"].values, strict=True)
        height = [float(np.interp(t, clock, grid[:, int(k)])) for t, k in marks]
        data.append(draw.dots(own, height, "becomes active", draw.THEORY, marker={"symbol": "triangle-up", "size": 10}))
        told += f" {active.sizes['stage']} become active, first at {_instant(float(own[0]))}."
    left = f", of which the {SHOWN} largest are drawn" if grid.shape[1] > SHOWN else ""
    words = f"{_title(name)} over {unit}, {grid.shape[1]} line{'s' * (grid.shape[1] > 1)}{left}, {_range(grid)}.{told}"
    return Panel(f"{_title(name)} over {unit}", words, data,
                 draw.layout(unit, _title(name), shapes=[draw.upright(float(clock[now]))]))  # fmt: skip


def _mode(line: np.ndarray) -> str:
    """How a line is drawn: with its points where one stands between gaps and would not be seen."""
    fine = np.concatenate([[False], np.isfinite(line), [False]])
    return "lines+markers" if (fine[1:-1] & ~fine[:-2] & ~fine[2:]).any() else "lines"


def _own_clock(lines: xr.DataArray, clock: np.ndarray) -> np.ndarray:
    """The clock on which `stages` counts: rescaled time or time."""
    return clock if "rescaled_time" in lines.coords else lines["time"].values


def _profile(values: xr.DataArray, name: str, when: str = "") -> Panel:
    flat = np.asarray(values.values, dtype=float).ravel()
    axis = str(values.dims[0]) if values.ndim else "value"
    places, look = _along(values, axis) if values.ndim else (list(range(len(flat))), {})
    fine = flat[np.isfinite(flat)]
    positive = fine.size > 2 and fine.min() > 0 and fine.max() > 100 * fine.min()
    # A line from one name to the next would mean nothing.
    marks = {"mode": "markers" if look else "lines+markers", "marker": {"size": 6}}
    trace = draw.line(np.arange(len(flat)), flat, "", draw.colour(0), **marks)
    data = [trace | {"x": places, "hovertemplate": "%{y:.4g} at %{x}<extra></extra>"}]
    most = f"the largest {fine.max():.3g}" if fine.size else "none of them finite"
    words = f"{_title(name)} along {axis}{when}: {len(flat)} values, {most}."
    return Panel(f"{_title(name)} along {axis}{when}", words, data,
                 draw.layout(axis, _title(name), x=look, y={"type": "log"} if positive else {}))  # fmt: skip


def _map(values: xr.DataArray, name: str) -> Panel:
    up, across = values.dims
    grid = np.asarray(values.values, dtype=float)
    (rows, up_look), (columns, across_look) = _along(values, up), _along(values, across)
    told = f"{across} %{{x}}, {up} %{{y}}: %{{z:.4g}}<extra></extra>"
    data = [draw.heat(grid, columns, rows, hovertemplate=told)]
    words = f"{_title(name)} over {across} and {up}, {_range(grid)}."
    layout = draw.layout(_title(str(across)), _title(str(up)), x=across_look, y=up_look)
    return Panel(f"{_title(name)} over {across} and {up}", words, data, layout)


def say(view: Runs, parts: Results) -> str:
    """What is stored, and from where."""
    data, name = chosen(view, parts)
    axes = ", ".join(f"{axis} {size}" for axis, size in data[name].sizes.items())
    who = data.attrs.get("experiment") or data.attrs.get("model") or data.attrs.get("lab") or "a trajectory"
    others = [full for full, (_, other) in _places(parts).items() if other != name]
    status = data.attrs.get("status", "stored")
    return f"{str(who)[:80]}: {_title(name)} ({axes}); {status}. Other variables: {', '.join(others[:8]) or 'none'}."
