"""Gradient flow of an attention layer to norms of 1e7 and beyond."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import check_keep, check_times
from saddles.errors import SaddlesError
from saddles.margin.attention import DiagonalFlow, FactoredFlow, JointFlow
from saddles.margin.method import MarginFlow
from saddles.margin.model import DiagonalAttention, FactoredAttention, JointAttention
from saddles.margin.observe import KEEPABLE, describe_weights, optimality, to_trajectory, weights_variable
from saddles.runtime.progress import bar
from saddles.runtime.threads import one_thread
from saddles.solvers.log_scale import LogScale
from saddles.solvers.multistep import Multistep, Snapshot, StepError

NORMS = {DiagonalAttention: "l1", FactoredAttention: "nuclear", JointAttention: "frobenius"}
"""The norm each parametrisation is expected to minimise."""

REACHED = 1e-6
"""How closely, relative, a run ends at its norm."""


def simulate(
    model: Any,
    task: Any,
    method: Any,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Follow gradient flow by `MarginFlow` until the weights have its norm, or to rescaled `times` instead.

    Variables over time: `beta` (coordinate) or `weights` (row, column), `margin`, `log_time`, `loss`, `log_loss_gap`
    (log(L − L*)), `nuclear_norm`, `frobenius_norm`, `kkt_feasibility`, `kkt_stationarity`, `kkt_slackness` (the proof's
    multipliers), `dual_objective` and `certified_gap` (φ/‖Bφ‖). Kept on request: `factors` (`key`, `query`) and
    `accumulated` (φ).
    Runs on the processor in double precision: nothing is compiled.
    """
    kept, asked = check_keep(keep, KEEPABLE), check_times(times)
    if not isinstance(method, MarginFlow):
        raise SaddlesError.about(f"{type(method).__name__} came as a method", "MarginFlow is run", "use it")
    if precision != "float64" or device not in (None, "cpu"):
        raise SaddlesError.about(
            f"precision={precision!r}, device={device!r} came",
            "this lab computes in float64 on the processor",
            "leave both out",
        )
    with one_thread(task.left.shape[0]):
        return _simulate(model, task, method, asked, seed, kept)


def _simulate(
    model: Any, task: Any, method: MarginFlow, asked: np.ndarray | None, seed: int, kept: tuple[str, ...]
) -> Trajectory:
    flow, start = _flow(model, task, seed)
    path = follow(flow, start, method, asked)
    states = path.states
    weights = np.stack([flow.weights(state) for state in states])
    sums = np.stack([flow.accumulated(state) for state in states])
    losses = np.array([flow.coefficients.loss(flow.margins(state)) for state in states])
    variables = weights_variable(weights) | describe_weights(weights, task)
    variables |= {
        "log_time": (("time",), np.array(path.log_times)),
        "loss": (("time",), losses[:, 0]),
        "log_loss_gap": (("time",), losses[:, 1]),
    }
    variables |= optimality(weights, sums, task, NORMS[type(model)])
    if "accumulated" in kept:
        variables["accumulated"] = (("time", "constraint"), sums)
    if "factors" in kept and isinstance(flow, FactoredFlow):
        parts = [flow.split(state)[:2] for state in states]
        for name, i in (("key", 0), ("query", 1)):
            variables[name] = (("time", "coordinate", "hidden"), np.stack([part[i] for part in parts]))
    return to_trajectory(
        variables, np.array(path.clock), model, task, method=method, seed=seed, kind="simulated",
        status=str(path.status), wall_time=path.wall_time, gradient_evaluations=path.evaluations,
        solver_steps=path.steps, solver_rejected=path.rejected, least_loss=task.least_loss,
    )  # fmt: skip


def _flow(model: Any, task: Any, seed: int) -> tuple[Any, np.ndarray]:
    n, length, dim = task.shape
    if isinstance(model, DiagonalAttention):
        omega = np.sqrt(2.0) * model.omega(dim)
        coordinates = LogScale.from_weights(omega, np.zeros(dim))
        return DiagonalFlow(task, coordinates), np.zeros(n * (length - 1))
    if isinstance(model, JointAttention):
        return JointFlow(task), np.zeros(n * (length - 1))
    if isinstance(model, FactoredAttention):
        key, query = model.start(dim, seed)
        return FactoredFlow(task, key.shape[1]), np.concatenate(
            [key.ravel(), query.ravel(), np.zeros(n * (length - 1))]
        )
    raise SaddlesError.about(
        f"{type(model).__name__} came as a model", "DiagonalAttention, FactoredAttention or JointAttention is trained",
        "use one",
    )  # fmt: skip


@dataclass(eq=False)
class Path:
    """Saved instants of a flow, and how it ended."""

    clock: list[float] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    log_times: list[float] = field(default_factory=list)
    status: Status = FINISHED
    steps: int = 0
    rejected: int = 0
    evaluations: int = 0
    wall_time: float = 0.0


def follow(flow: Any, start: np.ndarray, method: MarginFlow, asked: np.ndarray | None) -> Path:
    """Integrate until the norm (or the last asked time) and save on the way.

    Without times an instant is saved whenever the norm has grown by a factor 10^(1/per_decade), or after as many
    further steps; each is the end of a solver step, never an interpolation.
    """
    began, path, clock = time.perf_counter(), Path(), GradientTime(flow)
    stepper = Multistep(flow, start, rtol=method.error, atol=1e-3 * method.error * _unit(start))
    goals = [] if asked is None else list(asked)
    norm, saved, waited = float(np.linalg.norm(flow.weights(start))), 0.0, 0
    target = method.until_norm if asked is None else np.inf
    with bar(f"flow to norm {method.until_norm:.3g}", 1.0) as progress:
        clock.move(stepper.time, stepper.state)
        if asked is None or goals[0] == 0:
            _save(path, stepper, clock)
            goals, saved = goals[1:], norm
        while (goals or asked is None) and norm < target:
            before = stepper.snapshot()
            if stepper.steps + stepper.rejected >= method.max_steps:
                path.status = Status(Ending.STOPPED, f"{method.max_steps} solver steps spent at norm {norm:.4g}")
                break
            try:
                stepper.advance(goals[0] if goals else np.inf)
                norm = _land(stepper, flow, before, target)
            except StepError:
                path.status = Status(Ending.STOPPED, f"no step is small enough at norm {norm:.4g}")
                break
            clock.move(stepper.time, stepper.state)
            waited += 1
            if goals:
                if stepper.time >= goals[0]:
                    goals = goals[1:]
                    _save(path, stepper, clock)
                continue
            if asked is None and (norm >= target or norm > saved * 10 ** (1 / method.per_decade) or waited >= 20):
                _save(path, stepper, clock)
                saved, waited = norm, 0
                progress.reach(_share(norm, target))
    if not path.clock or (not path.status.ok and path.clock[-1] < stepper.time):
        _save(path, stepper, clock)
    path.steps, path.rejected, path.evaluations = stepper.steps, stepper.rejected, stepper.evaluations
    path.wall_time = time.perf_counter() - began
    return path


def _unit(start: np.ndarray) -> float:
    """Size of the smallest errors that matter: that of the start, or 1 for a start at 0."""
    size = float(np.abs(start).max())
    return size if size > 0 else 1.0


def _share(norm: float, target: float) -> float:
    return float(np.clip(np.log1p(1e3 * norm) / np.log1p(1e3 * target), 0.0, 1.0))


def _save(path: Path, stepper: Multistep, clock: "GradientTime") -> None:
    path.clock.append(stepper.time)
    path.states.append(stepper.state)
    path.log_times.append(clock.value)


def _land(stepper: Multistep, flow: Any, before: Snapshot, target: float) -> float:
    """The norm after a step; a step beyond the target is taken back and shortened until it ends there."""
    norm = float(np.linalg.norm(flow.weights(stepper.state)))
    if norm < target:
        return norm
    low, high, begin = 0.0, stepper.time - before.time, before.time
    below, above = float(np.linalg.norm(flow.weights(before.state))), norm
    for _ in range(60):
        if abs(above / target - 1) < REACHED:
            break
        part = np.log(target / below) / np.log(above / below) if below > 0.1 * target else 0.5
        step = low + float(np.clip(part, 0.05, 0.95)) * (high - low)
        stepper.restore(before)
        stepper.advance(begin + step)
        norm, end = float(np.linalg.norm(flow.weights(stepper.state))), stepper.time - begin
        if norm < target * (1 - REACHED):
            low, below = end, norm
        else:
            high, above = end, norm
    return max(norm, target)


class GradientTime:
    """Log t beside the rescaled clock: t = ∫e^{−log|c|}dτ, with log|c| linear inside a step.

    Where log|c| falls by thousands in a step, only its end counts; the error of log t is then the logarithm of how
    much the slope changes inside the step, a few hundredths beside log t itself.
    """

    def __init__(self, flow: Any) -> None:
        self._flow, self.value = flow, -np.inf
        self._clock, self._rate = 0.0, 0.0

    def move(self, clock: float, state: np.ndarray) -> None:
        """Add what passed since the last instant."""
        rate = -self._flow.log_rate(state)
        if clock > self._clock:
            high, low = max(rate, self._rate), min(rate, self._rate)
            fall = high - low
            mean = high + (np.log(-np.expm1(-fall) / fall) if fall > 1e-9 else 0.0)
            self.value = float(np.logaddexp(self.value, np.log(clock - self._clock) + mean))
        self._clock, self._rate = clock, rate
