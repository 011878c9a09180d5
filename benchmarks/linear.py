"""The linear lab against a plain wide network."""

import time

import jax
import numpy as np

from benchmarks.timing import best_of, product_rate
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, find
from saddles.linear.experiments.scaling import network, rate, width
from saddles.linear.model import TwoLayer
from saddles.linear.observe import observer_of
from saddles.linear.simulate import descend
from saddles.linear.task import Denoising
from saddles.solvers.methods import GradientDescent

DIM, GAMMAS = 200, (2.25, -1.85)


def wide_step(first: np.ndarray, second: np.ndarray, observed: np.ndarray, pace: float) -> None:
    """One plain step of gradient descent on the weights themselves, in place."""
    slope = 2 * (second @ first - observed) / observed.size
    change = second.T @ slope
    second -= pace * (slope @ first.T)
    first -= pace * change


@jax.jit
def wide_jax(first: jax.Array, second: jax.Array, observed: jax.Array, pace: float) -> tuple[jax.Array, jax.Array]:
    """The same step in JAX, compiled."""
    slope = 2 * (second @ first - observed) / observed.size
    return first - pace * second.T @ slope, second - pace * slope @ first.T


def reduced_seconds(model: TwoLayer, task: Denoising, pace: float, steps: int = 200) -> float:
    """Seconds a step of the reduced network."""
    observer = observer_of(task, (), 1, "float64", ("singular_value",))
    start = jax.device_put(model.start(task, 0))
    many = jax.jit(lambda z: jax.lax.fori_loop(0, steps, lambda i, s: descend(s, (observer, pace)), z))
    return best_of(lambda: jax.block_until_ready(many(start))) / steps


def one_step() -> None:
    task = Denoising(DIM, 5, seed=1)
    model, pace = network(DIM, *GAMMAS), rate(DIM, *GAMMAS, task.target, 50.0)
    hidden = width(DIM, GAMMAS[0])
    draw = np.random.default_rng(0)
    first, second = (np.sqrt(DIM ** GAMMAS[1]) * draw.normal(size=s) for s in ((hidden, DIM), (DIM, hidden)))
    works = {
        "reduced": lambda: reduced_seconds(model, task, pace),
        "JAX": lambda: best_of(lambda: jax.block_until_ready(wide_jax(first, second, task.observed, pace)), 2),
        "NumPy": lambda: best_of(lambda: wide_step(first, second, task.observed, pace), 2),
    }
    rounds = [{name: work() for name, work in works.items()} for _ in range(3)]
    wide = {name: min(times[name] for times in rounds) for name in works}
    reduced = wide.pop("reduced")
    print(f"one step, d = {DIM}, w = {hidden}, float64: reduced {1e3 * reduced:.2f} ms")
    for name, plain in wide.items():
        print(f"  wide network in {name}: {1e3 * plain:.0f} ms, {plain / reduced:.0f} times as long")
    operations, ceiling = 12 * DIM**3, product_rate()
    floor = operations / ceiling
    print(f"  floor: 12 d³ = {operations / 1e6:.0f} million operations, {1e3 * floor:.2f} ms at the")
    print(f"  {ceiling / 1e9:.0f} GFLOP/s of a large product here; the step takes {reduced / floor:.1f} times that")


def width_is_free() -> None:
    task = Denoising(DIM, 5, seed=1)
    print(f"cost against width, d = {DIM}, seconds of a simulated run of 200 steps")
    method = GradientDescent(100.0, 200, 200)
    models = [TwoLayer(hidden, 1e-2 / hidden) for hidden in (3 * DIM, 10**6, 10**9, 10**12)]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(21):
        for model, seen in zip(models, times, strict=True):
            began = time.perf_counter()
            simulate(model, task, method, keep=(), skip=("singular_value",))
            seen.append(time.perf_counter() - began)
    typical = [float(np.median(seen[1:])) for seen in times]
    for model, seconds in zip(models, typical, strict=True):
        print(f"  w = {model.width:.0e}: {seconds:.3f} s, {seconds / typical[0]:.2f} of w = 3d (medians, interleaved)")


def diagram(full: bool) -> None:
    size = "paper" if full else "laptop"
    row = find("linear/figure-2")
    began = time.perf_counter()
    made = row.load().run(row.settings(size), Context(size=size))
    seconds = time.perf_counter() - began
    cells, steps = made["steps"].size, int(made["steps"].sum())
    print(f"phase diagram, size {size}: {cells} cells, {steps} steps of descent, {seconds:.0f} s")


def main(full: bool) -> None:
    one_step()
    width_is_free()
    diagram(full)
