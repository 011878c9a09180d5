"""Gradient descent and gradient flow of the two-layer network, through its reduced factor."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.linear.layout import transposed
from saddles.linear.model import TwoLayer
from saddles.linear.observe import Observer, check_finite, observer_of, to_trajectory
from saddles.runtime.device import on_device
from saddles.solvers.descent import iterate
from saddles.solvers.methods import GradientDescent, GradientFlow
from saddles.solvers.ode import SAVED_TIMES, from_zero, settle, solve

Factor = tuple[Any, Any]
"""The blocks W1ᵀ (d_in × m) and W2 (d_out × m), or their reduction."""


def push(state: Factor, cost: Any) -> Factor:
    """−∇L: W1' = −W2ᵀG and W2' = −G W1ᵀ with G = ∇C(W2 W1), on the transposed first layer."""
    inner, outer = state
    gradient = cost.gradient(outer @ transposed(inner))
    return -(transposed(gradient) @ outer), -(gradient @ inner)


def descend(state: Factor, args: tuple[Observer, Any]) -> Factor:
    """One simultaneous step of gradient descent."""
    observer, rate = args
    slope = push(state, observer.cost)
    return state[0] + rate * slope[0], state[1] + rate * slope[1]


def simulate(
    model: TwoLayer,
    task: Any,
    method: Any,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Train a `TwoLayer` by `GradientDescent` or `GradientFlow`.

    Kept on request: `matrix` (time, row, column; by default where it is small), `gram`
    (`gram_in` = W1ᵀW1, `gram_out` = W2W2ᵀ), `alignment` (time, mode), and `factor`, the
    reduced weights. `errors` keeps cost and errors alone: for a large network the singular
    values cost more than the steps.

    A flow without times runs until ‖∇C‖_F has fallen to 1 % of its first value, or, where
    the width cannot fit the cost, until the weights' relative speed has fallen to 0.1 %;
    the trajectory's status tells if neither happened within the method's steps.
    """
    with on_device(device):
        start = jax.tree.map(lambda block: jnp.asarray(block, dtype=precision), model.start(task.shape, seed))
        if isinstance(method, GradientDescent):
            return _descent(model, task, method, start, times, seed, keep, precision)
        if isinstance(method, GradientFlow):
            return _flow(model, task, method, start, times, seed, keep, precision)
    raise SaddlesError.about(
        f"{type(method).__name__} came as a method", "GradientDescent or GradientFlow is run", "use one of them"
    )


def _observe_step(state: Factor, args: tuple[Observer, Any]) -> dict[str, Any]:
    return args[0].factor(*state)


def _descent(
    model: TwoLayer, task: Any, method: GradientDescent, start: Factor, times: Any, seed: int, keep: Any, precision: str
) -> Trajectory:
    steps, stride, asked = method.schedule(times)
    observer = observer_of(task, keep, len(asked), precision)
    rate = jnp.asarray(method.rate, dtype=precision)
    check_finite(eqx.filter_jit(_observe_step)(start, (observer, rate)), task)
    done = iterate(
        descend, start, steps, args=(observer, rate), observe=_observe_step, guard="loss", save_every=stride,
        title=f"descent, {steps} steps",
    )  # fmt: skip
    chosen = np.isin(done.steps, asked)
    status = done.status
    if not status.ok:
        status = f"{status} with rate {method.rate:.4g}: try a smaller one"
    return to_trajectory(
        {name: values[chosen] for name, values in done.saved.items()},
        method.rate * done.steps[chosen],
        model,
        task,
        step=done.steps[chosen],
        kind="simulated",
        method=method,
        seed=seed,
        status=status,
        wall_time=done.wall_time,
        gradient_evaluations=int(done.steps[-1]),
    )


def _field(t: Any, state: Factor, observer: Observer) -> Factor:
    return push(state, observer.cost)


def _observe_time(t: Any, state: Factor, observer: Observer) -> dict[str, Any]:
    return observer.factor(*state)


def _norm(state: Factor) -> Any:
    return jnp.sqrt(sum(jnp.sum(block**2) for block in state))


class _Settled(eqx.Module):
    """The criterion of convergence that `simulate` states."""

    gradient: Any
    speed: Any

    def __call__(self, t: Any, state: Factor, observer: Observer) -> Any:
        slope = push(state, observer.cost)
        fitted = jnp.linalg.norm(observer.cost.gradient(state[1] @ state[0].T)) <= 1e-2 * self.gradient
        still = _norm(slope) <= 1e-3 * self.speed * _norm(state)
        narrow = state[0].shape[1] < min(state[0].shape[0], state[1].shape[0])
        return fitted | still if narrow else fitted


def _flow(
    model: TwoLayer, task: Any, method: GradientFlow, start: Factor, times: Any, seed: int, keep: Any, precision: str
) -> Trajectory:
    instants = SAVED_TIMES if times is None else len(times)
    observer = observer_of(task, keep, instants, precision)
    check_finite(eqx.filter_jit(_observe_time)(0.0, start, observer), task)
    settled = True
    if times is None:
        end = method.until
        if end is None:
            gradient = jnp.linalg.norm(observer.cost.gradient(start[1] @ start[0].T))
            speed = _norm(push(start, observer.cost)) / _norm(start)
            end, settled = settle(
                _field, start, _Settled(gradient, speed), args=observer, scale=float(1 / speed),
                max_steps=method.max_steps,
            )  # fmt: skip
        times = np.linspace(0.0, end, SAVED_TIMES)
    clock, added = from_zero(times)
    found = solve(
        _field, start, clock, args=observer, observe=_observe_time, rtol=method.rtol, stiff=method.stiff,
        max_steps=method.max_steps, title="flow",
    )  # fmt: skip
    chosen = slice(added, None)
    status = found.status if settled else f"stopped: not converged within {method.max_steps} coarse steps"
    return to_trajectory(
        {name: values[chosen] for name, values in found.saved.items()},
        found.times[chosen],
        model,
        task,
        kind="simulated",
        method=method,
        seed=seed,
        status=status,
        wall_time=found.wall_time,
        gradient_evaluations=found.evaluations,
    )
