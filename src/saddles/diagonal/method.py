"""How a network of this lab is trained: its exact flow, or descent in its ordinary weights.

A model hands its training problem to the method, which moves it and returns a path:

- `follow_products(products, times)`, where a method has it, gets a network h(x; u ⊙ v) in log-scale coordinates
  (`Products`), in which any initial scale can be held. `Flow` does.
- `follow(dynamics, times)`, as in every lab, gets the weights as ordinary numbers (`SmallStart`). `Descent` has it,
  `Flow` too (for a full head, which has no log-scale coordinates), and so have `GradientFlow`, `GradientDescent` and
  methods of your own.

Both get `times` in gradient time, or None, and tell gradient time on their path.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from saddles.core.status import CONVERGED, FINISHED, Ending, Status
from saddles.core.validation import arguments_explained
from saddles.diagonal.risk import Risk
from saddles.diagonal.scale import LogAlpha, warn_moved
from saddles.errors import SaddlesError
from saddles.protocols import AXIS
from saddles.runtime.precision import in_double_precision
from saddles.solvers import plateau
from saddles.solvers.dynamics import Args, Dynamics, Path, State
from saddles.solvers.log_scale import LogScale
from saddles.solvers.methods import GradientDescent, GradientFlow
from saddles.solvers.ode import SAVED_TIMES

REST = 1e-3
"""A flow without an end runs until the forces have fallen to this part of the first: what is left is a thousand
times slower than what was learned first."""

LATEST = 1e4
"""A flow that does not come to rest is given up at this rescaled time over 1/max|g(0)|, the first activation's."""


def _unused(*words: object) -> Any:
    """A slope that is never asked for."""
    raise NotImplementedError


@dataclass(frozen=True, eq=False)
class SmallStart(Dynamics[State, Args]):
    """Training from small initial weights, held as ordinary numbers.

    Args:
        unit: log(1/α), the gradient time of one unit of rescaled time.
        slope_on: slope_on(state, args, chosen): the slope on chosen samples only.
        samples: how many there are to choose from.
        seed: of the run; a method that draws derives its randomness from it.
    """

    unit: float = 1.0
    slope_on: Callable[[State, Args, Array], State] = _unused
    samples: int = 0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Products:
    """Training of β = u ⊙ v from α^a(u₀, v₀), in log-scale coordinates.

    Args:
        risk: L, −∇L and columns of ∇²L as functions of β.
        coordinates: where u and v start; `coordinates.beta(S)` is β at S = ∫g.
        log_alpha: log α.
    """

    risk: Risk
    coordinates: LogScale
    log_alpha: float

    @property
    def unit(self) -> float:
        """log(1/α), the gradient time of one unit of rescaled time."""
        return -self.log_alpha


@dataclass(frozen=True, eq=False)
class CrossedPath(Path[np.ndarray]):
    """The path of a flow that crossed plateaus.

    `crossings` has a row (from, to, stated error of S) for each of them, in gradient time.
    """

    crossings: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    solver_steps: int = 0
    hessian_products: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What a trajectory's attributes tell of the run."""
        return super().facts | {
            "hessian_products": self.hessian_products,
            "solver_steps": self.solver_steps,
            "plateaus_crossed": len(self.crossings),
            "stated_crossing_error": float(self.crossings[:, 2].sum()),
        }


@arguments_explained
@dataclass(frozen=True)
class Flow:
    """Gradient flow from u(0), v(0) = α(u₀, v₀), in exact log-scale coordinates, plateaus crossed.

    α is a field of the model. A full head is integrated in its weights instead, step by step.

    Args:
        until: rescaled time t / log(1/α) to stop at. None runs until every force has fallen to a thousandth of the
            largest at β = 0 (what is left is a thousand times slower), at most until 10,000 / max|g(0)|.
        tolerance: error of S = ∫g per step or crossed plateau; the relative error of β is twice that.
        cross: False integrates plateaus step by step, to check the crossing.
        max_steps: most solver steps.
        log_alpha: the old place of the initial scale; give it to the model.
    """

    until: float | None = None
    tolerance: float = 1e-5
    cross: bool = True
    max_steps: int = 100_000
    log_alpha: LogAlpha = field(default=None, kw_only=True, repr=False, metadata=AXIS)

    keepable: ClassVar[tuple[str, ...]] = ("crossings",)
    """What a network's trajectory may keep besides its weights."""

    def __post_init__(self) -> None:
        warn_moved(self, self.log_alpha)
        if self.until is not None and not (math.isfinite(self.until) and self.until > 0):
            raise SaddlesError.must_be(
                "until", "a positive rescaled time", self.until,
                "Leave it out to run to rest; the initial scale is the model's `log_alpha`",
            )  # fmt: skip
        if not 1e-9 <= self.tolerance <= 1e-2:
            raise SaddlesError.must_be(
                "tolerance", "between 1e-9 (below it round-off of S decides) and 1e-2", self.tolerance
            )

    def horizon(self, problem: SmallStart[State, Args] | Products) -> tuple[np.ndarray, Status]:
        """The gradient times at which several flows are saved: evenly until `until`."""
        if self.until is None:
            raise SaddlesError("Several flows need one clock, because each comes to rest at its own time: "
                               "give `until` or `times`.")  # fmt: skip
        return np.linspace(0.0, self.until * problem.unit, SAVED_TIMES), FINISHED

    @in_double_precision
    def follow_products(self, products: Products, times: np.ndarray | None = None) -> CrossedPath:
        """Follow S' = g(β(S)) across plateaus; without `times`, the end of every solver step is saved."""
        risk, coordinates = products.risk, products.coordinates
        first = float(np.abs(risk.force(np.zeros(risk.size))).max())
        to_rest = self.until is None and times is None
        if to_rest and first == 0:
            raise SaddlesError("The loss has no slope at β = 0, so the flow never moves. Give `until`, or check the "
                               "task.")  # fmt: skip
        if times is not None:
            end = float(times[-1])
        else:
            end = (LATEST / first if self.until is None else self.until) * products.unit
        run = plateau.follow(
            risk.force, risk.columns, coordinates, end, times=times, tolerance=self.tolerance,
            max_steps=self.max_steps, cross=self.cross, rest=REST * first if to_rest else 0.0,
            title=f"flow from α = 1e{products.log_alpha / math.log(10):.4g}",
        )  # fmt: skip
        beta = coordinates.beta(run.shifts)
        u, v = coordinates.weights(run.shifts)
        saved = {"beta": beta, "loss": risk.losses(beta), "u": u, "v": v,
                 "log_scale": (coordinates.log_p + run.shifts) / products.log_alpha}  # fmt: skip
        status = run.status
        if to_rest and status.ok:
            # The solver stops within round-off of `end` (`plateau.END`), so that equality would not find it.
            late = run.times[-1] >= end * (1 - 1e-12)
            status = (
                Status(Ending.STOPPED, f"not at rest by rescaled time {end / products.unit:.6g}") if late else CONVERGED
            )
        return CrossedPath(
            run.times, saved, run.shifts[-1], status, wall_time=run.wall_time,
            gradient_evaluations=risk.counts.gradients, crossings=run.crossings, solver_steps=run.steps,
            hessian_products=risk.counts.products,
        )  # fmt: skip

    def follow(self, dynamics: Dynamics[State, Args], times: np.ndarray | None = None) -> Path[State]:
        """Integrate weights that have no log-scale coordinates, step by step."""
        own = _small_start(dynamics, self, "GradientFlow")
        until = None if self.until is None else self.until * own.unit
        return GradientFlow(until, rtol=self.tolerance, max_steps=self.max_steps).follow(own, times)


@arguments_explained
@dataclass(frozen=True)
class Descent:
    """Gradient descent in the weights themselves, on the full batch or on random batches.

    Args:
        rate: learning rate η; gradient time is η × step.
        steps: how many.
        batch: samples per step, drawn with replacement by the run's seed; None is all of them.
        save_every: save the start, every so many steps, and the last.
        log_alpha: the old place of the initial scale; give it to the model.
    """

    rate: float
    steps: int
    batch: int | None = None
    save_every: int = 1
    log_alpha: LogAlpha = field(default=None, kw_only=True, repr=False, metadata=AXIS)

    def __post_init__(self) -> None:
        warn_moved(self, self.log_alpha)
        assert self._full  # checks what both share
        if self.batch is not None and not (isinstance(self.batch, int | np.integer) and self.batch >= 1):
            raise SaddlesError.must_be("batch", "a number of samples, at least 1, or None for all", self.batch)

    @property
    def random(self) -> bool:
        """Whether a run depends on its seed besides the initial weights."""
        return self.batch is not None

    @property
    def _full(self) -> GradientDescent:
        """The same on the full batch."""
        return GradientDescent(self.rate, self.steps, self.save_every)

    def horizon(self, problem: Dynamics[State, Args]) -> tuple[None, Status]:
        """None: the steps decide."""
        return None, FINISHED

    @in_double_precision
    def follow(self, dynamics: Dynamics[State, Args], times: np.ndarray | None = None) -> Path[Any]:
        """Take the steps and observe at those nearest to `times`."""
        unit = getattr(dynamics, "unit", 1.0)
        if times is not None and round(float(times[-1]) / self.rate) > self.steps:
            raise SaddlesError(
                f"`times` must be at most {self.rate * self.steps / unit:.4g}, which {self.steps} steps of "
                f"{self.rate:.4g} reach; got {times[-1] / unit:.4g}. Raise `steps`."
            )
        if self.batch is None:
            return self._full.follow(dynamics, times)
        own = _small_start(dynamics, self, "GradientDescent")
        drawn = np.random.default_rng([own.seed, 36]).integers(own.samples, size=(self.steps, self.batch))
        counted: Dynamics[Any, Any] = Dynamics(
            (own.start, jnp.asarray(0)), (own.args, jnp.asarray(drawn)), _unused, _SeeCounted(own.observe),
            guard=own.guard, title=own.title,
        )  # fmt: skip
        return self._full.repeat(_BatchStep(own.slope_on), counted, times)


class _BatchStep(eqx.Module):
    """A step on the batch of its number; the state counts the steps."""

    slope_on: Callable[..., Any] = eqx.field(static=True)

    def __call__(
        self, state: tuple[State, Int[Array, ""]], args: tuple[tuple[Args, Int[Array, "step sample"]], Array]
    ) -> tuple[State, Int[Array, ""]]:
        (weights, count), ((own, batches), rate) = state, args
        moves = self.slope_on(weights, own, batches[count])
        return jax.tree.map(lambda leaf, move: leaf + rate * move, weights, moves), count + 1


class _SeeCounted(eqx.Module):
    observe: Callable[..., Any] = eqx.field(static=True)

    def __call__(
        self, state: tuple[State, Int[Array, ""]], args: tuple[Args, Int[Array, "step sample"]]
    ) -> dict[str, Array]:
        return self.observe(state[0], args[0])


def _small_start(dynamics: Dynamics[State, Args], method: object, other: str) -> SmallStart[State, Args]:
    if not isinstance(dynamics, SmallStart):
        raise SaddlesError(
            f"{type(method).__name__} of saddles.diagonal trains the models of that lab. Use {other} for this one."
        )
    return dynamics
