"""A small experiment for sweeps: it can be slow, fail, kill its process, and differ in shape from cell to cell.

Each cell that is begun adds a line to the file that GRID_LOG names.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from matplotlib.figure import Figure

from saddles.core.claim import check
from saddles.core.experiment import LARGEST, Experiment, Size, Within
from saddles.core.trajectory import make_trajectory


@dataclass(frozen=True)
class Settings:
    rate: Annotated[float, "how fast it decays", Within(0, LARGEST)] = 1.0
    points: Annotated[int, "instants that are saved"] = 4
    wait: Annotated[float, "seconds that a cell takes"] = 0.0
    trouble: Annotated[str, "none, error, once, die, grow or hang"] = "none"
    levels: Annotated[tuple[float, ...], "nothing depends on them"] = (1.0, 2.0)
    clock: Annotated[str, "same, or own: times that depend on the rate"] = "same"


def run(settings, context):
    log = os.environ.get("GRID_LOG")
    if log:
        with open(log, "a") as lines:
            lines.write(f"{os.getpid()} {settings.rate} {context.seed}\n")
    time.sleep(settings.wait)
    if settings.trouble == "error" or (settings.trouble == "once" and not os.environ.get("GRID_FIXED")):
        raise RuntimeError("it broke here")
    if settings.trouble == "hang":
        time.sleep(3600)
    if settings.trouble == "grow":
        kept = []
        for _ in range(40):  # 2 GB in all, slowly enough to be seen
            kept.append(np.ones(50_000_000 // 8))
            time.sleep(0.05)
    if settings.trouble == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    times = np.arange(settings.points, dtype=float)
    if settings.clock == "own":
        times = times * settings.rate
    draw = np.random.default_rng(context.seeds(2)).normal(size=(len(times), 2))
    return make_trajectory(
        {
            "value": (("time", "seed"), np.exp(-settings.rate * times)[:, None] * draw),
            "steps": ((), settings.points),
            "rate": (("seed",), np.full(2, settings.rate)),
            "late": (("time",), times > 1),
        },
        times,
        unit="s",
        coords={"seed": context.seeds(2), "family": "decay", "kind": ("seed", ["a", "b"])},
    )


def claims(trajectory, size):
    words = {"paper": "nobody", "where": "here", "size": size, "sizes": ("tiny",)}
    rate = float(trajectory["rate"][0])
    return [
        check("The rate is small", values=rate, relation="<=", threshold=1.5, **words),
        check("Never asked", values=rate, relation="<=", threshold=0.0, **words, not_applicable="for the test"),
    ]


def figure(trajectory):
    return Figure()


ROW = Experiment(
    "toy/grid",
    "A decay on a grid",
    "nobody",
    sizes={"tiny": Size(1, Settings())},
    default="tiny",
    run=run,
    claims=claims,
    figure=figure,
)


def who_and_when(task):
    """In place of a cell on a Dask worker: its name, and from when to when."""
    from distributed import get_worker

    began = time.monotonic()
    time.sleep(0.1)
    return [str(get_worker().name), began, time.monotonic()]
