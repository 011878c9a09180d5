"""Theories of this lab: alternating flows for every sum of neurons, self-consistent dynamics for one wide head."""

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.incontext.awake import learn, look
from saddles.incontext.dormant import sleep_of
from saddles.incontext.neurons import Additive, Sum
from saddles.incontext.observe import to_trajectory
from saddles.incontext.task import Population, check_task
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.runtime.progress import bar
from saddles.solvers.dynamics import Dynamics
from saddles.solvers.methods import GradientFlow
from saddles.solvers.ode import SAVED_TIMES
from saddles.solvers.self_consistent import Rows, self_consistent_factor, stacked_matrix, stacked_slope
from saddles.solvers.two_layer import Matrix

BEFORE = 1e-9
"""A prediction without `times` is saved this part before each jump, so that a line through its points is a stair."""

BELOW = 0.999
"""A neuron that falls asleep begins at most at this part of the norm at which neurons wake."""


@arguments_explained
@dataclass(frozen=True)
class AlternatingFlows:
    """Stages of a sum of neurons Σ f_i(x; θ_i), each homogeneous of degree κ ≥ 2, from a small start (Kunin et al.).

    Neurons that sleep climb the utility U(θ̄) = ⟨−∇L, f(x; θ̄)⟩ of what the awake ones leave,

        dθ̄/dt = ‖θ‖^(κ−2) P⊥ ∇U(θ̄),   d‖θ‖/dt = κ ‖θ‖^(κ−1) U(θ̄),

    until the first reaches norm `norm`. Then the awake ones flow to the next rest of the loss; those that return to
    zero sleep again. Algorithm 1 of lab `diagonal` is a special case. It speaks of `Merged`, `Separate`, `Neurons`, and
    of any model with a method `neurons(task, seed)` that gives an `incontext.neurons.Sum`.

    Args:
        max_stages: most stages to predict.
        until: stop at this gradient time; None continues until nobody wakes any more.
        norm: the norm at which a neuron wakes.
    """

    max_stages: int = 100
    until: float | None = None
    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.max_stages < 1:
            raise SaddlesError.must_be("max_stages", "at least 1", self.max_stages)
        if self.until is not None and not (math.isfinite(self.until) and self.until > 0):
            raise SaddlesError.must_be("until", "a positive gradient time", self.until)
        if not 0 < self.norm < math.inf:
            raise SaddlesError.must_be("norm", "positive", self.norm)

    def horizon(
        self, model: object, task: object, *, seed: int = 0, device: str | None = None
    ) -> tuple[np.ndarray | None, Status]:
        """Evenly until `until`, or until a little after the last stage."""
        end = self.until
        if end is None:
            end = float(self.predict(model, task, seed=seed, device=device)["time"][-1])
        return np.linspace(0.0, end, SAVED_TIMES), FINISHED

    @in_double_precision
    def predict(
        self, model: object, task: object, *, times: np.ndarray | None = None, seed: int = 0, device: str | None = None
    ) -> Trajectory:
        """Predict the stages; `loss` (and `matrix`, where the sum is one) is piecewise constant over gradient time.

        Along `stage`, which begins with 0, the start: `stage_time` (when it begins), `plateau` (its loss),
        `stage_neuron` (who woke; −1 for nobody), `stage_awake` (how many are awake after it), `stage_left` (how many
        fell asleep) and `stage_direction` (the unit weights of the neuron that woke).
        """
        if isinstance(model, type) or not isinstance(model, Additive):
            name = model.__name__ if isinstance(model, type) else type(model).__name__
            raise SaddlesError(
                f"AlternatingFlows predicts sums of neurons: Merged, Separate, Neurons, or a model with `neurons`; got "
                f"{name}."
            )
        with on_device(device):
            network = model.neurons(task, seed)
            run = _alternate(network, self)
        clock = _clock(run, self.until) if times is None else times
        drawn = seed if getattr(model, "random", True) else None
        return make_trajectory(
            _variables(run, clock), clock, coords={"stage": np.arange(len(run.rows))}, lab="incontext", model=model,
            task=task, kind="predicted", theory=self, seed=drawn, status=run.status,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Stage:
    time: float
    loss: float
    neuron: int
    awake: int
    left: int
    direction: np.ndarray
    total: np.ndarray


@dataclass(eq=False)
class _Run:
    rows: list[_Stage] = field(default_factory=list)
    status: Status = FINISHED


def _alternate(network: Sum, theory: AlternatingFlows) -> _Run:
    count, size = network.start.shape
    theta, time, pair = np.zeros((count, size)), 0.0, (network.output, network.loss)
    total, loss, push = look(pair, jnp.asarray(theta))
    run, awake = _Run(), np.zeros(count, dtype=bool)
    run.rows.append(_Stage(0.0, float(loss), -1, 0, 0, np.zeros(size), np.asarray(total)))
    sleep, target, first = sleep_of(network, push), math.log(theory.norm), 0.0
    largest = network.log_scale + float(np.log(np.linalg.norm(network.start, axis=1).max()))
    if largest >= target:  # it would be awake before it has turned, and may face away from what it could learn
        raise SaddlesError(
            f"AlternatingFlows predicts from a small start: every neuron must begin below norm={theory.norm:g}, at "
            f"which it wakes; the largest begins at {math.exp(largest):.3g}."
        )
    with bar("alternating flows", float(theory.max_stages)) as progress:
        while len(run.rows) <= theory.max_stages and not awake.all():
            wait, who = sleep.wake(push, ~awake, target)
            if not len(who) or (theory.until is not None and time + wait > theory.until):
                break
            time += wait
            directions = np.stack([sleep.direction(int(i)) for i in who])
            first = max(first, _utility(network, directions[0], push))
            rest = learn(network, theta, who, directions, first)
            if not rest.settled:
                run.status = Status(Ending.STOPPED, f"the awake neurons {rest.outcome} after stage {len(run.rows)}")
                break
            awake[who], awake[rest.gone] = True, False
            theta[who] = theory.norm * directions
            for i, left in zip(rest.gone, rest.left, strict=True):
                # A drop takes no time here, so what it shrank meanwhile is not counted: it would be counted twice.
                size = BELOW * min(float(np.linalg.norm(theta[i])), theory.norm)
                sleep.lie_down(int(i), size * left / np.linalg.norm(left))
            theta, push = rest.theta, rest.push
            total = np.asarray(look(pair, jnp.asarray(theta))[0])
            row = (rest.loss, int(who[0]), int(awake.sum()), len(rest.gone), directions[0], total)
            run.rows.append(_Stage(time, *row))
            progress.reach(float(len(run.rows)))
    return run


def _utility(network: Sum, direction: np.ndarray, push: Array) -> float:
    return float(jnp.sum(push * network.output(jnp.asarray(direction))))


def _clock(run: _Run, until: float | None) -> np.ndarray:
    """Times just before and at each jump, and an end beyond the last."""
    edges = np.array([row.time for row in run.rows])
    last = float(edges[-1])
    end = max(until, last) if until is not None else 1.1 * last if last > 0 else 1.0
    return np.unique(np.concatenate([edges[1:] * (1 - BEFORE), edges, [end]]))


def _variables(run: _Run, clock: np.ndarray) -> dict[str, Variable]:
    edges = np.array([row.time for row in run.rows])
    where = np.searchsorted(edges, clock, side="right") - 1
    rows = run.rows
    variables: dict[str, Variable] = {
        "loss": (("time",), np.array([row.loss for row in rows])[where]),
        "stage_time": (("stage",), edges),
        "plateau": (("stage",), np.array([row.loss for row in rows])),
        "stage_neuron": (("stage",), np.array([row.neuron for row in rows])),
        "stage_awake": (("stage",), np.array([row.awake for row in rows])),
        "stage_left": (("stage",), np.array([row.left for row in rows])),
        "stage_direction": (("stage", "weight"), np.stack([row.direction for row in rows])),
    }
    total = np.stack([row.total for row in rows])
    if total.ndim == 3 and total.shape[1] == total.shape[2]:
        variables["matrix"] = (("time", "row", "column"), total[where])
    return variables


@arguments_explained
@dataclass(frozen=True)
class SelfConsistent:
    """M' = −√(MMᵀ+σ⁴w²I) G − G √(MᵀM+σ⁴w²I) for one wide head, G = ∇L(M): lazy and active directions at once.

    Args:
        rtol: relative error per step of the flow.
    """

    rtol: float = 1e-9

    @in_double_precision
    def predict(
        self,
        model: object,
        task: object,
        *,
        times: np.ndarray,
        seed: int = 0,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Predict the run of a `Wide` head, or of any model with `start` and `threshold`, at given times."""
        problem, threshold = check_task(task), getattr(model, "threshold", None)
        if threshold is None or times is None:
            raise SaddlesError("SelfConsistent predicts incontext.Wide, at `times` that you give.")
        query, key = model.start(problem, seed)  # type: ignore[attr-defined]
        with on_device(device):
            rows = jnp.asarray(self_consistent_factor(key @ query.T, threshold), dtype=precision)
            cost = Population(*(jnp.asarray(part, dtype=precision) for part in (problem.matrix, problem.cost.moment)))
            path = GradientFlow(rtol=self.rtol).follow(Dynamics(rows, cost, _slope, _observe, title="theory"), times)
        return to_trajectory(path, model, problem, kind="predicted", theory=self, seed=seed)


def _matrix(rows: Rows) -> Matrix:
    return stacked_matrix(rows, rows.shape[0] // 2)


def _slope(rows: Rows, cost: Population) -> Rows:
    return stacked_slope(rows, cost.gradient(_matrix(rows)), rows.shape[0] // 2)


def _observe(rows: Rows, cost: Population) -> dict[str, Any]:
    matrix = _matrix(rows)
    return {"loss": cost(matrix), "matrix": matrix}
