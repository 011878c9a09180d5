"""The linear lab against a plain wide network."""

import time

import jax
import numpy as np

from benchmarks.timing import best_of, product_rate
from saddles.core.methods import GradientDescent
from saddles.core.verbs import simulate
from saddles.linear.experiments.scaling import network, rate, width
from saddles.linear.model import TwoLayer
from saddles.linear.simulate import descend
from saddles.linear.task import Denoising
from saddles.linear.watch import watch

DIM, GAMMAS = 200, (2.25, -1.85)


def wide_step(first: np.ndarray, second: np.ndarray, observed: np.ndarray, pace: float) -> None:
    """One plain step of gradient descent on the weights themselves, in place."""
    slope = 2 * (second @ first - observed) / observed.size
    change = second.T @ slope
    second -= pace * (slope @ first.T)
    first -= pace * change


def reduced_seconds(model: TwoLayer, task: Denoising, pace: float, steps: int = 200) -> float:
    """Seconds a step of the reduced network."""
    observer = watch(task, ("errors",), 1, "float64")
    start = jax.device_put(model.start(task.shape, 0))
    many = jax.jit(lambda z: jax.lax.fori_loop(0, steps, lambda i, s: descend(s, (observer, pace)), z))
    return best_of(lambda: jax.block_until_ready(many(start))) / steps


def one_step() -> None:
    task = Denoising(DIM, 5, seed=1)
    model, pace = network(DIM, *GAMMAS), rate(DIM, *GAMMAS, task.target, 50.0)
    hidden = width(DIM, GAMMAS[0])
    draw = np.random.default_rng(0)
    first, second = (np.sqrt(DIM ** GAMMAS[1]) * draw.normal(size=s) for s in ((hidden, DIM), (DIM, hidden)))
    plain = best_of(lambda: wide_step(first, second, task.observed, pace), 3)
    reduced = reduced_seconds(model, task, pace)
    print(f"one step, d = {DIM}, w = {hidden}, float64")
    print(f"  wide network {1e3 * plain:.0f} ms, reduced {1e3 * reduced:.2f} ms: {plain / reduced:.0f} times faster")
    operations, ceiling = 12 * DIM**3, product_rate()
    print(f"  floor: 12 d³ = {operations / 1e6:.0f} million operations, {1e3 * operations / ceiling:.2f} ms at the")
    print(
        f"  {ceiling / 1e9:.0f} GFLOP/s of a large product here: the step takes {reduced * ceiling / operations:.1f} times that"
    )


def width_is_free() -> None:
    task = Denoising(DIM, 5, seed=1)
    print(f"cost against width, d = {DIM}, seconds of a simulated run of 200 steps")
    for hidden in (3 * DIM, 10**6, 10**9, 10**12):
        model = TwoLayer(hidden, 1e-2 / hidden)
        method = GradientDescent(100.0, 200, 200)
        seconds = best_of(lambda m=model, g=method: simulate(m, task, g, keep=("errors",)), 7)
        reference = seconds if hidden == 3 * DIM else reference  # noqa: F821
        print(f"  w = {hidden:.0e}: {seconds:.3f} s, {seconds / reference:.2f} of w = 3d")


def diagram(full: bool) -> None:
    from saddles.core.experiment import Context, find

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
