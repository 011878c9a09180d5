"""Methods that several labs share: how a model is moved along its loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.status import CONVERGED, FINISHED, Ending, Status
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.precision import in_double_precision
from saddles.solvers.descent import descended, iterate
from saddles.solvers.dynamics import Dynamics, Path, State
from saddles.solvers.ode import SAVED_TIMES, from_zero, settle, solve


@arguments_explained
@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow θ' = −∇L(θ), integrated adaptively and in float64, also from a start in float32.

    Args:
        until: gradient time to stop at; None runs until the model's criterion of convergence is met (its docstring
            states it) or `max_steps` are taken.
        rtol: relative error per step.
        stiff: use an implicit solver (small states only).
        max_steps: most solver steps in all.
    """

    until: float | None = None
    rtol: float = 1e-9
    stiff: bool = False
    max_steps: int = 100_000

    def __post_init__(self) -> None:
        if self.until is not None and not 0 < self.until < float("inf"):
            raise SaddlesError.must_be("until", "a positive time", self.until, "Leave it out to run to convergence")
        if not 0 < self.rtol < 1:
            raise SaddlesError.must_be("rtol", "between 0 and 1", self.rtol)
        if self.max_steps < 1:
            raise SaddlesError.must_be("max_steps", "at least 1", self.max_steps)

    def instants(self, times: np.ndarray | None = None) -> int:
        """How many instants will be saved."""
        return SAVED_TIMES if times is None else len(times)

    @in_double_precision
    def horizon(self, dynamics: Dynamics) -> tuple[np.ndarray, Status]:
        """The times at which a flow without `times` is saved: evenly until its end, or until it has converged."""
        end, status = self.until, FINISHED
        if end is None:
            if dynamics.rested is None:
                raise SaddlesError("This flow has no criterion of convergence. Give `until`, or `times`.")
            if not 0 < dynamics.pace < float("inf"):
                raise SaddlesError(
                    "This flow has no time scale from which to look for convergence: its start does not move at all, "
                    "or is too small to be squared. Start elsewhere, or give `until` or `times`."
                )
            end, converged = settle(
                _Field(dynamics.slope), dynamics.start, _Rested(dynamics.rested), args=dynamics.args,
                scale=dynamics.pace, limit=dynamics.limit, max_steps=self.max_steps,
            )  # fmt: skip
            status = CONVERGED if converged else Status(Ending.STOPPED, f"not converged by time {end:.6g}")
        return np.linspace(0.0, end, SAVED_TIMES), status

    def follow(self, dynamics: Dynamics[State, Any], times: np.ndarray | None = None) -> Path[State]:
        """Integrate from the start and observe at `times`; without them, at those of `horizon`."""
        ended = FINISHED
        if times is None:
            times, ended = self.horizon(dynamics)
        clock, added = from_zero(times)
        solution = solve(
            _Field(dynamics.slope), dynamics.start, clock, args=dynamics.args, observe=_See(dynamics.observe),
            rtol=self.rtol, atol=dynamics.atol, stiff=self.stiff, max_steps=self.max_steps, title=dynamics.title,
        )  # fmt: skip
        return Path(
            times=solution.times[added:],
            saved={name: values[added:] for name, values in solution.saved.items()},
            state=solution.state,
            status=ended if solution.status.ok else solution.status,
            wall_time=solution.wall_time,
            gradient_evaluations=solution.evaluations,
        )


@arguments_explained
@dataclass(frozen=True)
class GradientDescent:
    """Full-batch gradient descent θ ← θ − rate·∇L(θ), all parameters updated at once.

    Args:
        rate: learning rate; `time` on the trajectory is rate × step.
        steps: how many steps.
        save_every: save the start, every so many steps, and the last.
    """

    rate: float
    steps: int
    save_every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise SaddlesError.must_be("rate", "a positive learning rate", self.rate)
        if self.steps < 0:
            raise SaddlesError.must_be("steps", "at least 0", self.steps)
        if self.save_every < 1:
            raise SaddlesError.must_be("save_every", "at least 1", self.save_every)

    def schedule(self, times: ArrayLike | None = None) -> tuple[int, int, np.ndarray]:
        """Steps to run, the stride that meets every wanted step, and the wanted steps.

        `times` are gradient times, each rounded to the nearest step.
        """
        if times is None:
            wanted = np.unique(np.append(np.arange(0, self.steps + 1, self.save_every), self.steps))
            return self.steps, self.save_every, wanted
        wanted = np.unique(np.rint(np.asarray(times, dtype=float) / self.rate).astype(int))
        if wanted[0] < 0 or wanted[-1] > self.steps:
            reach = self.steps * self.rate
            raise SaddlesError(
                f"`times` must be at most {reach:.4g}, which {self.steps} steps of {self.rate:.4g} reach; "
                f"got {np.max(times):.4g}. Raise `steps`."
            )
        # The greatest common divisor is the longest stride that meets every wanted step. Of step 0 alone it is 0, and
        # any stride will do.
        return int(wanted[-1]), int(np.gcd.reduce(wanted)) or 1, wanted

    def instants(self, times: np.ndarray | None = None) -> int:
        """How many instants will be saved."""
        return len(self.schedule(times)[2])

    def horizon(self, dynamics: Dynamics) -> tuple[None, Status]:
        """None: the steps decide."""
        return None, FINISHED

    def follow(self, dynamics: Dynamics[State, Any], times: np.ndarray | None = None) -> Path[State]:
        """Take the steps and observe at those nearest to `times`."""
        return self.repeat(_Step(dynamics.slope), dynamics, times)

    @in_double_precision
    def repeat(
        self,
        step: Callable[[State, tuple[Any, Array]], State],
        dynamics: Dynamics[State, Any],
        times: np.ndarray | None = None,
    ) -> Path[State]:
        """The same with a step of one's own, step(state, (args, rate)), such as one on a random batch."""
        steps, stride, wanted = self.schedule(times)
        # As an array, so that another rate does not recompile; in the weights' own type, because a rate in float64
        # would turn weights in float32 into float64.
        rate = jnp.asarray(self.rate, dtype=jax.tree.leaves(dynamics.start)[0].dtype)
        run = iterate(
            step, dynamics.start, steps, args=(dynamics.args, rate),
            observe=_SeeStep(dynamics.observe), guard=dynamics.guard, save_every=stride,
            title=f"{dynamics.title}, {steps} steps",
        )  # fmt: skip
        chosen = np.isin(run.steps, wanted)
        status = run.status
        if not status.ok:
            status = Status(status.ending, f"{status.reason} with rate {self.rate:.4g}; try a smaller rate")
        return Path(
            times=self.rate * run.steps[chosen],
            saved={name: values[chosen] for name, values in run.saved.items()},
            state=run.state,
            status=status,
            steps=run.steps[chosen],
            wall_time=run.wall_time,
            gradient_evaluations=int(run.steps[-1]),
        )


# The functions of a `Dynamics` with the signatures that the solvers want. They are modules with a static field, so
# that the same function gives the same compiled program; a lambda or a closure would compile anew on every call.


class _Field(eqx.Module):
    slope: Any = eqx.field(static=True)

    def __call__(self, t: Array, state: State, args: Any) -> State:  # args: whatever the dynamics brought
        return self.slope(state, args)


class _See(eqx.Module):
    observe: Any = eqx.field(static=True)

    def __call__(self, t: Array, state: object, args: Any) -> dict[str, Array]:  # args: as above
        return self.observe(state, args)


class _Rested(eqx.Module):
    rested: Any  # may hold arrays, such as the first gradient

    def __call__(self, t: Array, state: object, args: Any) -> Array:  # args: as above
        return self.rested(state, args)


class _Step(eqx.Module):
    slope: Any = eqx.field(static=True)

    def __call__(self, state: State, args: tuple[Any, Array]) -> State:
        own, rate = args
        return descended(self.slope, state, own, rate)


class _SeeStep(eqx.Module):
    observe: Any = eqx.field(static=True)

    def __call__(self, state: object, args: tuple[Any, Array]) -> dict[str, Array]:
        return self.observe(state, args[0])
