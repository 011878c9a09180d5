"""Training of the networks of this lab, as problems that a method moves (see `method.py`)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import FINISHED, Status
from saddles.core.trajectory import Trajectory, Variable
from saddles.core.validation import check_keep
from saddles.diagonal.method import CrossedPath, Products, SmallStart
from saddles.diagonal.observe import to_trajectory
from saddles.diagonal.risk import Mean, ProductNetwork, mean_of, risk_of
from saddles.diagonal.scale import refuse_tiny, scale_of
from saddles.diagonal.task import check_task
from saddles.solvers.dynamics import Path, check_method
from saddles.solvers.log_scale import LogScale

METHODS = "Flow or Descent"

Vector = Float[Array, " coordinate"]
Pair = tuple[Vector, Vector]
"""u and v."""
Matrices = Float[Array, "matrix dim inner"]
"""W_K, W_Q, W_V and W_O, stacked."""


# Networks h(x; u ⊙ v)


def product_slope(state: Pair, mean: Mean) -> Pair:
    """u' = v⊙g and v' = u⊙g with g = −∂L/∂β.

    A step of size η along it maps u²−v² to (u²−v²)(1 − η²g²), exactly.
    """
    return _along(state, jax.grad(mean)(state[0] * state[1]))


def product_slope_on(state: Pair, mean: Mean, chosen: Array) -> Pair:
    """The same with the gradient on chosen samples."""
    return _along(state, jax.grad(mean.on)(state[0] * state[1], chosen))


def _along(state: Pair, gradient: Vector) -> Pair:
    return -state[1] * gradient, -state[0] * gradient


def see_products(state: Pair, mean: Mean) -> dict[str, Array]:
    """What is saved of u and v."""
    u, v = state
    return {"beta": u * v, "u": u, "v": v, "loss": mean(u * v)}


def product_problem(
    model: ProductNetwork, task: object, method: object, seed: int, precision: str
) -> Products | SmallStart[Pair, Mean]:
    """The training problem in the coordinates that the method moves."""
    log_alpha = scale_of(model, method)
    risk = risk_of(model, check_task(task, model), precision)
    u, v = model.start(task, seed)
    if hasattr(method, "follow_products"):
        return Products(risk, LogScale.from_weights(u, v, log_alpha, model.powers), log_alpha)
    refuse_tiny(log_alpha * float(np.max(model.powers)), model, "Use Flow, which holds their logarithms.")
    size = np.exp(log_alpha * model.powers)
    start = jnp.asarray(size * u, dtype=precision), jnp.asarray(size * v, dtype=precision)
    return SmallStart(
        start, risk.mean, product_slope, see_products, title="descent", unit=-log_alpha, slope_on=product_slope_on,
        samples=len(risk.mean.inputs), seed=seed,
    )  # fmt: skip


def train_products(
    model: ProductNetwork,
    task: object,
    method: object,
    times: np.ndarray | None,
    seed: int,
    keep: Sequence[str] | None,
    precision: str,
) -> Trajectory:
    """Train a network h(x; u ⊙ v) and label what was saved."""
    move = getattr(method, "follow_products", None) or check_method(method, model, METHODS).follow
    kept = check_keep(keep, ("weights", *getattr(method, "keepable", ())))
    problem = product_problem(model, task, method, seed, precision)
    path = move(problem, None if times is None else times * problem.unit)
    names = ["beta", *(["log_scale"] if "log_scale" in path.saved else []), *("uv" if "weights" in kept else "")]
    variables: dict[str, Variable] = {name: (("time", "coordinate"), path.saved[name]) for name in names}
    coords: dict[str, object] = {}
    if "crossings" in kept and isinstance(path, CrossedPath):
        variables["crossings"] = (("crossing", "fact"), path.crossings / np.array([problem.unit, problem.unit, 1.0]))
        coords["fact"] = ["from", "to", "error"]
    return _labelled(variables, path, times, model, task, method, seed, problem.unit, coords)


# The head with full matrices


def full_slope(weights: Matrices, mean: Mean) -> Matrices:
    """−∇L in all four matrices."""
    return -jax.grad(mean)(weights)


def full_slope_on(weights: Matrices, mean: Mean, chosen: Array) -> Matrices:
    """The same on chosen samples."""
    return -jax.grad(mean.on)(weights, chosen)


def see_full(weights: Matrices, mean: Mean) -> dict[str, Array]:
    """Singular values of W_K W_Qᵀ and W_V W_Oᵀ, and the loss."""
    key, query, value, output = weights
    products = jnp.stack([key @ query.T, value @ output.T])
    return {"singular_value": jnp.linalg.svd(products, compute_uv=False), "loss": mean(weights)}


def full_problem(
    model: object, weights: np.ndarray, task: object, method: object, seed: int, precision: str
) -> SmallStart[Matrices, Mean]:
    """The training problem of a full head whose initial matrices are α times the given ones."""
    log_alpha = scale_of(model, method)
    refuse_tiny(log_alpha, model, "Use a larger α.")
    mean = mean_of(model, check_task(task, model), precision)
    return SmallStart(
        jnp.asarray(np.exp(log_alpha) * weights, dtype=precision), mean, full_slope, see_full, title="full head",
        unit=-log_alpha, slope_on=full_slope_on, samples=len(mean.inputs), seed=seed,
    )  # fmt: skip


def train_full(
    model: object,
    weights: np.ndarray,
    task: object,
    method: object,
    times: np.ndarray | None,
    seed: int,
    precision: str,
) -> Trajectory:
    """Train a full head and label its singular values."""
    move = check_method(method, model, METHODS).follow
    problem = full_problem(model, weights, task, method, seed, precision)
    path = move(problem, None if times is None else times * problem.unit)
    values = path.saved["singular_value"]
    variables: dict[str, Variable] = {"singular_value": (("time", "family", "mode"), values)}
    coords: dict[str, object] = {"family": ["key_query", "value_output"], "mode": np.arange(values.shape[2])}
    return _labelled(variables, path, times, model, task, method, seed, problem.unit, coords)


# What both share


def common_clock(method: object, prepare: Callable[[], Products | SmallStart]) -> tuple[np.ndarray | None, Status]:
    """The rescaled times at which runs without `times` would be saved, as the method chooses them.

    Args:
        prepare: builds the training problem, where the method needs it.
    """
    horizon = getattr(method, "horizon", None)
    if horizon is None:
        return None, FINISHED
    problem = prepare()
    clock, status = horizon(problem)
    return None if clock is None else clock / problem.unit, status


def _labelled(
    variables: dict[str, Variable],
    path: Path,
    times: np.ndarray | None,
    model: object,
    task: object,
    method: object,
    seed: int,
    unit: float,
    coords: dict[str, object],
) -> Trajectory:
    """A trajectory on the rescaled clock, with gradient time beside it.

    Where `times` were given they are the clock, so that runs at several α share it; a method of steps has taken the
    nearest step, whose own time `gradient_time` tells. Otherwise the path's own times and steps are.
    """
    own, clock = coords | path.coords, path.times / unit
    if times is not None and len(times) == len(path.times):
        own, clock = coords, times
    variables["loss"] = (("time",), path.saved["loss"])
    variables["gradient_time"] = (("time",), path.times)
    return to_trajectory(
        variables, clock, model, task, coords=own, kind="simulated", method=method, seed=seed, log_alpha=-unit,
        **path.facts,
    )  # fmt: skip
