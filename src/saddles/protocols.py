"""What a model, a theory and a method are: read this first.

`saddles.simulate(model, task, method)` asks the model to train itself; `saddles.predict(model, task, theory)` asks the
theory. Neither looks at where a class comes from: any object with these methods works, also one from a notebook cell.

    class Decay:                                     # a theory of your own
        def predict(self, model, task, *, times, seed, **options):
            start = model.start(task, seed)
            return saddles.trajectory({"loss": np.exp(-times)}, times)

Arguments mean the same everywhere:

- `times`: instants to save at, in the unit of the result's own `time` axis, increasing; None leaves the choice to the
  method (until it has converged, within a stated limit). Who gives it no default always gets some.
- `seed`: an integer from which all randomness of one run derives. `saddles.simulate(..., seed=[0, 1, 2])` calls once
  per seed and adds the axis `seed`.
- `keep`: names of large variables that the result should hold besides its usual ones; None keeps those that are small.
- `device`: where to compute, for instance "cpu" or "gpu:1"; None is the default of the library that computes.
- `precision`: "float64" or "float32". `GradientFlow` integrates in float64 either way, so that of a flow only the
  start and the data are rounded. The methods of saddles switch JAX to double precision while they compute; a model or
  theory of your own gives them NumPy arrays, or makes its JAX arrays in a method with the decorator
  `saddles.runtime.precision.in_double_precision`, for JAX by itself knows float32 alone.

A model or theory that has no use for one of them leaves it out of its signature: a caller who passes it is then
refused, in one sentence, instead of being ignored. `**options` takes whatever is left.

A task is whatever the model reads of it; each lab documents that. Frozen dataclasses make good tasks, models,
theories and methods: results then record them field by field. A dataclass field with `metadata=saddles.AXIS` may be
given as a list, which adds an axis of its name.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import xarray as xr

ArrayLike = npt.ArrayLike | float | tuple[Any, ...]  # as NumPy's own, whose members run-time checks read too narrowly
"""What `numpy.asarray` takes: numbers, nested lists and tuples of them, arrays."""

AXIS = {"axis": True}
"""Metadata of a dataclass field that may be a list and then becomes an axis of the result.

A range or an array with one axis is a list too, except in a field with {**AXIS, "vector": True}, whose value it is.
"""


@runtime_checkable
class Model(Protocol):
    """Something that can be trained.

    Optional, asked for where it is there:

    - `random` (bool): whether a run depends on its seed; default True. A seed is refused where nothing is random.
    - `horizon(task, method, *, seed, ...)`: the times at which a run without `times` would be saved, or None where
      the method's steps decide. Several runs without `times` then share the longest of them.
    """

    def simulate(
        self,
        task: Any,  # each lab states what it reads of a task
        method: Any,  # usually a `Method`; a model may ask more of it
        *args: Any,
        **options: Any,  # times, seed, keep, device, precision: those it has a use for (so type checkers read `Any`)
    ) -> xr.Dataset:
        """Train on the task by the method and return the labelled trajectory."""
        ...


@runtime_checkable
class Theory(Protocol):
    """Something that predicts what `simulate` would give. It may have `random` and `horizon(model, task, ...)` too."""

    def predict(
        self,
        model: Any,  # the theory states which models it speaks about
        task: Any,
        *args: Any,
        **options: Any,  # as above
    ) -> xr.Dataset:
        """Predict the training of the model on the task."""
        ...


@runtime_checkable
class Method(Protocol):
    """Something that moves a state along its slope, such as `GradientFlow` or `GradientDescent`.

    Models of the labs hand it a `saddles.solvers.dynamics.Dynamics` (start, slope, what to observe) and get a `Path`
    back, so a method of your own trains them all.
    """

    def follow(self, dynamics: Any, times: np.ndarray | None = None) -> Any:  # Dynamics -> Path; see solvers.dynamics
        """Move from the start and observe at `times`."""
        ...
