"""Gradient flow of an attention layer to norms of 1e7 and beyond: what moves, what is seen, how it is labelled.

Everything is computed by NumPy in double precision: flows are thousands of steps on small matrices, for which compiling
takes longer than running.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from saddles.core.trajectory import Trajectory, Variable
from saddles.core.validation import check_keep
from saddles.errors import SaddlesError
from saddles.margin.attention import AttentionFlow
from saddles.margin.observe import describe_weights, optimality, to_trajectory, weights_variable
from saddles.margin.task import Tokens, check_task
from saddles.runtime.threads import one_thread
from saddles.solvers.dynamics import Dynamics, check_method

State = Float[np.ndarray, "entry"]


@runtime_checkable
class Parametrisation(Protocol):
    """What training asks of a model: `saddles.margin.AttentionModel` says more."""

    @property
    def norm(self) -> str:
        """Name of the norm that it is expected to minimise."""
        ...

    def flow(self, task: Tokens, seed: int = 0) -> tuple[AttentionFlow, State]:
        """The flow on a task and the state it starts from."""
        ...


def slope(state: object, flow: AttentionFlow) -> State:
    """−∇L/|c| in the coordinates of the flow."""
    return flow.field(_in_numpy(state))


def rested(state: object, flow: AttentionFlow) -> bool:
    """Whether nothing moves; on separable data the weights grow without end, and nothing ever rests."""
    return bool((slope(state, flow) == 0).all())


def observe(state: object, flow: AttentionFlow) -> dict[str, np.ndarray]:
    """Weights, φ, the loss and log(L − L*) at one instant, and the factors of W where it has any."""
    here = _in_numpy(state)
    loss, log_gap = flow.coefficients.loss(flow.margins(here))
    return flow.factors(here) | {
        "weights": flow.weights(here),
        "accumulated": flow.accumulated(here),
        "loss": np.array(loss),
        "log_loss_gap": np.array(log_gap),
    }


def _in_numpy(state: object) -> np.ndarray:
    """Refuse a tracer: methods that compile what they follow (`GradientFlow`) cannot follow NumPy code."""
    if isinstance(state, np.ndarray):
        return state
    raise SaddlesError(
        "The flows of saddles.margin are written in NumPy and cannot be compiled. Use MarginFlow, or a method of your "
        "own whose `follow` calls `slope` and `observe` with NumPy arrays."
    )


def dynamics_of(model: Parametrisation, task: Tokens, seed: int) -> Dynamics[State, AttentionFlow]:
    """The training problem that a method moves."""
    flow, start = model.flow(task, seed)
    return Dynamics(start, flow, slope, observe, rested=rested, title=f"training of {type(model).__name__}")


def train(
    model: Parametrisation,
    task: Tokens,
    method: object,
    *,
    times: np.ndarray | None = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
) -> Trajectory:
    """Train any model that has a `flow` and a `norm`; `AttentionModel.simulate` documents the result."""
    mover = check_method(method, model, "MarginFlow")
    check_task(task)
    with one_thread(len(task.left)):
        dynamics = dynamics_of(model, task, seed)
        factors = tuple(dynamics.args.factors(dynamics.start))
        kept = check_keep(keep, ("accumulated", *(["factors"] if factors else [])))
        path = mover.follow(dynamics, times)
        saved = path.saved
        weights, phi = saved["weights"], saved["accumulated"]
        variables = weights_variable(weights) | describe_weights(weights, task) | optimality(
            weights, phi, task, model.norm
        )  # fmt: skip
    variables |= {name: saved[name] for name in ("log_time", "loss", "log_loss_gap") if name in saved}
    large: dict[str, dict[str, Variable]] = {
        "accumulated": {"accumulated": (("time", "constraint"), phi)},
        "factors": {name: (("time", "coordinate", "hidden"), saved[name]) for name in factors},
    }
    for name in kept:
        variables |= large[name]
    return to_trajectory(
        variables, path.times, model, task, method=method, seed=seed, kind="simulated", coords=path.coords,
        least_loss=task.least_loss, **path.facts,
    )  # fmt: skip
