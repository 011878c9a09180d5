"""Figures 2, 8 and 9 of the paper (and a–c of its first version): curves converge to Algorithm 1's staircase.

Claims of figure-2 and their thresholds:

- *Convergence.* The mean distance between the loss curve and the staircase is a shift of its jumps, of
  order 1/log(1/α) (Theorem 4.1 promises convergence, the proof this order). Its log-log slope against log(1/α)
  from α = 1e-4 on must be at least half as steep: ≤ −1/2.
- *Order.* The start shifts log-scale weights by at most max|log p₀, q₀|/log(1/α). Where the two smallest Δ
  differ by more than twice that, relative to the stage's time, the flow must activate the predicted coordinate
  with the predicted sign: all such stages, no exception. (A stage is judged where the same coordinates were
  active before it.)
- *Times.* The error of the limit's stage times falls like 1/log(1/α): the median slope over the stages that
  agree at every α is within 0.1 of −1.
- *Log-scales.* The invariant of the proof, log_α of the weights at a stage tends to b^k ((19), (20)), has no rate
  in the text; the start shifts it by a constant over log(1/α). The largest error over coordinates must fall at least
  half as fast as that: median log-log slope over stages ≤ −1/2.
- *Finite form.* The first activation's time at the largest of these α, before any transition has acted: 1e-3.

Claim of figure-8-9: as α → 0 the trajectories tend to the limiting one. The mean distance of the weights to
Algorithm 1's must fall with log(1/α) at least half as steeply as the 1/log(1/α) of shifted jumps, from α = 1e-4 on:
slope ≤ −1/2.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import diagonal, figures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.status import Status, status_of
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import (
    FACTS,
    PAPER,
    agreement_with_another_teacher,
    at_scale,
    compare_stages,
    stairs,
)
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATE, OFF = 1.1, 0.1
"""A theory that is wrong on purpose: stages 10 % late, log-scale weights off by 0.1."""
SMALL = 4
"""Decades from which on a slope against log(1/α) is fitted: above α = 1e-4 nothing is asymptotic yet."""


@dataclass(frozen=True)
class Curves:
    """Settings of the curves that both figures draw."""

    decades: Annotated[tuple[int, ...], "initial scales of the curves, α = 10^−decades"]
    dim: Annotated[int, "dimension of the head; it has twice as many coordinates"]
    samples: Annotated[int, "sequences in the data"]
    tokens: Annotated[int, "tokens in a sequence"]
    stages: Annotated[int, "stages that the curves cover"]
    until: Annotated[float, "latest rescaled time of the curves"]
    points: Annotated[int, "instants on a curve"]


@dataclass(frozen=True)
class CurvesAndOrder(Curves):
    """Settings of figure-2: the curves, and tables of stages of several teachers."""

    order_dim: Annotated[int, "dimension of the heads whose stages are compared"]
    order_samples: Annotated[int, "sequences in their data"]
    order_stages: Annotated[int, "stages compared for each teacher"]
    deep: Annotated[tuple[int, ...], "their initial scales, α = 10^−deep"]
    seeds: Annotated[int, "teachers"]


def run_figure_2(settings: CurvesAndOrder, context: Context) -> Trajectory:
    """Curves of one teacher at all α, and stage tables of several teachers."""
    seeds = context.seeds(settings.seeds)
    whole = curves(settings, context, seeds[0])
    model = diagonal.AttentionHead(settings.order_dim)
    parts = []
    with bar("diagonal/figure-2, teachers", len(seeds)) as progress:
        for seed in seeds:
            task = diagonal.TeacherStudent(model, settings.order_samples, settings.tokens, seed)
            make = partial(compare_stages, model, task, seed, settings.order_stages, settings.deep)
            parts.append(context.part(f"order-{seed}", make))
            progress.advance()
    for name in FACTS:
        rows = np.stack([part[name].isel(time=0).values for part in parts])
        whole[name] = (("seed", "deep", "order_stage"), rows)
    return whole.assign_coords(seed=seeds, deep=list(settings.deep))


def run_figure_8_9(settings: Curves, context: Context) -> Trajectory:
    """The curves alone."""
    return curves(settings, context, context.seeds(1)[0])


def curves(settings: Curves, context: Context, seed: int) -> Trajectory:
    """Loss and weights against rescaled time for every α of one teacher, beside the prediction."""
    model = diagonal.AttentionHead(settings.dim)
    task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
    theory = diagonal.Incremental(settings.stages + 1, until=settings.until)
    predicted = context.part("prediction", partial(predict, model, task, theory))
    end = min(settings.until, 0.999 * float(predicted["stage_time"][-1]))  # just before the stage that is not shown
    clock = np.linspace(0.0, end, settings.points)
    flows = []
    with bar("diagonal/figure-2, flows", len(settings.decades)) as progress:
        for decades in settings.decades:
            make = partial(simulate, at_scale(model, decades), task, diagonal.Flow(), times=clock, seed=seed)
            flows.append(context.part(f"flow-{decades}", make))
            progress.advance()
    staircase = stairs(predicted, clock)
    return make_trajectory(
        {
            "loss": (("time", "decade"), np.stack([f["loss"].values for f in flows], axis=1)),
            "beta": (("time", "decade", "coordinate"), np.stack([f["beta"].values for f in flows], axis=1)),
            "predicted_loss": (("time",), staircase["loss"].values),
            "predicted_beta": (("time", "coordinate"), staircase["beta"].values),
            "stage_time": (("stage",), predicted["stage_time"].values),
            "stage_coordinate": (("stage",), predicted["stage_coordinate"].values),
            "gradients": (("decade",), [f.attrs["gradient_evaluations"] for f in flows]),
            "products": (("decade",), [f.attrs["hessian_products"] for f in flows]),
        },
        clock,
        unit="rescaled time, t / log(1/α)",
        coords={"decade": list(settings.decades), "family": ("coordinate", predicted["family"].values)},
        status=Status.all_of(status_of(flow) for flow in flows),
        lab="diagonal",
        kind="simulated and predicted",
        model=model,
        task=task,
    )


def distance(trajectory: xr.Dataset, late: float = 1.0) -> np.ndarray:
    """Mean over time of |loss − staircase| over the first loss, for each α; stages come `late` times as late."""
    gap = abs(trajectory["loss"] - _delayed(trajectory["predicted_loss"], late)).mean("time")
    return (gap / trajectory["predicted_loss"][0]).values


def _delayed(staircase: xr.DataArray, late: float) -> xr.DataArray:
    clock = staircase["time"].values
    return staircase.isel(time=np.searchsorted(clock, clock / late, side="right") - 1).assign_coords(time=clock)


def claims_figure_2(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence, order and times."""
    agrees, comparable = trajectory["agrees"].values == 1, trajectory["same_before"].values == 1
    firm = comparable & (trajectory["margin"].values > 1)
    rates = [np.mean(agrees[i][firm[i]]) if firm[i].any() else np.nan for i in range(len(agrees))]
    total = f"{int((agrees & firm).sum())} of {int(firm.sum())} qualifying stages of {firm.size}"
    judge = partial(check, paper=PAPER, where="Theorem 4.1, Figure 2", size=size)
    late = "stages predicted 10 % late"
    return [
        judge(
            "Loss curves converge to the predicted staircase: log-log slope of their distance against log(1/α)",
            values=_slope(trajectory, distance(trajectory)),
            relation="<=",
            threshold=-0.5,
            null=_slope(trajectory, distance(trajectory, LATE)),
            against=late,
        ),
        judge(
            f"Coordinate and sign of every stage whose margin exceeds 2 max|log p₀, q₀|/log(1/α) are as predicted "
            f"({total}): share",
            values=[rate for rate in rates if np.isfinite(rate)],
            relation=">=",
            threshold=1.0,
            null=agreement_with_another_teacher(trajectory, firm),
            against="the prediction for another teacher",
        ),
        judge(
            "Errors of the predicted stage times fall like 1/log(1/α): distance of the median slope from −1",
            values=np.abs(_slopes(trajectory["time_error"]) + 1),
            relation="<=",
            threshold=0.1,
            null=np.abs(_slopes(abs((1 + trajectory["time_error"]) / LATE - 1)) + 1),
            against=late,
        ),
        judge(
            "Log-scale weights at the stages tend to b: median log-log slope of the largest error against log(1/α)",
            where="(19), (20)",
            values=_slopes(trajectory["scale_error"]),
            relation="<=",
            threshold=-0.5,
            null=_slopes(trajectory["scale_error"] + OFF),
            against="weights predicted off by 0.1",
        ),
        judge(
            "The finite-α form gives the time of the first activation: relative error at the largest of these α",
            where="(10), (7)",
            values=_first(trajectory, "finite_error"),
            relation="<=",
            threshold=1e-3,
            null=_first(trajectory, "time_error"),
            against="the time of the limit α → 0",
        ),
    ]


def claims_figure_8_9(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence of both families of weights."""
    gaps = [abs(trajectory["beta"] - _delayed(trajectory["predicted_beta"], late)).mean("time") for late in (1.0, LATE)]
    result = []
    for family, words, where in (
        ("key_query", "W_K W_Qᵀ", "Figure 8"), ("value_output", "W_V W_Oᵀ", "Figure 9"),
    ):  # fmt: skip
        of_family = np.flatnonzero(trajectory["family"].values == family)
        value, null = (_slope(trajectory, gap.isel(coordinate=of_family).sum("coordinate").values) for gap in gaps)
        result.append(check(
            f"Weights of {words} tend to the predicted trajectory: log-log slope of their distance against log(1/α)",
            paper=PAPER, where=where, values=value, relation="<=", threshold=-0.5, size=size, null=null,
            against="stages predicted 10 % late",
        ))  # fmt: skip
    return result


def _slope(trajectory: xr.Dataset, distances: np.ndarray) -> float:
    """Log-log slope of a distance against log(1/α), one distance per decade."""
    decades = trajectory["decade"].values.astype(float)
    small = decades >= SMALL
    return float(np.polyfit(np.log(decades[small]), np.log(distances[small]), 1)[0])


def _slopes(errors_by_scale: xr.DataArray) -> np.ndarray:
    """Median over stages of the log-log slope of an error, one per seed, over stages that agree at every α."""
    clock = np.log(errors_by_scale["deep"].values.astype(float))
    result = []
    for errors in errors_by_scale.transpose("seed", "deep", "order_stage").values:
        whole = np.isfinite(errors).all(axis=0) & (errors > 0).all(axis=0)
        if whole.any():
            result.append(np.median(np.polyfit(clock, np.log(errors[:, whole]), 1)[0]))
    return np.array(result)


def _first(trajectory: xr.Dataset, name: str) -> np.ndarray:
    errors = trajectory[name].isel(deep=0, order_stage=0).values
    return errors[np.isfinite(errors)]


def draw_figure_2(trajectory: Trajectory) -> "Figure":
    """Loss and weights beside the staircase."""
    return figures.diagonal.figure_2(trajectory)


def draw_figure_8_9(trajectory: Trajectory) -> "Figure":
    """Both families of weights, one panel per initial scale."""
    return figures.diagonal.figure_8_9(trajectory)


SIX = (1, 2, 4, 8, 16, 32)
_TINY = Curves(decades=(4, 32), dim=5, samples=60, tokens=5, stages=5, until=1e9, points=201)
_LAPTOP = Curves(decades=SIX, dim=10, samples=200, tokens=10, stages=12, until=1e9, points=401)
_PAPER = Curves(decades=SIX, dim=50, samples=1000, tokens=10, stages=150, until=1500.0, points=1201)

_ORDER_TINY = CurvesAndOrder(
    **vars(_TINY), order_dim=5, order_samples=60, order_stages=3, deep=(32, 1000), seeds=1
)  # fmt: skip
_ORDER_LAPTOP = CurvesAndOrder(
    **vars(_LAPTOP), order_dim=10, order_samples=200, order_stages=10, deep=(32, 180, 1000), seeds=3
)
_ORDER_PAPER = CurvesAndOrder(
    **vars(_PAPER), order_dim=20, order_samples=400, order_stages=10, deep=(32, 100, 316, 1000), seeds=20
)

FIGURE_2 = Experiment(
    name="diagonal/figure-2",
    title="An attention head learns one coordinate at a time, at every initial scale, as Algorithm 1 predicts",
    paper=PAPER,
    sizes={
        "tiny": Size(5, _ORDER_TINY),
        "laptop": Size(50, _ORDER_LAPTOP),
        "gpu": Size(220, _ORDER_PAPER),
        "paper": Size(900, _ORDER_PAPER),
    },
    run=run_figure_2,
    claims=claims_figure_2,
    figure=draw_figure_2,
)
FIGURE_8_9 = Experiment(
    name="diagonal/figure-8-9",
    title="The weights of an attention head, one panel per initial scale",
    paper=PAPER,
    sizes={
        "tiny": Size(4, _TINY),
        "laptop": Size(25, _LAPTOP),
        "gpu": Size(60, _PAPER),
        "paper": Size(240, _PAPER),
    },
    run=run_figure_8_9,
    claims=claims_figure_8_9,
    figure=draw_figure_8_9,
)
