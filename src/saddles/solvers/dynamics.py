"""What a method is given, and what it gives back.

A lab writes its training problem as `Dynamics`: where it starts, which way it moves, what is seen of it. A method
(`GradientFlow`, `GradientDescent`, or one of your own with a `follow`) moves it and returns a `Path`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from saddles.core.status import FINISHED, Status
from saddles.errors import SaddlesError
from saddles.protocols import Method
from saddles.runtime.functions import as_it_is

State = TypeVar("State")
"""A pytree of arrays: what moves."""
Args = TypeVar("Args")
"""A pytree of arrays and static values: what the functions need besides the state."""
Observed = dict[str, Any]
"""Name -> array, at one instant."""


@dataclass(frozen=True, eq=False)
class Dynamics(Generic[State, Args]):
    """A training problem, ready to be moved.

    The functions are module-level functions (or `equinox` modules), not lambdas: a compiled program is found again by
    their identity. What they read besides their arguments (a variable of a notebook, an attribute) may change from run
    to run, and is then compiled anew. Arrays belong into `start` and `args`, where new values do not recompile.

    Args:
        start: the state at time 0.
        args: passed on to the functions.
        slope: slope(state, args), usually −∇L; a state again.
        observe: observe(state, args) -> named arrays to save.
        guard: the observed number that must stay finite, usually "loss".
        rested: rested(state, args) -> whether the flow has converged; None where nothing says so.
        pace: a guess of the shortest time scale, from which the search for convergence starts.
        limit: the latest time at which convergence is looked for.
        atol: absolute error per step of a flow; None is rtol times the size of the start.
        title: words for the progress bar.
    """

    start: State
    args: Args
    slope: Callable[[State, Args], State]
    observe: Callable[[State, Args], Observed]
    guard: str = "loss"
    rested: Callable[[State, Args], Any] | None = None
    pace: float = 1.0
    limit: float = 1e12
    atol: float | None = None
    title: str = "training"

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", as_it_is(self.slope))
        object.__setattr__(self, "observe", as_it_is(self.observe))


@dataclass(frozen=True, eq=False)
class Path(Generic[State]):
    """What a method saw: one row of `saved` for each of `times`."""

    times: np.ndarray
    saved: dict[str, np.ndarray]
    state: State
    status: Status
    steps: np.ndarray | None = None
    """Counts of discrete steps, where the method takes any."""
    wall_time: float = 0.0
    gradient_evaluations: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What a trajectory's attributes tell of the run."""
        return {
            "status": self.status,
            "wall_time": self.wall_time,
            "gradient_evaluations": self.gradient_evaluations,
        }

    @property
    def coords(self) -> dict[str, Any]:
        """The coordinate `step`, where there are steps."""
        return {} if self.steps is None else {"step": ("time", self.steps)}


def check_method(method: object, model: object, fits: str = "GradientFlow or GradientDescent") -> Method:
    """Refuse a method that cannot move this model's dynamics, before anything is computed."""
    if not isinstance(method, Method) or isinstance(method, type):
        name = method.__name__ if isinstance(method, type) else type(method).__name__
        raise SaddlesError(
            f"{type(model).__name__} is trained by {fits}, or by an object with a method `follow`; got {name}."
        )
    return method


def horizon_of(method: Method, dynamics: Dynamics) -> tuple[np.ndarray | None, Status]:
    """The times at which a run without `times` is saved, and how it ends; None where the method's steps decide."""
    horizon = getattr(method, "horizon", None)
    return (None, FINISHED) if horizon is None else horizon(dynamics)


def instants_of(method: Method, times: np.ndarray | None, default: int) -> int:
    """How many instants a method will save; `default` where neither times nor the method say so."""
    instants = getattr(method, "instants", None)
    return instants(times) if instants is not None else default if times is None else len(times)
