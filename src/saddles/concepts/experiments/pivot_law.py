"""The pivot law over random tasks and starts: times of growth, and failure within a horizon.

μ uniform on [0.5, 3], σ on [0.05, 0.5], s of 2, 3 and 4, U(0) uniform on [0, 0.2] or Gaussian with 0.1 or 0.01; the
horizon uniform between half and one and a half times the median time at which a task is learned, so that
30 to 70 % of the instances fail.

Claims and their thresholds: `failure` is right in ≥ 97 % (whether anything is lost) and names exactly the lost
concepts in ≥ 95 %; the median relative error of the times is ≤ 5 %: the law neglects W(0) against 1, which is up
to 0.04 × d here, in a logarithm of 3 and more.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import concepts, figures
from saddles.concepts.experiments.paper import PAPER, sizes
from saddles.concepts.pivots import pivots
from saddles.core.claim import Claim, check
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, Variable, make_trajectory

CONCEPTS = (2, 3, 4)
SCALES = (0.0, 0.1, 0.01)
"""Scale of the Gaussian start; 0 stands for uniform on [0, 0.2]."""

END = 1.6
"""How long a flow is followed, in median times of learning; horizons are at most 1.5 of them."""

_DRAW = 42
"""Tag that keeps the draws of this experiment apart from others of the same seed."""


@dataclass(frozen=True)
class Settings:
    """How many random tasks and starts."""

    instances: Annotated[int, "random tasks, each with one start"]
    instants: Annotated[int, "saved instants of each flow", Within(2, LARGEST)] = 800


def run(settings: Settings, context: Context) -> Trajectory:
    """Predicted and measured times, all flows in one program, each on the clock of its own median time."""
    (seed,) = context.seeds(1)
    rng = np.random.default_rng([seed, _DRAW])
    count, most = settings.instances, max(CONCEPTS)
    numbers = rng.choice(CONCEPTS, count)
    real = np.arange(most) < numbers[:, None]
    mu, sigma = rng.uniform(0.5, 3, (count, most)), rng.uniform(0.05, 0.5, (count, most))
    a = np.where(real, sigma**2 + mu**2 / numbers[:, None], 0.0)
    scale = rng.choice(SCALES, count)[:, None, None]
    drawn = np.where(scale == 0, rng.uniform(0, 0.2, (count, most, most)), scale * rng.normal(size=(count, most, most)))
    factors = drawn * real[:, :, None] * real[:, None, :]
    weights = factors @ factors.swapaxes(1, 2)
    table = {name: np.full((count, most), np.nan) for name in ("greedy", "signal")}
    for s in CONCEPTS:
        here = numbers == s
        for order, values in table.items():
            values[here, :s] = pivots(weights[here], a[here, :s], order)[0]
    learned = np.nanmax(table["greedy"], axis=1)
    median = np.array([np.median(learned[numbers == s]) for s in numbers])
    times = np.linspace(0, END, settings.instants)
    # The flow of a on time t is that of a × median on t / median: one clock serves all tasks.
    flows, status = concepts.flow_many(factors, a * median[:, None], 0.0, times, observe=("major",), rtol=1e-6)
    measured = _halves(flows["major"], times) * median[:, None]
    variables: dict[str, Variable] = {
        "measured": (("time", "run", "coordinate"), np.where(real, measured, np.nan)[None]),
        "strength": (("run", "coordinate"), np.where(real, a, np.nan)),
        "horizon": (("run",), median * rng.uniform(0.5, 1.5, count)),
        "scale": (("run",), scale[:, 0, 0]),
        "concepts": (("run",), numbers),
    }
    variables |= {name: (("run", "coordinate"), values) for name, values in table.items()}
    return make_trajectory(
        variables,
        [0.0],
        unit="end of the run",
        lab="concepts",
        kind="simulated and predicted",
        status=status,
        coords={"coordinate": 1 + np.arange(most)},
    )


def _halves(major: np.ndarray, times: np.ndarray) -> np.ndarray:
    """When each entry passes ½, linear between instants; NaN where it does not."""
    up = major >= 0.5
    first = np.argmax(up, axis=0)
    high = np.take_along_axis(major, first[None], 0)[0]
    low = np.take_along_axis(major, np.maximum(first - 1, 0)[None], 0)[0]
    when = times[first] - times[1] * (high - 0.5) / np.where(high > low, high - low, 1.0)
    return np.where(up.any(axis=0), when, np.nan)


def verdicts(trajectory: Trajectory, law: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lost in the run, said to be lost, is a concept), each (run, coordinate)."""
    trajectory = trajectory.isel(time=0)
    real = trajectory["strength"].notnull().values
    horizon = trajectory["horizon"].values[:, None]
    measured, said = trajectory["measured"].values, trajectory[law].values
    return ~(measured <= horizon) & real, (said > horizon) & real, real


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the law."""
    lost, said, real = verdicts(trajectory, "greedy")
    fails = lost.any(axis=1)
    seen = trajectory["measured"].isel(time=0).values[real]
    error = np.abs(trajectory["greedy"].values[real] / seen - 1)
    numbers = trajectory["concepts"].values
    neighbour = np.arange(len(numbers))
    for s in CONCEPTS:  # a start of as many concepts
        neighbour[numbers == s] = np.roll(neighbour[numbers == s], 1)
    other = said[neighbour]
    other_error = np.abs(trajectory["greedy"].values[neighbour][real] / seen - 1)
    elsewhere = "the prediction for another start"
    judge = partial(check, paper=PAPER, where="pivot law, section E.3", size=size)
    return [
        judge("The sample is fair: distance of the fraction that fails from one half",
              values=abs(float(fails.mean()) - 0.5), relation="<=", threshold=0.2,
              against="it describes the sample"),
        judge("`failure` says whether a concept is lost within the horizon: fraction right",
              values=float((said.any(axis=1) == fails).mean()), relation=">=", threshold=0.97,
              null=float((other.any(axis=1) == fails).mean()), against=elsewhere),
        judge("It names exactly the lost concepts: fraction of instances",
              values=float((said == lost).all(axis=1).mean()), relation=">=", threshold=0.95,
              null=float((other == lost).all(axis=1).mean()), against=elsewhere),
        judge("The pivot law gives the times of growth: median relative error",
              values=float(np.nanmedian(error)), relation="<=", threshold=0.05,
              null=float(np.nanmedian(other_error)), against=elsewhere),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Predicted against measured times of growth."""
    return figures.concepts.pivot_law(trajectory)


EXPERIMENT = Experiment(
    "concepts/pivot-law",
    "When each concept grows, and which are lost, from the pivots of W(0)",
    PAPER,
    sizes=sizes(Size(5, Settings(60, 200)), Size(4, Settings(999)), Size(120, Settings(9999)), gpu_seconds=10),
    run=run,
    claims=claims,
    figure=figure,
)
