"""Gradient flow and descent of the lab's linear networks; SGD goes through `sgd`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.concepts.lemmas import assumptions
from saddles.concepts.model import MLP, OneLayer, SymmetricTwoLayer
from saddles.concepts.observe import PAPER_CLOCK, to_trajectory
from saddles.concepts.sgd import SGD, train
from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.solvers.descent import iterate
from saddles.solvers.methods import GradientDescent, GradientFlow
from saddles.solvers.ode import SAVED_TIMES, from_zero, settle, solve


def simulate(
    model: OneLayer | SymmetricTwoLayer | MLP,
    task: Identity,
    method: Any,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Train a network on the identity task.

    `OneLayer` and `SymmetricTwoLayer` by `GradientFlow` or `GradientDescent` on the exact loss of
    the task's second moment; `OneLayer` and `MLP` by `SGD` on its samples. All run in the frame of
    the concepts, which changes nothing: loss and updates are equivariant under the rotation.

    Can be kept: `jacobian`, `terms` (flows); `jacobian` (linear networks), `hierarchy` (SGD).
    A flow without `until` and times runs until the loss has fallen to 1e-4 of that of W = 0; a
    rank-deficient start never gets there, and the trajectory's status says so.
    """
    with on_device(device):
        if isinstance(method, SGD) and isinstance(model, OneLayer | MLP):
            _refuse_times(times)
            whole = train([model], [task], [seed], method, keep=keep or (), precision=precision)
            return whole.isel(run=0, drop=True)
        if isinstance(model, OneLayer | SymmetricTwoLayer):
            start = _start(model, task, seed, precision)
            if isinstance(method, GradientFlow):
                return _flow(model, task, method, start, times, seed, keep)
            if isinstance(method, GradientDescent):
                return _descent(model, task, method, start, times, seed, keep)
    raise SaddlesError.about(
        f"{type(method).__name__} for {type(model).__name__} came",
        "OneLayer and SymmetricTwoLayer run GradientFlow and GradientDescent, OneLayer and MLP run SGD",
        "use one of these pairs",
    )


def _refuse_times(times: Any) -> None:
    if times is not None:
        raise SaddlesError.about("times came with SGD", "it saves every few steps", "set save_every of the method")


def _start(model: OneLayer | SymmetricTwoLayer, task: Identity, seed: int, precision: str) -> Array:
    if isinstance(model, OneLayer):
        return jnp.asarray(task.to_concepts(model.start(task.size, seed)), dtype=precision)
    return jnp.asarray(task.rotation.T @ model.start(task.size), dtype=precision)


def _padded(task: Identity, dtype: Any) -> Array:
    moment = np.zeros((task.size, task.size))
    moment[: task.concepts, : task.concepts] = task.moment
    return jnp.asarray(moment, dtype=dtype)


def loss_of_weights(weights: Array, moment: Array) -> Array:
    """½ tr (W − I) A (W − I)ᵀ."""
    gap = weights - jnp.eye(weights.shape[0], dtype=weights.dtype)
    return jnp.sum((gap @ moment) * gap) / 2


def loss_of_factor(factor: Array, moment: Array) -> Array:
    """The same at W = UUᵀ."""
    return loss_of_weights(factor @ factor.T, moment)


def _loss(model: Any) -> Any:
    return loss_of_factor if isinstance(model, SymmetricTwoLayer) else loss_of_weights


def _slope_weights(t: Any, weights: Array, moment: Array) -> Array:
    return -jax.grad(loss_of_weights)(weights, moment)


def _slope_factor(t: Any, factor: Array, moment: Array) -> Array:
    return -jax.grad(loss_of_factor)(factor, moment)


def _learned_weights(t: Any, weights: Array, moment: Array) -> Array:
    return loss_of_weights(weights, moment) <= 0.5e-4 * jnp.trace(moment)


def _learned_factor(t: Any, factor: Array, moment: Array) -> Array:
    return loss_of_factor(factor, moment) <= 0.5e-4 * jnp.trace(moment)


def _flow(
    model: Any, task: Identity, method: GradientFlow, start: Array, times: Any, seed: int, keep: Any
) -> Trajectory:
    paired = isinstance(model, SymmetricTwoLayer)
    slope, learned = (_slope_factor, _learned_factor) if paired else (_slope_weights, _learned_weights)
    moment, settled = _padded(task, start.dtype), True
    if times is None:
        end = method.until
        if end is None:
            speed = 4 * float(np.linalg.eigvalsh(task.moment).max())
            end, settled = settle(
                slope, start, learned, args=moment, scale=1 / speed, limit=1e5 / speed, max_steps=method.max_steps
            )
        times = np.linspace(0.0, end, SAVED_TIMES)
    clock, added = from_zero(times)
    found = solve(
        slope, start, clock, args=moment, rtol=method.rtol, stiff=method.stiff, max_steps=method.max_steps,
        atol=1e-300 if paired else None, title="flow",
    )  # fmt: skip
    return _labelled(
        model, task, found.times[added:], found.saved[added:], keep, method=method, seed=seed,
        status=found.status if settled else "stopped: not learned within the limit of time",
        wall_time=found.wall_time, gradient_evaluations=found.evaluations,
    )  # fmt: skip


def _step_weights(weights: Array, args: tuple[Array, Array]) -> Array:
    return weights - args[1] * jax.grad(loss_of_weights)(weights, args[0])


def _step_factor(factor: Array, args: tuple[Array, Array]) -> Array:
    return factor - args[1] * jax.grad(loss_of_factor)(factor, args[0])


def _observe_weights(state: Array, args: tuple[Array, Array]) -> dict[str, Array]:
    return {"state": state, "loss": loss_of_weights(state, args[0])}


def _observe_factor(state: Array, args: tuple[Array, Array]) -> dict[str, Array]:
    return {"state": state, "loss": loss_of_factor(state, args[0])}


def _descent(
    model: Any, task: Identity, method: GradientDescent, start: Array, times: Any, seed: int, keep: Any
) -> Trajectory:
    paired = isinstance(model, SymmetricTwoLayer)
    steps, stride, asked = method.schedule(times)
    args = (_padded(task, start.dtype), jnp.asarray(method.rate, dtype=start.dtype))
    done = iterate(
        _step_factor if paired else _step_weights, start, steps, args=args,
        observe=_observe_factor if paired else _observe_weights, guard="loss", save_every=stride,
    )  # fmt: skip
    chosen = np.isin(done.steps, asked)
    return _labelled(
        model, task, method.rate * done.steps[chosen], done.saved["state"][chosen], keep, step=done.steps[chosen],
        method=method, seed=seed, status=done.status, wall_time=done.wall_time,
        gradient_evaluations=int(done.steps[-1]),
    )  # fmt: skip


def _labelled(model: Any, task: Identity, times: Any, states: np.ndarray, keep: Any, **facts: Any) -> Trajectory:
    paired = isinstance(model, SymmetricTwoLayer)
    jacobian = states @ states.swapaxes(1, 2) if paired else states
    strengths = task.strengths if paired and task.samples is None else None
    if paired:
        method = facts["method"]
        rate = PAPER_CLOCK * method.rate if isinstance(method, GradientDescent) else None
        facts["assumptions"] = assumptions(model, task, rate).reason
    return to_trajectory(
        task, times, jacobian=jacobian, strengths=strengths, keep=keep, kind="simulated", model=model, **facts
    )
