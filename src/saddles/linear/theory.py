"""Theories of the two-layer linear network (Tu, Aranguri, Jacot: Mixed Dynamics).

All of them start from the network's own initial matrix A(0) and from σ²w, and know
nothing else of its weights. Time is gradient time: the paper's t times its η.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import saddles.runtime.float64  # noqa: F401
from saddles.core.trajectory import FINISHED, Trajectory
from saddles.errors import SaddlesError
from saddles.linear.layout import transposed
from saddles.linear.observe import Observer, check_finite, observer_of, to_trajectory
from saddles.linear.task import Correlated, Entrywise
from saddles.runtime.device import on_device
from saddles.solvers.descent import iterate
from saddles.solvers.methods import GradientDescent
from saddles.solvers.ode import SAVED_TIMES, from_zero, settle, solve

Rows = Float[Array, "stacked hidden"]
"""The factor as one stacked matrix: d_in rows for the inputs, then d_out for the outputs."""


@dataclass(frozen=True)
class SelfConsistent:
    """A' = −√(AAᵀ+σ⁴w²I) G − G √(AᵀA+σ⁴w²I), equation (1).

    One square root, at the start: the blocks C1, C2 of the flow stay on the manifold
    C1 = √(AᵀA+σ⁴w²I), C2 = √(AAᵀ+σ⁴w²I) if they begin there, so a factor of them is moved
    by matrix products alone.

    Args:
        descent: follow these discrete steps instead of the continuous flow, to stand
            beside a run of gradient descent with the same rate.
        rtol: relative error a step of the flow.
    """

    descent: GradientDescent | None = None
    rtol: float = 1e-9

    def factor(self, matrix: np.ndarray, threshold: float) -> np.ndarray:
        """The stacked factor of [[Ĉ1, Aᵀ], [A, Ĉ2]].

        A mode (s, u, v) gives the columns (v, u)·√((h+s)/2) and (v, −u)·√((h−s)/2) with
        h = √(s²+σ⁴w²); directions outside the smaller side have weight √(σ²w).
        """
        left, values, right = np.linalg.svd(matrix, full_matrices=True)
        rows, columns = matrix.shape
        modes = len(values)
        u, v = left[:, :modes], right[:modes].T
        height = np.hypot(values, threshold)
        plus = np.sqrt((height + values) / 2)
        minus = threshold / np.sqrt(2 * (height + values))
        rest = np.sqrt(threshold)
        blocks = [
            np.concatenate([v * plus, u * plus]),
            np.concatenate([v * minus, -u * minus]),
            np.concatenate([right[modes:].T * rest, np.zeros((rows, columns - modes))]),
            np.concatenate([np.zeros((columns, rows - modes)), left[:, modes:] * rest]),
        ]
        return np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class Balanced:
    """A' = −√(AAᵀ) G − G √(AᵀA): the limit σ²w ≪ s_min(A), section 1.5.

    Only the rank(A) directions that are there at the start can ever grow.
    """

    descent: GradientDescent | None = None
    rtol: float = 1e-9

    def factor(self, matrix: np.ndarray, threshold: float) -> np.ndarray:
        """The stacked factor (V√S, U√S) of the balanced network that represents A."""
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        there = values > np.finfo(float).eps * max(matrix.shape) * values[0]
        root = np.sqrt(values[there])
        return np.concatenate([right[there].T * root, left[:, there] * root])


@dataclass(frozen=True)
class Lazy:
    """A' = −2σ²w G: the limit σ²w ≫ s_max(A), section 1.4.

    In closed form for denoising, completion and regression; integrated for other costs.
    """

    descent: GradientDescent | None = None
    rtol: float = 1e-9


@dataclass(frozen=True)
class Aligned:
    """s_i' = (4/(d_in d_out)) √(s_i²+σ⁴w²) (s_i* − s_i) for a start aligned with the observation.

    With A* + E = U S* Vᵀ the modes start at s_i(0) = u_iᵀ A(0) v_i and never mix. In closed
    form: for x = e^θ, s = σ²w sinh θ, the equation is logistic in x. For `Denoising` only.
    `singular_value` are the s_i in the order of S*, with their sign.
    """


Theory = SelfConsistent | Balanced | Lazy | Aligned


def predict(
    model: Any,
    task: Any,
    theory: Theory,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Predict the run of a `TwoLayer` network from one of the theories of this module.

    Without times the flow is followed until ‖∇C‖_F has fallen to 1 % of its first value.
    """
    with on_device(device):
        inner, outer = model.start(task.shape, seed)
        matrix = outer @ inner.T
        threshold = model.threshold
        descent = getattr(theory, "descent", None)
        instants = (SAVED_TIMES if descent is None else len(descent.schedule()[2])) if times is None else len(times)
        observer = observer_of(task, keep, instants, precision)
        check_finite({"loss": observer.cost(jnp.asarray(matrix, dtype=precision))}, task)
        if isinstance(theory, SelfConsistent | Balanced):
            start = jnp.asarray(theory.factor(matrix, threshold), dtype=precision)
            moves = _Moves(_step_factor, _slope_factor, _see_factor)
            made = _follow(moves, start, observer, jnp.asarray(1.0), theory, times)
        elif isinstance(theory, Lazy):
            made = _lazy(jnp.asarray(matrix, dtype=precision), observer, threshold, theory, times)
        elif isinstance(theory, Aligned):
            made = _aligned(matrix, observer, threshold, times)
        else:
            raise SaddlesError.about(
                f"{type(theory).__name__} came as a theory",
                "SelfConsistent, Balanced, Lazy or Aligned is predicted",
                "use one of them",
            )
    saved, clock, facts = made
    return to_trajectory(saved, clock, model, task, kind="predicted", theory=theory, seed=seed, **facts)


@dataclass(frozen=True)
class _Moves:
    """A theory's dynamics: a discrete step, a slope, and what is seen of its state."""

    step: Any
    slope: Any
    see: Any


def _split(rows: Rows, observer: Observer) -> tuple[Array, Array]:
    return rows[: observer.columns], rows[observer.columns :]


def _pull(rows: Rows, observer: Observer) -> Rows:
    """[[0, Gᵀ], [G, 0]] L for the stacked factor L, with G at A = L_out L_inᵀ."""
    inner, outer = _split(rows, observer)
    gradient = observer.cost.gradient(outer @ transposed(inner))
    return jnp.concatenate([transposed(gradient) @ outer, gradient @ inner])


def _slope_factor(t: Any, rows: Rows, args: Any) -> Rows:
    return -_pull(rows, args[0])


def _step_factor(rows: Rows, args: Any) -> Rows:
    return rows - args[1] * _pull(rows, args[0])


def _see_factor(rows: Rows, args: Any) -> dict[str, Array]:
    return args[0].factor(*_split(rows, args[0]))


def _slope_matrix(t: Any, matrix: Array, args: Any) -> Array:
    return -args[2] * args[0].cost.gradient(matrix)


def _step_matrix(matrix: Array, args: Any) -> Array:
    return matrix - args[1] * args[2] * args[0].cost.gradient(matrix)


def _see_matrix(matrix: Array, args: Any) -> dict[str, Array]:
    return args[0].matrix(matrix)


class _See(eqx.Module):
    """`see` with the signature that the solver wants."""

    see: Any = eqx.field(static=True)

    def __call__(self, t: Any, state: Any, args: Any) -> dict[str, Array]:
        return self.see(state, args)


class _Fitted(eqx.Module):
    """‖∇C‖_F has fallen to 1 % of its first value."""

    gradient: Any
    whole: bool = eqx.field(static=True)

    def __call__(self, t: Any, state: Any, args: Any) -> Any:
        matrix = state if self.whole else _represented(state, args[0])
        return jnp.linalg.norm(args[0].cost.gradient(matrix)) <= 1e-2 * self.gradient


def _follow(moves: _Moves, start: Array, observer: Observer, speed: Array, theory: Any, times: Any) -> Any:
    """Follow a theory's state by discrete steps or by its flow."""
    if theory.descent is not None:
        steps, stride, asked = theory.descent.schedule(times)
        args = (observer, jnp.asarray(theory.descent.rate, dtype=start.dtype), speed)
        done = iterate(moves.step, start, steps, args=args, observe=moves.see, guard="loss", save_every=stride)
        chosen = np.isin(done.steps, asked)
        saved = {name: values[chosen] for name, values in done.saved.items()}
        facts = {
            "step": done.steps[chosen],
            "status": done.status,
            "wall_time": done.wall_time,
            "gradient_evaluations": int(done.steps[-1]),
        }
        return saved, theory.descent.rate * done.steps[chosen], facts
    args = (observer, None, speed)
    settled = True
    if times is None:
        end, settled = _rest(moves, start, args)
        times = np.linspace(0.0, end, SAVED_TIMES)
    clock, added = from_zero(times)
    found = solve(moves.slope, start, clock, args=args, observe=_See(moves.see), rtol=theory.rtol, title="theory")
    facts = {
        "status": found.status if settled else "stopped: not converged within the limit of steps",
        "wall_time": found.wall_time,
        "gradient_evaluations": found.evaluations,
    }
    return {name: values[added:] for name, values in found.saved.items()}, found.times[added:], facts


def _rest(moves: _Moves, start: Array, args: Any) -> tuple[float, bool]:
    whole = moves.see is _see_matrix
    matrix = start if whole else _represented(start, args[0])
    first = jnp.linalg.norm(args[0].cost.gradient(matrix))
    speed = jnp.linalg.norm(moves.slope(0.0, start, args)) / jnp.linalg.norm(start)
    return settle(moves.slope, start, _Fitted(first, whole), args=args, scale=float(1 / speed))


def _represented(rows: Rows, observer: Observer) -> Array:
    inner, outer = _split(rows, observer)
    return outer @ inner.T


def _lazy(matrix: Array, observer: Observer, threshold: float, theory: Lazy, times: Any) -> Any:
    speed = jnp.asarray(2 * threshold, dtype=matrix.dtype)
    closed = isinstance(observer.cost, Entrywise | Correlated) and theory.descent is None
    if not closed:
        return _follow(_Moves(_step_matrix, _slope_matrix, _see_matrix), matrix, observer, speed, theory, times)
    if times is None:
        end, _ = _rest(_Moves(_step_matrix, _slope_matrix, _see_matrix), matrix, (observer, None, speed))
        times = np.linspace(0.0, end, SAVED_TIMES)
    clock = jnp.asarray(np.asarray(times, dtype=float))
    return _seen(lambda t: _lazy_at(t, matrix, observer.cost, speed), clock, observer)


def _lazy_at(t: Any, matrix: Array, cost: Any, speed: Any) -> Array:
    """A(t) = Y + exp(−2σ²w t ∇²C)(A(0) − Y), where ∇²C acts on entries or on the inputs' eigenvectors."""
    gap = matrix - cost.observed
    if isinstance(cost, Entrywise):
        return cost.observed + jnp.exp(-2 * speed * cost.weight * t) * gap
    values, vectors = jnp.linalg.eigh(cost.covariance)
    decay = jnp.exp(-2 * speed * cost.scale * values * t)
    return cost.observed + ((gap @ vectors) * decay[None, :]) @ vectors.T


def _aligned(matrix: np.ndarray, observer: Observer, threshold: float, times: Any) -> Any:
    cost = observer.cost
    if not (isinstance(cost, Entrywise) and np.ndim(cost.weight) == 0):
        raise SaddlesError.about(
            "a task without one observed matrix came", "Aligned needs Denoising", "use SelfConsistent for this task"
        )
    left, target, right = jnp.linalg.svd(cost.observed, full_matrices=False)
    start = jnp.sum((left.T @ matrix) * right, axis=1)
    pace = 4 * cost.weight
    if times is None:
        slowest = jnp.hypot(target[-1], threshold)
        times = np.linspace(0.0, float(10 / (pace * slowest)), SAVED_TIMES)
    clock = jnp.asarray(np.asarray(times, dtype=float))

    def at(t: Any) -> Array:
        return (left * aligned_mode(t, start, target, threshold, pace)[None, :]) @ right

    saved, clock, facts = _seen(at, clock, observer)
    saved["singular_value"] = np.asarray(jax.vmap(lambda t: aligned_mode(t, start, target, threshold, pace))(clock))
    return saved, clock, facts


def aligned_mode(t: Any, start: Any, target: Any, threshold: float, pace: Any) -> Any:
    """Solve s' = pace √(s²+σ⁴w²) (s* − s) in closed form.

    With x = e^θ and s = σ²w sinh θ the equation reads x' = −½ pace σ²w (x − x₊)(x − x₋), so
    (x − x₋)/(x₊ − x) grows like exp(pace √(s*²+σ⁴w²) t); x₊ x₋ = −1.
    """
    height = jnp.hypot(target, threshold)
    top = (target + height) / threshold
    low = -1 / top
    x = jnp.where(start >= 0, (start + jnp.hypot(start, threshold)) / threshold,
                  threshold / (jnp.hypot(start, threshold) - start))  # fmt: skip
    decay = jnp.exp(-pace * height * t)
    gap = top - x
    there = ((x - low) * top + low * gap * decay) / ((x - low) + gap * decay)
    return threshold / 2 * (there - 1 / there)


def _seen(at: Any, clock: Array, observer: Observer) -> Any:
    saved = jax.lax.map(lambda t: observer.matrix(at(t)), clock)
    facts = {"status": FINISHED, "gradient_evaluations": 0}
    return {name: np.asarray(values) for name, values in saved.items()}, np.asarray(clock), facts
