"""How the attention layer is trained: gradient flow on a clock that gets somewhere."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin.attention import AttentionFlow
from saddles.margin.certificate import refuse_infeasible
from saddles.margin.separation import separation
from saddles.runtime.progress import bar
from saddles.solvers.dynamics import Dynamics, Path
from saddles.solvers.multistep import Multistep, Snapshot, StepError

State = Float[np.ndarray, "entry"]
Clock = Float[np.ndarray, "time"]

TOLERANCES = (1e-12, 1e-8)
"""Where no tolerance is given it is 0.1/until_norm, but within these: below 1e-12 rounding of the state decides."""

ABSOLUTE = 1e-3
"""The absolute tolerance is this times the relative one and the size of the start (of a start at 0, the `unit` of the
flow). It counts only while the state is near 0, where a relative error alone would ask for steps of length 0."""

REACHED = 1e-6
"""How closely, relative, a run ends at its norm."""

LANDINGS = 60
"""Most trials to land on the norm: secant steps need a few, this only makes sure that the loop ends."""

INSIDE = (0.05, 0.95)
"""A secant step lands within this part of its bracket, so that the bracket shrinks even where the norm is far from
exponential in time."""

LONGEST_WAIT = 20
"""Solver steps after which an instant is saved though the norm has hardly grown: plateaus are seen too."""

EQUAL_RATES = 1e-9
"""Rates of two instants that differ by less are taken as equal: (1 − e^−x)/x is 1 there to rounding."""


@dataclass(frozen=True, eq=False)
class MarginPath(Path[State]):
    """A path with the counts of the stiff solver."""

    accepted: int = 0
    rejected: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"solver_steps": self.accepted, "solver_rejected": self.rejected}


@arguments_explained
@dataclass(frozen=True)
class MarginFlow:
    """Gradient flow on the exponential loss, followed until the weights have a given norm.

    The field is divided by |c|, the ℓ2 norm of the coefficients of B_il: the path is that of gradient flow, `time` is
    ∫|c|dt, and log t is kept as `log_time`. Data that no W separates (no diagonal W, for a diagonal layer) are refused
    with `InfeasibleError` before anything is computed: their weights have no margin, and need not grow. Given `times`
    the flow is followed all the same, and the status says so.

    Args:
        until_norm: Frobenius norm of W (ℓ2 norm of β) to stop at.
        tolerance: error per step, relative to the largest entry of the state (log-scale for a diagonal layer); None is
            1e-8, or 0.1/until_norm where that is less, because an error of S is multiplied by β in the margins.
            Beyond norms of about 1e10 rounding of S decides, and a diagonal run ends with `max_steps`.
        per_decade: saved instants for each factor ten of the norm.
        max_steps: most solver steps.
    """

    until_norm: float = 1e5
    tolerance: float | None = None
    per_decade: int = 12
    max_steps: int = 50_000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.until_norm) and self.until_norm > 0):
            raise SaddlesError.must_be("until_norm", "a positive norm of the weights", self.until_norm, "Try 1e5")
        if self.tolerance is not None and not 1e-12 <= self.tolerance <= 1e-3:
            raise SaddlesError.must_be("tolerance", "between 1e-12 and 1e-3", self.tolerance, "Leave it out")
        for name in ("per_decade", "max_steps"):
            if getattr(self, name) < 1:
                raise SaddlesError.must_be(name, "at least 1", getattr(self, name))

    @property
    def error(self) -> float:
        """The tolerance that is used."""
        if self.tolerance is not None:
            return self.tolerance
        return float(np.clip(0.1 / self.until_norm, *TOLERANCES))

    def horizon(self, dynamics: Dynamics[State, AttentionFlow]) -> tuple[np.ndarray, Status]:
        """The instants at which a run without `times` is saved; only following the flow tells when it has its norm."""
        tour = _Tour(self, _attention(dynamics), dynamics.start)
        tour.to_norm()
        return np.array(tour.times), tour.status

    def follow(self, dynamics: Dynamics[State, AttentionFlow], times: Clock | None = None) -> MarginPath:
        """Follow the flow to the norm, or through `times` instead, and observe on the way.

        Every saved instant is the end of a solver step, never an interpolation.
        """
        began, tour = time.perf_counter(), _Tour(self, _attention(dynamics), dynamics.start)
        if times is None:
            tour.to_norm()
        else:
            tour.through(times)
        seen = [dynamics.observe(state, dynamics.args) for state in tour.states]
        saved = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
        return MarginPath(
            times=np.array(tour.times),
            saved=saved | {"log_time": np.array(tour.log_times)},
            state=tour.states[-1],
            status=tour.status,
            wall_time=time.perf_counter() - began,
            gradient_evaluations=tour.stepper.evaluations,
            accepted=tour.stepper.steps,
            rejected=tour.stepper.rejected,
        )


def _attention(dynamics: Dynamics) -> AttentionFlow:
    """What `MarginFlow` needs beyond a slope (weights, their Jacobian) is there, or the method is refused."""
    if not isinstance(dynamics.args, AttentionFlow):
        raise SaddlesError(
            "MarginFlow trains the attention layers of saddles.margin, whose dynamics carry an AttentionFlow; "
            f"got {type(dynamics.args).__name__}. Use GradientFlow."
        )
    return dynamics.args


@dataclass(eq=False)
class _Tour:
    """One flow on its way: the solver, the clock of gradient time, and what was saved."""

    method: MarginFlow
    flow: AttentionFlow
    start: State
    status: Status = FINISHED
    times: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    log_times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = float(np.abs(self.start).max())
        atol = ABSOLUTE * self.method.error * (size if size > 0 else self.flow.unit(self.start))
        self.stepper = Multistep(self.flow, self.start, rtol=self.method.error, atol=atol)
        self.norm = self._norm(self.start)
        self.clock = GradientTime(self.flow)
        self.clock.move(0.0, self.start)

    def _norm(self, state: State) -> float:
        return float(np.linalg.norm(self.flow.weights(state)))

    def _save(self) -> None:
        self.times.append(self.stepper.time)
        self.states.append(self.stepper.state)
        self.log_times.append(self.clock.value)

    def _step(self, limit: float = np.inf, norm: float = np.inf) -> None:
        """One step, not beyond a time or a norm; where there is none, `status` says why."""
        most = self.method.max_steps
        if self.stepper.steps + self.stepper.rejected >= most:
            self.status = Status(Ending.STOPPED, f"{most} solver steps spent at norm {self.norm:.4g}")
            return
        try:
            before = self.stepper.snapshot()
            self.stepper.advance(limit)
            self.norm = self._land(before, norm)
        except StepError:
            self.status = Status(Ending.STOPPED, f"no step is small enough at norm {self.norm:.4g}")
            return
        self.clock.move(self.stepper.time, self.stepper.state)

    @property
    def _diagonal(self) -> bool:
        return self.flow.weights(self.start).ndim == 1

    def through(self, times: Clock) -> None:
        """Save at every one of the times; on data that nothing separates the status says so."""
        for instant in times:
            while self.stepper.time < instant and self.status.ok:
                self._step(limit=float(instant))
            if not self.times or self.times[-1] < self.stepper.time:
                self._save()  # also where the flow stopped on the way
            if not self.status.ok:
                return
        if not separation(self.flow.task.left, self.flow.task.right, self._diagonal) > 0:
            self.status = Status(Ending.FINISHED, f"no {'diagonal ' * self._diagonal}W separates these data")

    def to_norm(self) -> None:
        """Save the start, each time the norm has grown by 10^(1/per_decade) or `LONGEST_WAIT` steps passed, the end."""
        refuse_infeasible(self.flow.task, self._diagonal)
        goal, growth = self.method.until_norm, 10 ** (1 / self.method.per_decade)
        self._save()
        saved, waited = self.norm, 0
        with bar(f"flow to norm {goal:.3g}", 1.0) as progress:
            while self.norm < goal and self.status.ok:
                self._step(norm=goal)
                waited += 1
                if self.norm >= goal or self.norm > saved * growth or waited >= LONGEST_WAIT:
                    self._save()
                    saved, waited = self.norm, 0
                    # The bar is even in the logarithm of the norm, from 1e-3 on.
                    progress.reach(float(np.clip(np.log1p(1e3 * self.norm) / np.log1p(1e3 * goal), 0.0, 1.0)))
        if self.times[-1] < self.stepper.time:
            self._save()

    def _land(self, before: Snapshot, target: float) -> float:
        """The norm after a step; a step beyond the target is taken back and shortened until it ends there."""
        norm = self._norm(self.stepper.state)
        if norm < target:
            return norm
        low, high, begin = 0.0, self.stepper.time - before.time, before.time
        below, above = self._norm(before.state), norm
        for _ in range(LANDINGS):
            if abs(above / target - 1) < REACHED:
                break
            # Norms of K and Q apart grow exponentially, so the secant is drawn in log norm; far below the target
            # (at the start the norm may be 0) the bracket is halved.
            part = np.log(target / below) / np.log(above / below) if below > 0.1 * target else 0.5
            step = low + float(np.clip(part, *INSIDE)) * (high - low)
            self.stepper.restore(before)
            self.stepper.advance(begin + step)
            norm, end = self._norm(self.stepper.state), self.stepper.time - begin
            if norm < target * (1 - REACHED):
                low, below = end, norm
            else:
                high, above = end, norm
        # A landing within `REACHED` below the target counts as there, or `to_norm` would go on stepping.
        return max(norm, target)


class GradientTime:
    """Log t beside the rescaled clock: t = ∫e^{−log|c|}dτ, with log|c| linear inside a step.

    Where log|c| falls by thousands in a step, only its end counts; the error of log t is then the logarithm of how
    much the slope changes inside the step, a few hundredths beside log t itself.
    """

    def __init__(self, flow: AttentionFlow) -> None:
        self._flow, self.value = flow, -np.inf
        self._clock, self._rate = 0.0, 0.0

    def move(self, clock: float, state: State) -> None:
        """Add what passed since the last instant."""
        rate = -self._flow.log_rate(state)
        if clock > self._clock:
            # ∫ e^rate over a step in which the rate is linear: e^high (1 − e^−fall)/fall times its length.
            high, fall = max(rate, self._rate), abs(rate - self._rate)
            mean = high + (np.log(-np.expm1(-fall) / fall) if fall > EQUAL_RATES else 0.0)
            self.value = float(np.logaddexp(self.value, np.log(clock - self._clock) + mean))
        self._clock, self._rate = clock, rate
