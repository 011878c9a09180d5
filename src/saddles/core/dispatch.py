"""The two verbs: `simulate` a model's training, `predict` it from theory.

They ask the object itself (see `saddles.protocols`), one run at a time. What is done here is the same for every lab:
arguments are checked, those without a meaning are refused, and lists of seeds or settings become axes of the result.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.provenance import describe
from saddles.core.status import Status, status_of
from saddles.core.trajectory import Trajectory
from saddles.core.validation import check_precision, check_seeds, check_times
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike, Model, Theory

DEFAULTS: dict[str, object] = {"times": None, "seed": 0, "keep": None, "device": None, "precision": "float64"}
"""What each argument is where it is not given."""


def simulate(
    model: Model,
    task: object,
    method: object,
    *,
    times: ArrayLike | None = None,
    seed: int | Sequence[int] = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
    **options: Any,  # further keywords of the model's own `simulate`
) -> Trajectory:
    """Train a model on a task by a method and return the labelled trajectory.

    Args:
        model: what is trained, for instance `saddles.linear.TwoLayer(...)`, or an object of your own (`saddles.Model`).
        task: what it is trained on, for instance `saddles.linear.Denoising(...)`.
        method: how, for instance `saddles.linear.GradientDescent(...)`.
        times: instants to save at, in the unit of the result's `time`, increasing; None leaves them to the method
            (until converged, within its stated limit).
        seed: all randomness of a run derives from it; a list adds the axis `seed`.
        keep: names of large variables to keep (the model's docstring lists them); None keeps those that are small.
        device: "cpu", "gpu", or "gpu:1"; None is the default device.
        precision: "float64" or "float32".
        options: passed on to the model.

    A field of the model or the method that accepts a list (such as width, variance or log_alpha) adds an axis of its
    name. An argument that has no meaning for this model is refused.
    """
    run = _verb(model, Model, "simulate", "model")
    given = {"times": times, "seed": seed, "keep": keep, "device": device, "precision": precision}
    return _lay_out(_Call(run, model, task, method, model_first=True), given, options)


def predict(
    model: object,
    task: object,
    theory: Theory,
    *,
    times: ArrayLike | None = None,
    seed: int | Sequence[int] = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
    **options: Any,  # further keywords of the theory's own `predict`
) -> Trajectory:
    """Predict what `simulate` would give from a theory; same arguments, same type of result."""
    run = _verb(theory, Theory, "predict", "theory")
    given = {"times": times, "seed": seed, "keep": keep, "device": device, "precision": precision}
    return _lay_out(_Call(run, model, task, theory, model_first=False), given, options)


def _verb(thing: object, protocol: type, name: str, kind: str) -> str:
    if isinstance(thing, type):
        raise SaddlesError(f"The {kind} must be an object, not a class: write {thing.__name__}(...).")
    if not isinstance(thing, protocol):
        raise SaddlesError(
            f"The {kind} must have a method `{name}`; {type(thing).__name__} has none. "
            "See saddles.protocols, or use one of a lab, such as saddles.linear."
        )
    return name


@dataclass(frozen=True)
class _Call:
    """A model, a task and a method (or theory), and which of them is asked."""

    verb: str
    model: Any
    task: Any
    other: Any
    model_first: bool

    @property
    def asked(self) -> Any:
        return self.model if self.model_first else self.other

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> Any:
        rest = (self.task, self.other) if self.model_first else (self.model, self.task)
        return getattr(self.asked, name)(*rest, **arguments)

    def run(self, arguments: Mapping[str, Any]) -> Any:  # a Dataset; a tree of a user's own is left as it is
        """The trajectory; what a theory made says so, for a figure draws it as one."""
        found = self(self.verb, arguments)
        if not isinstance(found, xr.Dataset | xr.DataTree):
            raise SaddlesError(
                f"`{self.verb}` of {type(self.asked).__name__} must return a trajectory (`saddles.trajectory` makes "
                f"one); got a {type(found).__name__}."
            )
        if self.model_first or isinstance(found, xr.DataTree):
            return found
        return found.assign_attrs({"kind": "predicted", "theory": describe(self.other)} | found.attrs)

    def fitting(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the arguments that the method called `name` takes."""
        parameters = inspect.signature(getattr(self.asked, name)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return dict(arguments)
        return {key: value for key, value in arguments.items() if key in parameters}

    def chosen(self, values: Mapping[str, Any]) -> "_Call":
        """The same with single values in the place of lists."""
        return dataclasses.replace(self, model=_with(self.model, values), other=_with(self.other, values))


def _lay_out(call: _Call, given: dict[str, Any], options: Mapping[str, Any]) -> Trajectory:
    """Check the arguments, run once per combination of listed values, and stack the runs."""
    check_precision(given["precision"])
    given["times"], seeds = check_times(given["times"]), check_seeds(given["seed"])
    arguments = {**given, **options}
    taken = call.fitting(call.verb, arguments)
    _refuse_unused(call, {key: arguments[key] for key in arguments if key not in taken})
    _need_times(call, taken)
    if seeds != 0:
        _refuse_seed(call)
    axes = {name: _values(getattr(owner, name)) for owner in (call.model, call.other) for name in listed(owner)}
    if isinstance(seeds, list):
        axes["seed"] = seeds
    if not axes:
        return call.run(taken)
    for name, values in axes.items():
        if not len(values):
            raise SaddlesError.must_be(name, "a value or a list of at least one", values)
        if len(set(values)) < len(values):
            raise SaddlesError.must_be(name, "different values", values)
    runs = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        own = {"seed": chosen["seed"]} if "seed" in chosen else {}
        runs[values] = (call.chosen(chosen), taken | own)
    reasons: list[Status] = []
    if taken.get("times") is None and hasattr(call.asked, "horizon"):
        clock, reasons = _common_clock(list(runs.values()))
        runs = {key: (one, words | {"times": clock}) for key, (one, words) in runs.items()}
    results = {key: one.run(words) for key, (one, words) in runs.items()}
    return _stack(results, axes, reasons)


def _refuse_unused(call: _Call, unused: Mapping[str, Any]) -> None:
    """An argument that would be ignored is an error, unless it was not given."""
    for name, value in unused.items():
        if name in DEFAULTS and (value is None or (np.ndim(value) == 0 and value == DEFAULTS[name])):
            continue
        parameters = inspect.signature(getattr(call.asked, call.verb)).parameters
        known = [key for key, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise SaddlesError(f"`{name}` has no meaning for {type(call.asked).__name__}: {takes}. Leave it out.")


def _need_times(call: _Call, taken: Mapping[str, Any]) -> None:
    """Who has no default for `times`, and no horizon, chooses none."""
    parameter = inspect.signature(getattr(call.asked, call.verb)).parameters.get("times")
    chosen = taken.get("times") is not None or hasattr(call.asked, "horizon")
    if parameter is not None and parameter.default is parameter.empty and not chosen:
        raise SaddlesError(
            f"{type(call.asked).__name__} needs `times`, the instants to save at. Give them, for instance "
            "times=numpy.linspace(0, 10, 201)."
        )


def _refuse_seed(call: _Call) -> None:
    drawn, own = getattr(call.model, "random", True), getattr(call.other, "random", None)
    says = drawn if own is None else own  # a theory that says nothing depends on what the model draws
    if not ((drawn or own) if call.model_first else says):
        given = " with given weights" if not drawn else ""
        raise SaddlesError(
            f"`seed` has no effect: nothing is random in {type(call.model).__name__}{given} and "
            f"{type(call.other).__name__}. Leave it out."
        )


def _common_clock(runs: Sequence[tuple[_Call, Mapping[str, Any]]]) -> tuple[np.ndarray | None, list[Status]]:
    """The longest of the clocks that the runs would choose, so that each is run once, on one clock."""
    clocks: list[np.ndarray] = []
    statuses: list[Status] = []
    for one, words in runs:
        clock, status = one("horizon", one.fitting("horizon", words))
        statuses.append(status)
        if clock is not None:
            clocks.append(clock)
    return max(clocks, key=lambda clock: clock[-1], default=None), statuses


def listed(owner: object) -> list[str]:
    """Names of the fields that may be lists (`metadata=AXIS`) and are."""
    if not dataclasses.is_dataclass(owner):
        return []
    return [
        field.name
        for field in dataclasses.fields(owner)
        if field.metadata.get("axis") and _is_list(getattr(owner, field.name), bool(field.metadata.get("vector")))
    ]


def _is_list(value: object, vector: bool) -> bool:
    """A list, a tuple, a range, or an array with one axis, unless that is one value of the field."""
    if isinstance(value, Sequence):
        return not isinstance(value, str)
    return not vector and getattr(value, "ndim", 0) == 1  # of NumPy or JAX


def _values(listed: Any) -> list[Any]:
    return listed.tolist() if hasattr(listed, "tolist") else list(listed)


def _with(owner: Any, chosen: Mapping[str, Any]) -> Any:
    changes = {name: chosen[name] for name in listed(owner)}
    return dataclasses.replace(owner, **changes) if changes else owner


def _stack(
    results: dict[tuple[Any, ...], Trajectory], axes: dict[str, list[Any]], reasons: Sequence[Status]
) -> Trajectory:
    first, *others = results.values()
    if any(not _same_clock(first, other) for other in others):
        raise SaddlesError("The runs save at different times and cannot share one axis. Give `times`.")
    names, grid = list(axes), dict(results)
    for depth in range(len(names), 0, -1):  # join along the last axis first, so that axes come in the order given
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
    # A run on the common clock cannot tell that its own search for an end was given up: that is among the reasons.
    ended = [status_of(one) for one in results.values()]
    told = [end if reason.ok else reason for reason, end in zip(reasons or ended, ended, strict=True)]
    whole.attrs["status"] = str(Status.all_of(told))
    for name in ("wall_time_s", "gradient_evaluations"):
        whole.attrs[name] = sum(one.attrs.get(name, 0) for one in results.values())
    whole.attrs.pop("seed", None)
    return whole


def _same_clock(one: Trajectory, other: Trajectory) -> bool:
    """Equal clocks; runs in steps, and flows that stopped or diverged, may end early and share it as far as both go."""
    shorter = min(one, other, key=lambda run: run.sizes["time"])
    rows = shorter.sizes["time"]
    early = ("step" in one.coords and "step" in other.coords) or not status_of(shorter).ok
    if one.sizes["time"] != other.sizes["time"] and not early:
        return False
    return bool(np.array_equal(one["time"].values[:rows], other["time"].values[:rows]))
