"""One stiff integrator for flows that bring their own linear algebra: y' = f(y), nothing to compile.

Variable-order backward differentiation: the numerical differentiation formulas (NDF) of orders 1 to 5 of Shampine and
Reichelt, The MATLAB ODE Suite (1997). A step of size h at order k solves, with predicted value and ψ from the history,

    y = predicted + d,   d + ψ = c f(y),   c = h/α_k,

by Newton's method; the flow prepares r ↦ (I − cJ(y))⁻¹ r, so that a Jacobian of low rank plus something simple is never
written out. SciPy's BDF can only factorise dense ones; Kvaerno 5 of `solvers.ode` compiles for half a minute.

The history is a table of backward differences: row k is ∇ᵏy at the latest instant, for steps of one size. It makes the
error estimate (row k+1) and the choice of order (rows k and k+2) free, and a change of step size is a small matrix.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from saddles.errors import SaddlesError

Vector = Float[np.ndarray, "coordinate"]
"""A state of the flow, or something of its shape."""

Solve = Callable[[Vector], Vector]
"""r -> (I − cJ)⁻¹ r."""

# The formula of order 6 damps only modes that hardly oscillate; from order 7 on they are unstable.
ORDERS = 5

# Table 1 of Shampine and Reichelt. κ_k trades a smaller error (26 % larger steps at the same accuracy, orders 1 to 3)
# for a slightly smaller angle of stability; order 5 is plain BDF, for it has no angle to give away.
_KAPPA = np.array([0.0, -0.1850, -1 / 9, -0.0823, -0.0415, 0.0])
_RECIPROCALS = 1 / np.arange(1, ORDERS + 1)
_GAMMA = np.hstack([0.0, np.cumsum(_RECIPROCALS)])
_ALPHA = (1 - _KAPPA) * _GAMMA
# The local error of order k is _ERROR[k] ∇^(k+1) y.
_ERROR = _KAPPA * _GAMMA + 1 / np.arange(1, ORDERS + 2)

# More than this cost more than a smaller step: the predicted value is good to a few tolerances.
NEWTON_ITERATIONS = 6

# The equation of a step is solved to this fraction of the tolerance, so that its error does not enter the estimate of
# the step's own error, on which order and step size depend.
NEWTON_FRACTION = 0.05

# Rate of convergence that is assumed before one was seen.
RATE_GUESS = 0.5

# A rate that was seen may be forgotten by this factor per iteration. The first iteration of a step has no rate of its
# own; without memory each step would need two.
RATE_MEMORY = 0.3

# Newton's method has failed where a correction is this many times the one before. Not 1: where the correction is
# round-off already, or the flow's Jacobian is still being learned, a single one may grow.
RATE_DIVERGING = 1.5

# The next step's size after Newton's method failed, which does not say how much smaller it must be (as in ode15s).
FAILURE_FACTOR = 0.3

# Limits of one change of the step size: outside them the error estimate is an extrapolation too far.
SMALLEST_FACTOR, LARGEST_FACTOR = 0.2, 10.0

# Of the step size that would just meet the tolerance.
SAFETY = 0.9

# The first step is this part of √tolerance / |y'|: Euler's error is h²|y''|/2, and y'' is not known yet.
FIRST_STEP = 0.1

# Trials of one step. 0.3⁶⁰ = 1e-31: the step size has met `SMALLEST_STEP` long before, unless time is 0.
ATTEMPTS = 60

# A step must be at least this part of the time, or adding it would be round-off.
SMALLEST_STEP = 1e-14

# An error this many times smaller than the tolerance counts as this one: smaller differences are round-off, and must
# not decide the order.
NEGLIGIBLE = 1e-12

# Stands for 0 in a denominator.
TINY = 1e-300


class StepError(RuntimeError):
    """No step is small enough: the flow is not finite or not smooth here."""


@runtime_checkable
class StiffFlow(Protocol):
    """What the integrator asks of a flow; a class that derives from this one inherits what it does not override."""

    full_newton: ClassVar[bool] = False
    """Call `respond` in every Newton iteration, not once per step: for Jacobians that change within one."""

    @abstractmethod
    def field(self, state: Vector) -> Vector:
        """f(y); NaN or infinity where a trial step left the sensible."""
        ...

    @abstractmethod
    def respond(self, state: Vector, c: float) -> Solve:
        """Prepare (I − cJ(y))⁻¹; NaN or a LinAlgError makes the step smaller."""
        ...

    def size(self, state: Vector) -> float | Vector:
        """What errors are measured against: one number, or one for each entry of the state."""
        return float(np.abs(state).max())

    def renew(self, state: Vector, slope: Vector) -> bool:
        """Improve an approximate Jacobian at y, where y' = `slope`; False where it is exact, or as good as it gets."""
        return False


Kind = TypeVar("Kind", bound=StiffFlow)


@dataclass(eq=False)
class Multistep(Generic[Kind]):
    """Steps of variable size and order along y' = f(y), from time 0.

    Args:
        flow: f and its linear algebra.
        state: y at time 0.
        rtol: error per step, relative to the flow's `size`.
        atol: the same, absolute.

    Attributes: `slope` is y' at the latest instant (from the history, no evaluation); `rejected` counts attempts that
    were not accepted, `failures` those of them where Newton's method failed.
    """

    flow: Kind
    state: Vector
    rtol: float = 1e-8
    atol: float = 1e-10
    time: float = field(default=0.0, init=False)
    order: int = field(default=1, init=False)
    step: float = field(default=0.0, init=False)
    slope: Vector = field(init=False)
    differences: Float[np.ndarray, "difference coordinate"] = field(init=False)
    steps: int = field(default=0, init=False)
    rejected: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    evaluations: int = field(default=0, init=False)
    _rate: float = field(default=RATE_GUESS, init=False)
    _even: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.slope = self._field(self.state)
        if not np.isfinite(self.slope).all():
            raise SaddlesError("The flow must be finite at its start. Lower the initial scale, or check the data.")
        # Rows 0 to order + 2 are used: ∇^(order+2) tells what the next higher order would do.
        self.differences = np.zeros((ORDERS + 3, len(self.state)))
        speed = _largest(self.slope, np.sqrt(self._tolerance()))
        self.restart(FIRST_STEP / speed if speed > 0 else 1.0)

    def _field(self, state: Vector) -> Vector:
        self.evaluations += 1
        with np.errstate(all="ignore"):
            return self.flow.field(state)

    def _tolerance(self) -> float | Vector:
        return self.rtol * self.flow.size(self.state) + self.atol

    def restart(self, step: float) -> None:
        """Begin again here at order 1, with a step of given size."""
        self.order, self.step, self._even, self._rate = 1, step, 0, RATE_GUESS
        self.differences[:] = 0.0
        self.differences[0], self.differences[1] = self.state, step * self.slope

    def resume(self, time: float, path: Callable[[np.ndarray], np.ndarray], step: float) -> None:
        """Continue from a known path y(t) that ends at `time`, at full order.

        Args:
            path: y at times up to `time`, shape (time, coordinate).
            step: the size of the next step.
        """
        self.order, self.step, self._even, self._rate = ORDERS, step, 0, RATE_GUESS
        self.time = time
        # Column by column of the triangle of differences: rows are instants from the latest backwards.
        table = path(time - step * np.arange(ORDERS + 3))
        self.state = table[0].copy()
        for k in range(ORDERS + 3):
            self.differences[k] = table[0]
            table = table[:-1] - table[1:]
        self._derive()

    def advance(self, limit: float) -> None:
        """Take one accepted step, not beyond the time `limit`; `StepError` where none is small enough."""
        if self.time + self.step > limit:
            self._change(max(limit - self.time, TINY) / self.step)
        renewed = False
        for attempt in range(ATTEMPTS):
            if self.step < SMALLEST_STEP * max(abs(self.time), self.step):
                break
            solved = self._solve()
            if solved is None:
                self.rejected, self.failures = self.rejected + 1, self.failures + 1
                # A smaller step is cheaper than a new Jacobian and mends most failures, so that is tried first. A
                # Jacobian that is still wrong at the smaller step is renewed, once per step: again would give the same.
                if attempt > 0 and not renewed and self.flow.renew(self.state, self.slope):
                    renewed = True
                else:
                    self._change(FAILURE_FACTOR)
                continue
            there, correction, spent = solved
            error = _ERROR[self.order] * _largest(correction, self._tolerance())
            if error <= 1:
                return self._accept(there, correction, error, spent)
            self.rejected += 1
            self._change(max(SMALLEST_FACTOR, _safety(spent) * error ** (-1 / (self.order + 1))))
        raise StepError

    def _solve(self) -> tuple[Vector, Vector, int] | None:
        """Solve the equation of a step: y, d and the iterations spent; None where Newton's method fails."""
        order, tolerance = self.order, self._tolerance()
        predicted = self.differences[: order + 1].sum(axis=0)
        psi = _GAMMA[1 : order + 1] @ self.differences[1 : order + 1] / _ALPHA[order]
        c = self.step / _ALPHA[order]
        there, correction, before, solve = predicted, np.zeros_like(predicted), None, None
        for count in range(1, NEWTON_ITERATIONS + 1):
            force = self._field(there)
            if not np.isfinite(force).all():
                return None
            try:
                with np.errstate(all="ignore"):
                    if solve is None or self.flow.full_newton:
                        solve = self.flow.respond(there, c)
                    move = solve(c * force - psi - correction)
            except np.linalg.LinAlgError:
                return None
            size = _largest(move, tolerance)
            if not np.isfinite(size):
                return None
            if before is not None:
                rate = size / before if before > 0 else 0.0
                self._rate = max(RATE_MEMORY * self._rate, rate)
                # The second correction may be larger: the first was made with the Jacobian of another point.
                if count > 2 and rate > RATE_DIVERGING:
                    return None
            there, correction = there + move, correction + move
            # What is left after this correction is about rate · size.
            if min(1.0, self._rate) * size < NEWTON_FRACTION:
                return there, correction, count
            before = size
        return None

    def _accept(self, there: Vector, correction: Vector, error: float, spent: int) -> None:
        order, table = self.order, self.differences
        self.time, self.state = self.time + self.step, there
        # d is ∇^(k+1)y at the new instant, by the choice of the predicted value; all other rows follow from it.
        table[order + 2] = correction - table[order + 1]
        table[order + 1] = correction
        for k in reversed(range(order + 1)):
            table[k] += table[k + 1]
        self._derive()
        self.steps, self._even = self.steps + 1, self._even + 1
        # Order and step size change only after order + 1 equal steps: rows beyond the order are differences of equal
        # steps only then, and the stability of variable formulas rests on it.
        if self._even <= order:
            return
        tolerance = self._tolerance()
        sizes = np.array([
            _ERROR[order - 1] * _largest(table[order], tolerance) if order > 1 else np.inf,
            error,
            _ERROR[order + 1] * _largest(table[order + 2], tolerance) if order < ORDERS else np.inf,
        ])  # fmt: skip
        # At order k the error grows as h^(k+1), so these are the factors at which each order would just be accurate.
        factors = np.maximum(sizes, NEGLIGIBLE) ** (-1 / np.arange(order, order + 3))
        best = int(np.argmax(factors))
        self.order = order + best - 1
        self._change(float(min(LARGEST_FACTOR, _safety(spent) * factors[best])))

    def _derive(self) -> None:
        """y' at the latest instant: the derivative of the polynomial through the last instants is Σ ∇ᵏy / (k h)."""
        self.slope = _RECIPROCALS[: self.order] @ self.differences[1 : self.order + 1] / self.step

    def _change(self, factor: float) -> None:
        """Change the step size by a factor, history and all: the same polynomial on another grid."""
        rows = slice(0, self.order + 1)
        mix = _rescale(self.order, factor) @ _rescale(self.order, 1.0)
        self.differences[rows] = mix.T @ self.differences[rows]
        self.step *= factor
        self._even = 0

    def between(self, times: Float[np.ndarray, "time"]) -> Float[np.ndarray, "time coordinate"]:
        """y at times inside the last step, from the step's own polynomial (Newton's form)."""
        order = self.order
        nodes = self.time - self.step * np.arange(order)
        factors = np.cumprod((times[:, None] - nodes) / (self.step * np.arange(1, order + 1)), axis=1)
        return self.differences[0] + factors @ self.differences[1 : order + 1]

    def snapshot(self) -> "Snapshot":
        """What `restore` needs to go back to before the next step."""
        return Snapshot(
            self.state, self.time, self.order, self.step, self.slope, self.differences.copy(), self._rate, self._even,
            self.steps,
        )  # fmt: skip

    def restore(self, saved: "Snapshot") -> None:
        """Go back; `rejected`, `failures` and `evaluations` go on counting."""
        self.state, self.time, self.order, self.step = saved.state, saved.time, saved.order, saved.step
        self.slope, self.differences = saved.slope, saved.differences.copy()
        self._rate, self._even, self.steps = saved.rate, saved.even, saved.steps


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A `Multistep` at one instant."""

    state: Vector
    time: float
    order: int
    step: float
    slope: Vector
    differences: np.ndarray
    rate: float
    even: int
    steps: int


def _largest(vector: Vector, unit: float | Vector) -> float:
    """max|vector / unit|."""
    return float((np.abs(vector) / unit).max(initial=0.0))


def _rescale(order: int, factor: float) -> Float[np.ndarray, "row column"]:
    """R(factor) of Shampine and Reichelt: R(factor) R(1) takes differences from step h to step factor·h."""
    i = np.arange(1, order + 1)[:, None]
    ratio = np.zeros((order + 1, order + 1))
    ratio[1:, 1:] = (i - 1 - factor * i.T) / i
    ratio[0] = 1
    return np.cumprod(ratio, axis=0)


def _safety(iterations: int) -> float:
    """A factor of the next step's size, the smaller the more iterations this one took (as in SciPy's BDF)."""
    return SAFETY * (2 * NEWTON_ITERATIONS + 1) / (2 * NEWTON_ITERATIONS + iterations)
