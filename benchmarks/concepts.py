"""Speeds of the concepts lab.

    python -m benchmarks concepts            10,000 flows of three concepts, descents counted
    python -m benchmarks concepts --full     and the runs of figures 2, 11 and 12 against a plain PyTorch loop

Times of the program include compilation. The loop is what one would write first: a module, an optimiser, shuffled
batches; the cost of a run depends on shapes alone, so one run of each kind is timed and counted as often as it occurs.
Seconds on the clock are followed by those of the processors, which tell a busy machine from a slow program.
"""

import importlib
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from saddles.concepts import MLP, SGD, Batch, Identity, flow_many, train
from saddles.concepts.experiments.orders import DIVERSITY, SIGNAL, Case
from saddles.concepts.experiments.searches import clock, draw
from saddles.concepts.observe import point_loss
from saddles.core.trajectory import make_trajectory
from saddles.measures import descents

EPOCHS, SAMPLES, BATCH = 40, 5000, 128


def cases() -> list[tuple[str, MLP, SGD, list[Identity]]]:
    """(name, network, method, tasks) of figures 2a and 2b, 2c, 11 and 12: 26 runs."""

    def tasks(settings: Sequence[Case], dim: int = 64) -> list[Identity]:
        return [Identity(mu, sigma, dim=dim, samples=SAMPLES, rotate=True) for _, mu, sigma in settings]

    usual, detour = [*SIGNAL, *DIVERSITY], [("signal", (2.0, 4.0), (0.05, 0.05))]
    return [
        ("2a, 2b", MLP(), SGD(0.1, BATCH, EPOCHS), tasks(usual)),
        ("2c high", MLP((64,) * 3), SGD(0.1, BATCH, EPOCHS, "mean"), tasks(detour)),
        ("2c low", MLP((4,) * 3), SGD(0.01, BATCH, EPOCHS, "mean"), tasks(detour, 2)),
        ("11", MLP((64,)), SGD(0.1, BATCH, EPOCHS), tasks(usual)),
        ("12", MLP((64,), "relu"), SGD(0.1, BATCH, EPOCHS), tasks(usual)),
    ]


def program(precision: str) -> np.ndarray:
    """Seconds (clock, processors) for all runs through the compiled program."""
    began = _now()
    for _, model, method, tasks in cases():
        train(Batch.grid(model, [[task] for task in tasks], [0], method), precision=precision)
    return _now() - began


def loop() -> np.ndarray:
    """Seconds (clock, processors) for the same runs in plain PyTorch, one after another.

    One thread: at these sizes a second one gains little, and on a busy machine the two wait for each other.
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    spent = np.zeros(2)
    for _, model, method, tasks in cases():
        began = _now()
        _plain(torch, model, method, tasks[0])
        spent += len(tasks) * (_now() - began)
    return spent


def _plain(torch: Any, model: MLP, method: SGD, task: Identity) -> list[Any]:
    layers: list[Any] = []
    for fan_in, fan_out in pairwise([task.size, *model.widths, task.size]):
        layers += [torch.nn.ReLU()] if layers and model.activation == "relu" else []
        layers.append(torch.nn.Linear(fan_in, fan_out, bias=False))
    network = torch.nn.Sequential(*layers)
    optimiser = torch.optim.SGD(network.parameters(), lr=method.rate)
    data = torch.tensor(task.data(), dtype=torch.float32)
    point = torch.tensor(task.test_point, dtype=torch.float32)
    outputs, step = [], 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(data))
        for first in range(0, len(data) - BATCH + 1, BATCH):
            inputs = data[order[first : first + BATCH]]
            gap = network(inputs) - inputs
            loss = (gap**2).mean() if method.loss == "mean" else (gap**2).sum() / (2 * BATCH)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 15 == 0:
                with torch.no_grad():
                    outputs.append(network(point))
            step += 1
    return outputs


def _now() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def seeds(count: int = 10_000) -> tuple[float, float]:
    """Seconds for many flows of figure 8 with descents counted, and the fraction with three."""
    task = Identity((1.0, 1.5, 2.2), 0.05)
    began = time.perf_counter()
    factors = draw("uniform", 3, 3, count, 0)
    times = clock(task, 1, factors, 400)
    flows, status = flow_many(factors, task.strengths, task.target, times, observe=("output",), rtol=1e-6)
    loss = make_trajectory(
        {"test_loss": (("time", "run"), point_loss(flows["output"], task.target))},
        times,
        unit="gradient time",
        status=status,
    )
    three = descents(loss["test_loss"])["count"].values >= 3
    return time.perf_counter() - began, float(np.mean(three))


def main(full: bool = False) -> None:
    seconds, share = seeds()
    print(f"10,000 flows of three concepts, descents counted: {seconds:.1f} s ({100 * share:.1f} % have three)")
    if not full:
        return
    count = sum(len(tasks) for *_, tasks in cases())
    plain = loop()
    print(f"{count} runs of figures 2, 11 and 12: plain PyTorch {plain[0]:.1f} s ({plain[1]:.1f} s of processors)")
    for precision in ("float32", "float64"):
        ours = program(precision)
        ratio = plain / ours
        print(
            f"  one program each, {precision}, with compilation: {ours[0]:.1f} s ({ours[1]:.1f}), "
            f"{ratio[0]:.1f} times faster ({ratio[1]:.1f})"
        )
