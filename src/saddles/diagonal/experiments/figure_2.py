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
- *SGD*, with which the paper trains: steps of 1/4 on 50 sequences drawn at random. Its noise shifts log-scale weights
  by √(rate/batch) of what they move, so that the same threshold as for the flow applies (rate and batch were chosen
  on other seeds, where steps of 1 on 20 sequences were too noisy for it).
- *The support.* "No coordinates ever leave the support" of the head (appendix A), to the last stage of several small
  heads: no exit. The null is the linear network with correlated inputs, where coordinates do leave.

Claim of figure-8-9: as α → 0 the trajectories tend to the limiting one. The mean distance of the weights to
Algorithm 1's must fall with log(1/α) at least half as steeply as the 1/log(1/α) of shifted jumps, from α = 1e-4 on:
slope ≤ −1/2. Flow and theory share the model, so that their agreement says nothing of it: the losses of the flow's
weights are those of equation (1) written out in NumPy, teacher included, to 1e-9 of the first one (double precision
leaves more); the null takes the softmax over the wrong axis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import diagonal, figures
from saddles.core.claim import Claim, check, too_few
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.settings import check_different
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
from saddles.diagonal.experiments.convergence import delayed, distance, slope_of, slopes_of_stages, too_few_small
from saddles.diagonal.experiments.linear import design
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATE, OFF = 1.1, 0.1
"""A theory that is wrong on purpose: stages 10 % late, log-scale weights off by 0.1."""
RATE, BATCH = 0.25, 50
"""Learning rate of SGD, and sequences in a step."""
SMALL_HEAD = 5
"""Dimension of the heads that are followed to their last stage."""
WRITTEN = 20
"""Instants at most at which losses are computed by the formula."""


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
    sgd: Annotated[tuple[int, ...], "initial scales of the runs of SGD, α = 10^−sgd"] = (4, 8, 16)
    whole_paths: Annotated[int, "small heads that are followed to their last stage"] = 8


def run_figure_2(settings: CurvesAndOrder, context: Context) -> Trajectory:
    """Curves of one teacher at all α, and stage tables of several teachers."""
    check_different("sgd", settings.sgd, 1)
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
    whole["sgd_loss"] = (("time", "sgd"), _sgd(settings, context, seeds[0], whole["time"].values))
    exits = context.part(
        "exits", partial(_exits, context.seeds(settings.seeds + settings.whole_paths)[settings.seeds :])
    )
    for name in exits:
        whole[name] = ((), float(exits[name][0]))
    return whole.assign_coords(seed=seeds, deep=list(settings.deep), sgd=list(settings.sgd))


def _sgd(settings: CurvesAndOrder, context: Context, seed: int, clock: np.ndarray) -> np.ndarray:
    """Loss of SGD at the instants of the curves, for each of its initial scales."""
    model = diagonal.AttentionHead(settings.dim)
    task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
    losses = []
    for decades in settings.sgd:
        steps = int(np.ceil(clock[-1] * decades * np.log(10) / RATE)) + 1
        sgd = diagonal.Descent(RATE, steps, BATCH)
        make = partial(simulate, at_scale(model, decades), task, sgd, times=clock, seed=seed)
        loss = context.part(f"sgd-{decades}", make)["loss"]
        losses.append(loss.sel(time=clock, method="nearest").values)  # at large α several instants are one step
    return np.stack(losses, axis=1)


def _exits(seeds: Sequence[int]) -> Trajectory:
    """Stages of small heads and of linear networks by Algorithm 1, and how many coordinates left the support."""
    model = diagonal.AttentionHead(SMALL_HEAD)
    rows = {"stages": 0, "exits": 0, "linear_exits": 0}
    for seed in seeds:
        task = diagonal.TeacherStudent(model, 60, 5, seed)
        path = predict(model, task, diagonal.Incremental(10 * SMALL_HEAD))
        rows["stages"] += path.sizes["stage"]
        rows["exits"] += int(path["stage_left"].sum())
        correlated = design(20, 40, 5, seed)
        other = diagonal.saddle_path(np.asarray(correlated.inputs), np.asarray(correlated.targets), 200)
        rows["linear_exits"] += int((np.diff(other["support_size"].values, prepend=0) < 1).sum())
    return make_trajectory({name: (("time",), [float(n)]) for name, n in rows.items()}, [0.0], unit="all stages")


def run_figure_8_9(settings: Curves, context: Context) -> Trajectory:
    """The curves alone, and losses by the formula at the smallest α."""
    seed = context.seeds(1)[0]
    whole = curves(settings, context, seed)
    task = diagonal.TeacherStudent(diagonal.AttentionHead(settings.dim), settings.samples, settings.tokens, seed)
    here = whole.isel(decade=-1, time=slice(None, None, -(-settings.points // WRITTEN)))
    for name, axis in (("formula_gap", -1), ("other_axis_gap", -2)):
        losses = [written_out(task, weights, axis) for weights in here["beta"].transpose("time", "coordinate").values]
        whole[name] = ((), float(np.abs(losses - here["loss"].values).max() / float(here["loss"][0])))
    return whole


def written_out(task: "diagonal.TeacherStudent", weights: np.ndarray, axis: int = -1) -> float:
    """The loss of a head against its teacher by equation (1); the softmax goes over an axis of (…, query, key)."""
    inputs = np.asarray(task.inputs)

    def output(key_query: np.ndarray, value_output: np.ndarray) -> np.ndarray:
        logits = (inputs * key_query) @ np.moveaxis(inputs, -1, -2)
        shares = np.exp(logits - logits.max(axis=axis, keepdims=True))
        return shares / shares.sum(axis=axis, keepdims=True) @ inputs * value_output

    return float(np.mean((output(*np.split(weights, 2)) - output(*np.split(np.asarray(task.truth), 2))) ** 2))


def curves(settings: Curves, context: Context, seed: int) -> Trajectory:
    """Loss and weights against rescaled time for every α of one teacher, beside the prediction."""
    check_different("decades", settings.decades, 1)
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


def claims_figure_2(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence, order and times."""
    agrees, comparable = trajectory["agrees"].values == 1, trajectory["same_before"].values == 1
    firm = comparable & (trajectory["margin"].values > 1)
    rates = [np.mean(agrees[i][firm[i]]) if firm[i].any() else np.nan for i in range(len(agrees))]
    total = f"{int((agrees & firm).sum())} of {int(firm.sum())} qualifying stages of {firm.size}"
    judge = partial(check, paper=PAPER, where="Theorem 4.1, Figure 2", size=size)
    late, deep = "stages predicted 10 % late", too_few("`deep`", trajectory["deep"].values)
    return [
        judge(
            "Loss curves converge to the predicted staircase: log-log slope of their distance against log(1/α)",
            values=slope_of(trajectory, distance(trajectory)),
            relation="<=",
            threshold=-0.5,
            null=slope_of(trajectory, distance(trajectory, LATE)),
            against=late,
            not_applicable=too_few_small(trajectory["decade"], "decades"),
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
            values=np.abs(slopes_of_stages(trajectory["time_error"]) + 1),
            relation="<=",
            threshold=0.1,
            null=np.abs(slopes_of_stages(abs((1 + trajectory["time_error"]) / LATE - 1)) + 1),
            against=late,
            not_applicable=deep,
        ),
        judge(
            "Log-scale weights at the stages tend to b: median log-log slope of the largest error against log(1/α)",
            where="(19), (20)",
            values=slopes_of_stages(trajectory["scale_error"]),
            relation="<=",
            threshold=-0.5,
            null=slopes_of_stages(trajectory["scale_error"] + OFF),
            against="weights predicted off by 0.1",
            not_applicable=deep,
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
        *_claims_sgd_and_support(trajectory, judge, late),
    ]


def claims_figure_8_9(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge convergence of both families of weights."""
    gaps = [abs(trajectory["beta"] - delayed(trajectory["predicted_beta"], late)).mean("time") for late in (1.0, LATE)]
    result = []
    for family, words, where in (
        ("key_query", "W_K W_Qᵀ", "Figure 8"), ("value_output", "W_V W_Oᵀ", "Figure 9"),
    ):  # fmt: skip
        of_family = np.flatnonzero(trajectory["family"].values == family)
        value, null = (slope_of(trajectory, gap.isel(coordinate=of_family).sum("coordinate").values) for gap in gaps)
        result.append(check(
            f"Weights of {words} tend to the predicted trajectory: log-log slope of their distance against log(1/α)",
            paper=PAPER, where=where, values=value, relation="<=", threshold=-0.5, size=size, null=null,
            against="stages predicted 10 % late", not_applicable=too_few_small(trajectory["decade"], "decades"),
        ))  # fmt: skip
    result.append(check(
        "The head is that of equation (1), written out: largest difference of a loss along the flow, over the first",
        paper=PAPER, where="(1)", values=float(trajectory["formula_gap"]), relation="<=", threshold=1e-9, size=size,
        null=float(trajectory["other_axis_gap"]), against="the softmax over queries",
    ))  # fmt: skip
    return result


def _claims_sgd_and_support(trajectory: Trajectory, judge: Callable[..., Claim], late: str) -> list[Claim]:
    sgd = trajectory[["predicted_loss"]].assign(loss=trajectory["sgd_loss"])
    return [
        judge(
            "Trained with SGD, loss curves converge to the staircase too: log-log slope of their distance against "
            "log(1/α)",
            where="Figure 2, appendix A",
            values=slope_of(trajectory, distance(sgd), "sgd"),
            relation="<=",
            threshold=-0.5,
            null=slope_of(trajectory, distance(sgd, LATE), "sgd"),
            against=late,
            not_applicable=too_few_small(trajectory["sgd"], "sgd"),
        ),
        judge(
            f"No coordinate ever leaves the support: exits in {int(trajectory['stages'])} stages of small heads",
            where="Appendix A",
            values=float(trajectory["exits"]),
            relation="<=",
            threshold=0.0,
            null=float(trajectory["linear_exits"]),
            against="linear networks with correlated inputs",
        ),
    ]


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
    **vars(_TINY), order_dim=5, order_samples=60, order_stages=3, deep=(32, 1000), seeds=1, sgd=(4, 8),
    whole_paths=1,
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
        "laptop": Size(18, _ORDER_LAPTOP),
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
    sizes={"tiny": Size(4, _TINY), "laptop": Size(5, _LAPTOP), "gpu": Size(60, _PAPER), "paper": Size(240, _PAPER)},
    run=run_figure_8_9,
    claims=claims_figure_8_9,
    figure=draw_figure_8_9,
)
