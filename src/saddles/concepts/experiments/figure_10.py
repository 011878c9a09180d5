"""Figure 10: a concept that is not learned, predicted before the run; and what happens later.

d = s = 3, μ = (0.7, 1.7, 3), σ = 0.05, U(0) uniform on [0, 0.2]. The figure prints no clock. Read off it, the horizon
is about gradient time 4, by when the two stronger concepts have long been learned (they take about 0.3 and 1.5); the
authors' public script ends at paper time 100, gradient time 50, and integrates with A² where the text has A.

Claims and their thresholds:

- *Failure.* w_11 is below ½ at the horizon and the two others above it: required of nine starts in ten (pivots
  of a random start vary). Judged at each of the three readings, for it depends on the horizon whether the claim holds.
- *Beyond the paper.* With d' = 3 every start learns concept 1 in the end; with d' = 2 (rank-deficient), the null, it
  never does.

That `failure` names the lost concept is not claimed here: all starts lose the same one, so a prediction for any other
start is as good. `concepts/pivot-law` judges it where half of the starts fail.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import concepts, figures
from saddles.concepts.experiments.paper import EVERY_SIZE, PAPER, sizes
from saddles.concepts.experiments.searches import draw
from saddles.concepts.observe import PAPER_CLOCK, point_loss
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.status import Status
from saddles.core.trajectory import Trajectory, make_trajectory

RANKS = (3, 2)
SCRIPT = 100.0
"""The end of the authors' public script, in the paper's clock."""
LARGER = ("laptop", "gpu", "paper")
"""Sizes at which the script's horizon is judged: there the claim fails, and `tiny` is there to see that all runs."""


@dataclass(frozen=True)
class Settings:
    """How many starts are followed, and how long."""

    starts: Annotated[int, "starts of each rank"]
    horizon: Annotated[float, "gradient time by which a concept must have grown"] = 4.0
    until: Annotated[float, "gradient time of the whole run"] = 200.0


def run(settings: Settings, context: Context) -> Trajectory:
    """Many starts of full and of deficient rank, to the horizon and far beyond it."""
    task = concepts.Identity((0.7, 1.7, 3.0), 0.05)
    horizon, count = settings.horizon, settings.starts
    times = np.unique(np.concatenate([[0.0, horizon, SCRIPT / PAPER_CLOCK], np.geomspace(0.02, settings.until, 400)]))
    (seed,) = context.seeds(1)
    jacobians, said, when, statuses = [], [], [], []
    for rank in RANKS:
        factors = draw("uniform", task.size, rank, count, seed)
        flows, status = concepts.flow_many(factors, task.strengths, task.target, times, observe=("jacobian",))
        statuses.append(status)
        jacobians.append(flows["jacobian"])
        answers = [concepts.failure(concepts.SymmetricTwoLayer(factor=one), task, horizon) for one in factors]
        said.append([[p in answer.lost for p in (1, 2, 3)] for answer in answers])
        when.append([answer.times for answer in answers])
    squared, status = concepts.flow_many(
        draw("uniform", task.size, 3, count, seed), task.strengths**2, task.target, times, observe=("jacobian",)
    )
    statuses.append(status)
    jacobian = np.stack(jacobians, axis=1)
    output = jacobian @ task.target
    whole = make_trajectory(
        {
            "major": (("time", "rank", "run", "coordinate"), np.diagonal(jacobian, axis1=-2, axis2=-1)),
            "major_squared": (("time", "run", "coordinate"), np.diagonal(squared["jacobian"], axis1=-2, axis2=-1)),
            "jacobian": (("time", "rank", "row", "column"), jacobian[:, :, 0]),
            "output": (("time", "rank", "coordinate"), output[:, :, 0]),
            "test_loss": (("time", "rank", "run"), point_loss(output, task.target)),
            "said_lost": (("rank", "run", "coordinate"), np.asarray(said)),
            "said_time": (("rank", "run", "coordinate"), np.asarray(when)),
            "target": (("coordinate",), task.target),
            "strength": (("coordinate",), task.strengths),
        },
        times,
        unit="gradient time",
        lab="concepts",
        kind="simulated and predicted",
        task=task,
        coords={"rank": list(RANKS), "coordinate": [1, 2, 3], "paper_time": ("time", PAPER_CLOCK * times)},
        status=Status.all_of(statuses),
    )
    first = concepts.SymmetricTwoLayer(factor=draw("uniform", 3, 3, count, seed)[0])
    whole.attrs |= {"horizon": horizon, "assumptions": concepts.check_assumptions(first, task).summary}
    return whole


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge failure, its prediction, and its end."""
    major, horizon = trajectory["major"], trajectory.attrs["horizon"]
    there = _unlearned(major.sel(rank=3), horizon)
    script = SCRIPT / PAPER_CLOCK
    untrained = _trapped(_unlearned(major.sel(rank=3), 0.0))
    end = major.isel(time=-1).transpose("rank", "run", "coordinate").values
    judge = partial(check, paper=PAPER, where="Figure 10, section E.3", size=size, sizes=EVERY_SIZE)
    return [
        judge(f"Concept 1 alone has not grown at the horizon read off the figure (gradient time {horizon:g}): fraction "
              "of starts", values=_trapped(there), relation=">=", threshold=0.9,
              null=untrained, against="time 0"),
        judge("… and at the horizon of the public script, paper time 100",
              values=_trapped(_unlearned(major.sel(rank=3), script)), relation=">=", threshold=0.9, sizes=LARGER,
              null=untrained, against="time 0"),
        judge("… and there with A² in the place of A, as the script has it",
              values=_trapped(_unlearned(trajectory["major_squared"], script)), relation=">=", threshold=0.9,
              sizes=LARGER, null=untrained, against="time 0"),
        judge("From full rank concept 1 grows later: least w_11 at the end",
              where="beyond the paper", values=list(end[0, :, 0]), relation=">=", threshold=0.5,
              null=list(end[1, :, 0]), against="rank 2"),
    ]  # fmt: skip


def _unlearned(major: xr.DataArray, time: float) -> np.ndarray:
    """Which concepts have not grown at a time, (run, concept)."""
    return major.sel(time=time, method="nearest").transpose("run", "coordinate").values < 0.5


def _trapped(unlearned: np.ndarray) -> float:
    """The fraction of starts in which concept 1, and no other, has not grown."""
    return float((unlearned[:, 0] & ~unlearned[:, 1] & ~unlearned[:, 2]).mean())


def figure(trajectory: Trajectory) -> Drawing:
    """Entries of W to the horizon and beyond."""
    return figures.concepts.failure_plot(trajectory)


EXPERIMENT = Experiment(
    "concepts/figure-10",
    "A concept that is not learned within the horizon, predicted before the run",
    PAPER,
    sizes=sizes(Size(3, Settings(60)), Size(7, Settings(1000)), Size(60, Settings(10_000)), gpu_seconds=20),
    run=run,
    claims=claims,
    figure=figure,
)
