"""How the models of this lab are trained: the exact flow, and descent on drawn prompts."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from saddles.core.status import Status
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.incontext.crossing import Followed, follow_heads
from saddles.incontext.heads import Heads
from saddles.incontext.simulate import Args, OnPrompts, observe, separate_matrix
from saddles.incontext.task import Prompts
from saddles.solvers import methods
from saddles.solvers.dynamics import Dynamics, Path
from saddles.solvers.ode import SAVED_TIMES


@arguments_explained
@dataclass(frozen=True)
class GradientFlow(methods.GradientFlow):
    """Gradient flow θ' = −∇L(θ) of the exact loss.

    The plateaus of separate heads are crossed in one go, however long, and learned heads are frozen while they rest: a
    start of 1e-16 costs less than one of 1e-4. Without times, such a run is saved at the end of every step: close where
    something happens, far apart on plateaus.

    Args:
        until: gradient time to stop at; None runs until the model has converged or `max_steps` are taken.
        rtol: relative error per step.
        stiff: use an implicit solver (not for separate heads).
        max_steps: most solver steps in all.
        cross: False steps through plateaus and freezes nothing.
    """

    cross: bool = True

    def horizon(self, dynamics: Dynamics) -> tuple[np.ndarray, Status]:
        """Evenly until the end, or until it has converged."""
        # Separate heads without an end are followed to learn it: the search of the base class would step through their
        # plateaus.
        if not _separate(dynamics) or self.until is not None:
            return super().horizon(dynamics)
        followed = self._heads(_frame(dynamics.args, dynamics.start), dynamics, None)
        return np.linspace(0.0, followed.times[-1], SAVED_TIMES), followed.status

    def follow(self, dynamics: Dynamics[Any, Any], times: np.ndarray | None = None) -> Path:
        """Integrate from the start and observe at `times`."""
        if not _separate(dynamics) or self.stiff:
            return super().follow(dynamics, times)
        heads = _frame(dynamics.args, dynamics.start)
        followed = self._heads(heads, dynamics, times)
        count, kind = len(followed.states), dynamics.start[0].dtype
        # One program for many numbers of rows: up to the next power of two the last row is repeated.
        states = followed.states + followed.states[-1:] * ((1 << (count - 1).bit_length()) - count)
        weights = tuple(jnp.asarray(part, dtype=kind) for part in _from_frame(dynamics.args, heads, np.stack(states)))
        saved = {name: np.asarray(rows)[:count] for name, rows in _seen(weights, dynamics.args).items()}
        if times is None:
            saved["crossing"] = np.array(followed.crossings).reshape(-1, 2)
        return Path(
            np.array(followed.times), saved, jax.tree.map(lambda part: part[-1], weights), followed.status,
            wall_time=followed.wall_time, gradient_evaluations=heads.evaluations,
        )  # fmt: skip

    def _heads(self, heads: Heads, dynamics: Dynamics[Any, Args], times: np.ndarray | None) -> Followed:
        until = self.until if times is None else float(times[-1])
        return follow_heads(
            heads, _to_frame(dynamics.args, dynamics.start), until=until, times=times, goal=float(dynamics.args.goal),
            rtol=self.rtol, max_steps=self.max_steps, cross=self.cross,
        )  # fmt: skip


def _separate(dynamics: Dynamics) -> bool:
    return isinstance(dynamics.args, Args) and dynamics.args.matrix is separate_matrix


@eqx.filter_jit
def _seen(weights: tuple[Array, ...], args: Args) -> dict[str, Array]:
    return jax.lax.map(lambda state: observe(state, args), weights)


def _eigen(args: Args) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(np.asarray(args.cost.covariance, dtype=float))
    return values[::-1].copy(), vectors[:, ::-1]


def _frame(args: Args, start: tuple[Array, ...]) -> Heads:
    values, vectors = _eigen(args)
    moment = np.einsum("di,de,ei->i", vectors, np.asarray(args.cost.moment, dtype=float), vectors)
    return Heads(values, moment, start[1].shape[0], start[1].shape[2])


def _to_frame(args: Args, start: tuple[Array, ...]) -> np.ndarray:
    _, vectors = _eigen(args)
    value, *rest = (np.asarray(part, dtype=float) for part in start)
    return np.concatenate([value, *(np.einsum("hdr,di->hri", part, vectors).ravel() for part in rest)])


def _from_frame(args: Args, heads: Heads, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    _, vectors = _eigen(args)
    shape = (-1, 2, heads.heads, heads.rank, len(vectors))
    parts = np.einsum("tphri,di->pthdr", rows[:, heads.heads :].reshape(shape), vectors)
    return rows[:, : heads.heads], *parts


@arguments_explained
@dataclass(frozen=True)
class PromptDescent(methods.GradientDescent):
    """Stochastic gradient descent on prompts that are drawn anew in every step.

    `loss` on the trajectory is still the exact one over all prompts.

    Args:
        rate: learning rate; `time` on the trajectory is rate × step.
        steps: how many steps.
        save_every: save the start, every so many steps, and the last.
        batch: prompts in a step.
    """

    batch: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise SaddlesError.must_be("batch", "at least 1", self.batch)

    def follow(self, dynamics: Dynamics[Any, Any], times: np.ndarray | None = None) -> Path:
        """Take the steps and observe at those nearest to `times`."""
        if not isinstance(dynamics.args, OnPrompts):
            raise SaddlesError(
                "PromptDescent trains Merged, Separate, Wide and Softmax; use GradientDescent for other models."
            )
        wrapped = Dynamics(
            (dynamics.start, dynamics.args.key), dynamics.args, dynamics.slope, _Inner(dynamics.observe),
            title=f"descent on {self.batch} prompts a step",
        )  # fmt: skip
        path = self.repeat(_PromptStep(self.batch), wrapped, times)
        return Path(path.times, path.saved, path.state[0], path.status, path.steps, path.wall_time,
                    path.gradient_evaluations)  # fmt: skip


class _Inner(eqx.Module):
    observe: Any = eqx.field(static=True)

    def __call__(self, state: Any, args: OnPrompts) -> dict[str, Array]:  # state: (weights, key)
        return self.observe(state[0], args)


class _PromptStep(eqx.Module):
    batch: int = eqx.field(static=True)

    def __call__(self, state: Any, args: tuple[OnPrompts, Array]) -> Any:  # state: as above
        (weights, key), (own, rate) = state, args
        key, fresh = jax.random.split(key)
        prompts = _drawn(fresh, own, self.batch)

        def loss(trial: Any) -> Array:
            return jnp.mean((prompts.answer - own.answer(trial, prompts)) ** 2)

        moved = jax.tree.map(lambda weight, slope: weight - rate * slope, weights, jax.grad(loss)(weights))
        return moved, key


def _drawn(key: Array, args: OnPrompts, batch: int) -> Prompts:
    """Fresh prompts."""
    pairs, ask, task = jax.random.split(key, 3)
    dim, kind = args.root.shape[0], args.root.dtype
    inputs = jax.random.normal(pairs, (batch, args.prompt, dim), kind) @ args.root.T
    query = jax.random.normal(ask, (batch, dim), kind) @ args.root.T
    weights = jax.random.normal(task, (batch, dim), kind)
    outputs = jnp.einsum("pnd,pd->pn", inputs, weights)
    return Prompts(inputs, outputs, query, jnp.sum(query * weights, axis=1))
