"""A small experiment of a user's own, in a module of its own."""

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from matplotlib.figure import Figure

from saddles.core.claim import check
from saddles.core.experiment import Experiment, Size
from saddles.core.trajectory import make_trajectory


@dataclass(frozen=True)
class Settings:
    points: Annotated[int, "instants"]
    rate: Annotated[float, "of the decay"] = 1.0
    name: Annotated[str, "a word"] = "plain"
    levels: Annotated[tuple[float, ...], "numbers"] = (1.0, 2.0)
    fast: Annotated[bool, "a switch"] = True


calls: deque[str] = deque()  # not a list, whose contents count as code of `run`
trouble: deque[BaseException] = deque()


def run(settings, context):
    times = np.linspace(0, 1, settings.points)
    pieces = []
    for seed in context.seeds(3):
        if len(pieces) == 2 and trouble:
            raise trouble.pop()

        def make(seed=seed):
            calls.append(str(seed))
            return make_trajectory({"value": (("time",), np.exp(-settings.rate * times) * seed)}, times, unit="t")

        pieces.append(context.part(f"seed-{seed}", make)["value"].values)
    return make_trajectory({"value": (("time", "seed"), np.stack(pieces, axis=1))}, times, unit="t")


def claims(trajectory, size):
    fall = (trajectory["value"].isel(time=-1) / trajectory["value"].isel(time=0)).values
    words = {"paper": "nobody", "where": "here", "size": size, "sizes": ("tiny", "laptop")}
    return [check("It decays: end over start", values=fall, relation="<=", threshold=0.5, **words)]


def figure(trajectory):
    drawing = Figure()
    drawing.subplots().plot(trajectory["time"], trajectory["value"])
    return drawing


ROW = Experiment(
    "toy/decay",
    "Exponential decay",
    "nobody",
    sizes={"tiny": Size(1, Settings(4)), "laptop": Size(1, Settings(9))},
    run=run,
    claims=claims,
    figure=figure,
    default="tiny",
)
