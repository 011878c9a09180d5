"""Training of the networks of this lab: the exact flow at any initial scale, and descent."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from saddles.core.trajectory import Trajectory
from saddles.core.validation import check_keep, check_times
from saddles.diagonal.method import Descent, Flow
from saddles.diagonal.model import FullHead, Network
from saddles.diagonal.observe import KEEPABLE, to_trajectory
from saddles.diagonal.risk import Mean, mean_of, risk_of
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.solvers.descent import iterate
from saddles.solvers.log_scale import LogScale
from saddles.solvers.ode import SAVED_TIMES, from_zero, solve
from saddles.solvers.plateau import follow

REST = 1e-3
"""A flow without an end runs until the forces have fallen to this part of the first."""


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
    """Train a network by `Flow` or `Descent`; `times` are rescaled, t / log(1/α).

    A flow of a `Network` without times is saved at the end of every solver step: close where
    something happens, far apart on plateaus. Its variables are `beta` (time, coordinate), `loss`,
    and `log_scale` (time, coordinate) = log_α|u+v|, the b of Algorithm 1. A `FullHead` has
    `singular_value` (time, family, mode) of W_K W_Qᵀ and W_V W_Oᵀ.

    Kept on request: `weights` (u and v), `crossings` (plateaus crossed: from, to, stated error).
    """
    kept, asked = check_keep(keep, KEEPABLE), check_times(times)
    if not isinstance(method, Flow | Descent):
        raise SaddlesError.about(f"{type(method).__name__} came as a method", "Flow or Descent is run", "use one")
    with on_device(device):
        if isinstance(model, FullHead):
            return _full(model, task, method, asked, seed, precision)
        if isinstance(method, Flow):
            return _flow(model, task, method, asked, seed, kept, precision)
        return _descent(model, task, method, asked, seed, kept, precision)


def _flow(
    model: Network, task: Any, method: Flow, asked: Any, seed: int, kept: tuple[str, ...], precision: str
) -> Trajectory:
    risk = risk_of(model, task, precision)
    u, v = model.start(seed)
    coordinates = LogScale.from_weights(u, v, method.log_alpha, model.powers)
    scale = -method.log_alpha
    first = float(np.abs(risk.force(np.zeros(model.coordinates))).max())
    if method.until is None and asked is None and first == 0:
        raise SaddlesError.about(
            "a loss without any slope at β = 0 came", "a flow to rest needs one", "give `until`, or check the task"
        )
    end = method.until if method.until is not None else 1e4 / max(first, 1e-300) if asked is None else asked[-1]
    path = follow(
        risk.force,
        risk.columns,
        coordinates,
        end * scale,
        times=None if asked is None else asked * scale,
        tolerance=method.tolerance,
        max_steps=method.max_steps,
        cross=method.cross,
        rest=REST * first if method.until is None and asked is None else 0.0,
        title=f"flow from α = 1e{method.log_alpha / np.log(10):.4g}",
    )
    beta = coordinates.beta(path.shifts)
    variables: dict[str, Any] = {
        "beta": (("time", "coordinate"), beta),
        "loss": (("time",), risk.losses(beta)),
        "log_scale": (("time", "coordinate"), (coordinates.log_p + path.shifts) / method.log_alpha),
    }
    if "weights" in kept:
        variables |= dict(
            zip("uv", ((("time", "coordinate"), w) for w in coordinates.weights(path.shifts)), strict=True)
        )
    if "crossings" in kept:
        variables["crossings"] = (("crossing", "fact"), path.crossings / np.array([scale, scale, 1.0]))
    return to_trajectory(
        variables,
        path.times / scale,
        model,
        task,
        log_alpha=method.log_alpha,
        coords={"fact": ["from", "to", "error"]} if "crossings" in kept else {},
        kind="simulated",
        method=method,
        seed=seed,
        status=str(path.status),
        wall_time=path.wall_time,
        gradient_evaluations=risk.counts.gradients,
        hessian_products=risk.counts.products,
        solver_steps=path.steps,
        plateaus_crossed=len(path.crossings),
        stated_crossing_error=float(path.crossings[:, 2].sum()),
    )


def product_step(state: Any, args: Any) -> Any:
    """One simultaneous step u += η v⊙g, v += η u⊙g, with g = −∂L/∂β on this step's samples.

    It maps u²−v² to (u²−v²)(1 − η²g²), exactly.
    """
    (u, v), count = state
    mean, rate, batches = args
    force = -jax.grad(lambda beta: _on_batch(mean, beta, batches, count))(u * v)
    return (u + rate * v * force, v + rate * u * force), count + 1


def plain_step(state: Any, args: Any) -> Any:
    """One step of gradient descent in all weights."""
    weights, count = state
    mean, rate, batches = args
    return weights - rate * jax.grad(lambda w: _on_batch(mean, w, batches, count))(weights), count + 1


def _on_batch(mean: Mean, parameters: Any, batches: Any, count: Any) -> Any:
    if batches is None:
        return mean(parameters)
    chosen = batches[count]
    return mean.on(parameters, mean.inputs[chosen], mean.targets[chosen])


def _batches(method: Descent, samples: int, seed: int) -> Any:
    if method.batch is None:
        return None
    return jnp.asarray(np.random.default_rng([seed, 36]).integers(samples, size=(method.steps, method.batch)))


def _see_product(state: Any, args: Any) -> dict[str, Any]:
    (u, v), _ = state
    return {"beta": u * v, "u": u, "v": v, "loss": args[0](u * v)}


def _descent(
    model: Network, task: Any, method: Descent, asked: Any, seed: int, kept: tuple[str, ...], precision: str
) -> Trajectory:
    risk = risk_of(model, task, precision)
    scale = np.exp(method.log_alpha * model.powers)
    u, v = (jnp.asarray(scale * part, dtype=precision) for part in model.start(seed))
    args = (risk.mean, jnp.asarray(method.rate, dtype=precision), _batches(method, len(task.inputs), seed))
    saved, facts = _iterate(product_step, ((u, v), jnp.asarray(0)), method, asked, args, _see_product)
    wanted = ("beta", "u", "v") if "weights" in kept else ("beta",)
    variables: dict[str, Any] = {name: (("time", "coordinate"), saved[name]) for name in wanted}
    variables["loss"] = (("time",), saved["loss"])
    return to_trajectory(variables, facts.pop("clock"), model, task, log_alpha=method.log_alpha, seed=seed, **facts)


def _iterate(step: Any, start: Any, method: Descent, asked: Any, args: Any, see: Any) -> tuple[dict[str, Any], Any]:
    steps, stride, wanted = method.plain.schedule(None if asked is None else asked * -method.log_alpha)
    done = iterate(step, start, steps, args=args, observe=see, guard="loss", save_every=stride, title="descent")
    chosen = np.isin(done.steps, wanted)
    facts = {
        "clock": method.rate * done.steps[chosen] / -method.log_alpha,
        "coords": {"step": ("time", done.steps[chosen])},
        "kind": "simulated",
        "method": method,
        "status": done.status,
        "wall_time": done.wall_time,
        "gradient_evaluations": int(done.steps[-1]),
    }
    return {name: values[chosen] for name, values in done.saved.items()}, facts


def _spectra(weights: Any, mean: Mean) -> dict[str, Any]:
    key, query, value, output = weights
    products = jnp.stack([key @ query.T, value @ output.T])
    return {"singular_value": jnp.linalg.svd(products, compute_uv=False), "loss": mean(weights)}


def _see_full(state: Any, args: Any) -> dict[str, Any]:
    return _spectra(state[0], args[0])


def _full_field(t: Any, weights: Any, mean: Mean) -> Any:
    return -jax.grad(lambda w: mean(w))(weights)


def _full_observe(t: Any, weights: Any, mean: Mean) -> dict[str, Any]:
    return _spectra(weights, mean)


def _full(model: FullHead, task: Any, method: Any, asked: Any, seed: int, precision: str) -> Trajectory:
    mean = mean_of(model, task, precision)
    if method.log_alpha < -300:
        raise SaddlesError.about(
            f"log_alpha={method.log_alpha!r} came", "a full head is held as ordinary numbers", "use at least -300"
        )
    start = jnp.asarray(np.exp(method.log_alpha) * model.start(seed), dtype=precision)
    if isinstance(method, Descent):
        args = (mean, jnp.asarray(method.rate, dtype=precision), _batches(method, len(task.inputs), seed))
        saved, facts = _iterate(plain_step, (start, jnp.asarray(0)), method, asked, args, _see_full)
    else:
        saved, facts = _full_flow(method, start, mean, asked)
    variables = {
        "singular_value": (("time", "family", "mode"), saved["singular_value"]),
        "loss": (("time",), saved["loss"]),
    }
    facts["coords"] |= {"family": ["key_query", "value_output"], "mode": np.arange(model.dim)}
    return to_trajectory(variables, facts.pop("clock"), model, task, log_alpha=method.log_alpha, seed=seed, **facts)


def _full_flow(method: Flow, start: Any, mean: Mean, asked: np.ndarray | None) -> tuple[dict[str, Any], Any]:
    if asked is None:
        if method.until is None:
            raise SaddlesError.about("a full head without an end came", "it has no known stages", "give `until`")
        asked = np.linspace(0.0, method.until, SAVED_TIMES)
    grid, added = from_zero(asked)
    found = solve(
        _full_field, start, grid * -method.log_alpha, args=mean, observe=_full_observe, rtol=method.tolerance,
        atol=method.tolerance * float(jnp.abs(start).mean()), max_steps=method.max_steps, title="full head",
    )  # fmt: skip
    facts = {
        "clock": found.times[added:] / -method.log_alpha,
        "coords": {},
        "kind": "simulated",
        "method": method,
        "status": found.status,
        "wall_time": found.wall_time,
        "gradient_evaluations": found.evaluations,
    }
    return {name: values[added:] for name, values in found.saved.items()}, facts
