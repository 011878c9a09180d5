"""The two verbs: `simulate` a model's training, `predict` it from theory.

A lab is a package with the modules `simulate` and `theory`. A model is simulated by the
`simulate` module beside its class; a theory predicts through the `theory` module it
lives in. Both get one setting at a time: lists of seeds or settings are laid out here.
"""

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError

AXIS = {"axis": True}
"""Metadata of a dataclass field that may be a list and then becomes an axis of the result."""


def simulate(
    model: Any,
    task: Any,
    method: Any,
    *,
    times: Any = None,
    seed: int | Sequence[int] = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Train a model on a task by a method and return the labelled trajectory.

    Args:
        model: what is trained, for instance `saddles.linear.TwoLayer(...)`.
        task: what it is trained on, for instance `saddles.linear.Denoising(...)`.
        method: how, for instance `saddles.linear.GradientDescent(...)`.
        times: gradient times to save at, increasing; None lets the method decide
            (until converged, within its stated limit).
        seed: seed of the model's initial weights; a list adds the axis `seed`.
        keep: names of large variables to keep (the lab's docstring lists them).
        device: "cpu", "gpu", or "gpu:1"; None is JAX's default.
        precision: "float64" or "float32".

    A field of the model or the method that accepts a list (such as width, variance or log_alpha) adds an
    axis of its name. Where the runs' clocks then differ, `time` is the clock that `times` are given in, and
    each run's own is kept as `own_time`.
    """
    run = _room(model, "simulate", "a model").simulate
    return _lay_out(run, model, task, method, times, seed, keep, device, precision)


def predict(
    model: Any,
    task: Any,
    theory: Any,
    *,
    times: Any = None,
    seed: int | Sequence[int] = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Predict what `simulate` would give from a theory; same arguments, same result type."""
    run = _room(theory, "theory", "a theory").predict
    return _lay_out(run, model, task, theory, times, seed, keep, device, precision)


def _room(thing: Any, name: str, what: str) -> Any:
    package = type(thing).__module__.rpartition(".")[0]
    if package:
        try:
            room = importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
        else:
            return room
    raise SaddlesError.about(
        f"{type(thing).__name__} came as {what}",
        f"its package needs a module `{name}`",
        "use one of a lab, such as saddles.linear",
    )


def _lay_out(
    run: Callable[..., Trajectory],
    model: Any, task: Any, method: Any, times: Any, seed: Any, keep: Any, device: Any, precision: str,
) -> Trajectory:  # fmt: skip
    if precision not in ("float64", "float32"):
        raise SaddlesError.about(f"precision={precision!r} came", "float64 or float32 is run", "leave it out")
    axes: dict[str, list[Any]] = {}
    for owner in (model, method):
        axes |= {name: list(getattr(owner, name)) for name in _listed(owner)}
    if not isinstance(seed, int):
        axes["seed"] = [int(s) for s in seed]
    if any(not values for values in axes.values()):
        raise SaddlesError.about(f"an empty list came for {sorted(axes)}", "at least one value is needed", "give one")
    options = {"keep": keep, "device": device, "precision": precision}
    if not axes:
        return run(model, task, method, times=times, seed=seed, **options)
    runs = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        runs[values] = (
            _with(model, chosen),
            task,
            _with(method, chosen),
            {"seed": chosen.get("seed", seed), **options},
        )
    made = {key: run(*who, times=times, **how) for key, (*who, how) in runs.items()}
    if times is None and not any("step" in one.coords for one in made.values()):
        longest = max((_clock(one) for one in made.values()), key=lambda clock: clock[-1])
        made = {
            key: one if np.array_equal(_clock(one), longest) else run(*runs[key][:-1], times=longest, **runs[key][-1])
            for key, one in made.items()
        }
    return _stack(_on_one_clock(made), axes)


def _clock(run: Trajectory) -> np.ndarray:
    """The clock that `times` are given in: `time`, or the coordinate that the run's attribute `clock` names."""
    return run[run.attrs.get("clock", "time")].values


def _on_one_clock(made: dict[tuple[Any, ...], Trajectory]) -> dict[tuple[Any, ...], Trajectory]:
    """Runs that share the clock that was asked for (up to rounding) but not their own are put on the former."""
    one, *others = made.values()
    clock = _clock(one)
    shared = all(len(_clock(other)) == len(clock) and np.allclose(_clock(other), clock) for other in others)
    if not shared or all(np.array_equal(one["time"].values, other["time"].values) for other in others):
        return made
    return {key: _moved(run, clock) for key, run in made.items()}


def _moved(run: Trajectory, clock: np.ndarray) -> Trajectory:
    name, own = run.attrs.get("clock", "time"), run["time"]
    moved = run.assign_coords(time=clock).assign(own_time=("time", own.values))
    moved["time"].attrs["unit"] = own.attrs.get("unit", "") if name == "time" else name.replace("_", " ")
    moved["own_time"].attrs |= own.attrs
    return moved if name == "time" else moved.drop_vars(name)


def _listed(owner: Any) -> list[str]:
    if not dataclasses.is_dataclass(owner):
        return []
    return [
        field.name
        for field in dataclasses.fields(owner)
        if field.metadata.get("axis") and isinstance(getattr(owner, field.name), list | tuple)
    ]


def _with(owner: Any, chosen: dict[str, Any]) -> Any:
    changes = {name: chosen[name] for name in _listed(owner)}
    return dataclasses.replace(owner, **changes) if changes else owner


def _stack(made: dict[tuple[Any, ...], Trajectory], axes: dict[str, list[Any]]) -> Trajectory:
    names, grid = list(axes), dict(made)
    statuses = sorted({one.attrs["status"] for one in made.values()})
    for depth in range(len(names), 0, -1):
        groups: dict[tuple[Any, ...], list[Trajectory]] = {}
        for key, one in grid.items():
            groups.setdefault(key[: depth - 1], []).append(one)
        axis = xr.DataArray(axes[names[depth - 1]], dims=names[depth - 1], name=names[depth - 1])
        grid = {
            key: xr.concat(parts, axis, data_vars="all", coords="minimal", compat="override", join="outer",
                           combine_attrs="override")
            for key, parts in groups.items()
        }  # fmt: skip
    (whole,) = grid.values()
    whole = whole.transpose("time", *names, ...)
    whole.attrs["status"] = statuses[0] if len(statuses) == 1 else "; ".join(statuses)
    whole.attrs["wall_time_s"] = sum(one.attrs["wall_time_s"] for one in made.values())
    whole.attrs["gradient_evaluations"] = sum(one.attrs["gradient_evaluations"] for one in made.values())
    whole.attrs.pop("seed", None)
    return whole
