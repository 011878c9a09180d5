"""The page of diagonal networks: one coordinate at a time, the staircase behind the curves."""

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import diagonal
from saddles.core.dispatch import predict, simulate
from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.clock import around
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import RefusedError, View, choice, clock, number
from saddles.measures import stages

STAGES = 8
TOLERANCE, DRAFT = 1e-5, 1e-2
"""Error per step of the flow, at rest and while a slider moves."""
MOST = {"linear": 40, "head": 8}
"""Largest dimension a page computes."""
NAMES = {"weight": "weight", "key_query": "key–query entry", "value_output": "value–output entry"}


@dataclass(frozen=True)
class Diagonal(View):
    """A teacher, a model of its kind, and the scale α of the student's initial weights."""

    decades: float = number(5.0, "−log₁₀ α", 1.0, 100.0, 0.5, "initial weights of size α = 10^−this")
    seed: int = number(30, "teacher's seed", 0, 999, 1, "draws the data, the teacher and the initial weights")
    model: str = choice(
        "linear", "model", {"linear": "linear diagonal network", "head": "attention head, diagonal weights"}
    )
    dim: int = number(6, "dimension", 2, 40, 1, "coordinates; an attention head has two for each dimension")
    samples: int = number(40, "samples", 5, 400, 5)
    instant: float = clock("share of the saved instants that has passed, most of them around the stages")


def check(view: Diagonal) -> None:
    """Refuse sizes that a page cannot follow while it is looked at."""
    most = MOST[view.model]
    if view.dim > most:
        sentence = f"A page computes this model up to dimension {most}; got {view.dim}. Run larger ones in Python."
        raise RefusedError("dim", sentence)


def _sizes(view: Diagonal) -> tuple[str, int, int, int]:
    return view.model, view.dim, view.samples, view.seed


@lru_cache(maxsize=16)
def _pieces(
    model: str, dim: int, samples: int, seed: int
) -> "tuple[diagonal.LinearDiagonal | diagonal.AttentionHead, diagonal.TeacherStudent]":
    network = diagonal.LinearDiagonal(dim) if model == "linear" else diagonal.AttentionHead(dim)
    return network, diagonal.TeacherStudent(network, samples, tokens=4, seed=seed)


@lru_cache(maxsize=64)
def _staircase(model: str, dim: int, samples: int, seed: int) -> xr.Dataset:
    """Algorithm 1, which does not depend on α."""
    network, task = _pieces(model, dim, samples, seed)
    return predict(network, task, diagonal.Incremental(STAGES))


def compute(view: Diagonal, draft: bool = False) -> Results:
    """The flow from α, and Algorithm 1's stages."""
    network, task = _pieces(*_sizes(view))
    predicted = _staircase(*_sizes(view))
    small = dataclasses.replace(network, log_alpha=-view.decades * math.log(10))
    method = diagonal.Flow(tolerance=DRAFT if draft else TOLERANCE)
    return {
        "measured": simulate(small, task, method, times=around(predicted, view.decades), seed=view.seed),
        "predicted": predicted,
    }


def code(view: Diagonal) -> str:
    """Three lines."""
    network, task = _pieces(*_sizes(view))
    name = type(network).__name__
    return (
        "import math; from saddles import diagonal, predict, simulate; from saddles.explorer.clock import around\n"
        f"model = diagonal.{name}({view.dim}, log_alpha=-{view.decades!r} * math.log(10)); "
        f"task = diagonal.TeacherStudent(model, {view.samples}, tokens={task.tokens}, seed={view.seed})\n"
        f"predicted = predict(model, task, diagonal.Incremental({STAGES})); "
        f"measured = simulate(model, task, diagonal.Flow(), times=around(predicted, {view.decades!r}), "
        f"seed={view.seed})\n"
    )


def panels(view: Diagonal, results: Results) -> list[Panel]:
    """Weights and loss over rescaled time, the staircase dashed, and the weights at one instant."""
    measured, predicted = results["measured"], results["predicted"]
    row = _row(view, measured)
    shapes = [draw.upright(float(measured["time"][row]), "", "#D55E00")] if view.instant < 1 else []
    return [
        _weights(measured, predicted, shapes),
        _loss(measured, predicted, shapes),
        _picture(measured, predicted, row),
    ]


def _row(view: Diagonal, measured: xr.Dataset) -> int:
    return round(view.instant * (measured.sizes["time"] - 1))


def marks(view: Diagonal, results: Results) -> list[float]:
    """Instants just after each predicted stage."""
    clock, when = results["measured"]["time"].values, results["predicted"]["stage_time"].values
    after = np.append(when[1:], clock[-1])
    # A third of the way to the next stage the weight has grown, also where α is not small.
    rows = np.searchsorted(clock, when + (after - when) / 3)
    return [round(float(row) / (len(clock) - 1), 3) for row in rows]


def _order(predicted: xr.Dataset) -> list[int]:
    """Coordinates in the order in which they become active."""
    return list(dict.fromkeys(int(i) for i in predicted["stage_coordinate"].values))


def _picture(measured: xr.Dataset, predicted: xr.Dataset, row: int) -> Panel:
    """All weights at one instant, in their colours, with Algorithm 1's values as dashes."""
    beta, when = measured["beta"].values, float(measured["time"][row])
    order = _order(predicted)
    stair = int(np.searchsorted(predicted["time"].values, when, side="right")) - 1
    names = [f"β{_low(i)}" for i in range(beta.shape[1])]
    shades = [draw.colour(order.index(i)) if i in order else draw.FAINT for i in range(beta.shape[1])]
    dash = {"symbol": "line-ew-open", "size": 16, "line": {"width": 2}}
    data = [
        draw.bars(names, beta[row], shades),
        draw.dots([0] * len(names), predicted["beta"].values[stair], "Algorithm 1", draw.THEORY, marker=dash)
        | {"x": names},
    ]
    active = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, beta[row], strict=True) if abs(value) > 0.01)
    words = f"Every weight at τ = {when:.3g} as a bar, Algorithm 1's values as dashes. Active: {active or 'none yet'}."
    low, high = float(min(beta.min(), 0)), float(max(beta.max(), 0))
    room = 0.08 * (high - low)
    x = {"type": "category", "showgrid": False}
    layout = draw.layout("coordinate", "weight", x=x, y={"range": [low - room, high + room]})
    return Panel(f"Weights at τ = {when:.3g}", words, data, layout, waits=True)


def _stairs(predicted: xr.Dataset, heights: np.ndarray, end: float) -> draw.Json:
    """Lines (curve, instant) that are constant from stage to stage: a point before and one after each jump."""
    clock = np.append(predicted["time"].values, end)
    return draw.lines(clock, np.hstack([heights, heights[:, -1:]]), "Algorithm 1", theory=True)


def _weights(measured: xr.Dataset, predicted: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    clock, beta = measured["time"].values, measured["beta"].values
    order = _order(predicted)
    rest = [i for i in range(beta.shape[1]) if i not in order]
    data = (
        [draw.lines(clock, beta[:, rest].T, "never active", draw.FAINT, line={"width": 1.2}, legendrank=STAGES)]
        if rest
        else []
    )
    for place, i in reversed(list(enumerate(order))):  # those that come first are drawn on top
        data.append(draw.line(clock, beta[:, i], f"β{_low(i)}", draw.colour(place), legendrank=place))
    if order:
        data.append(_stairs(predicted, predicted["beta"].values[:, order].T, clock[-1]) | {"legendrank": STAGES + 1})
    ends = ", ".join(f"coordinate {i} at {beta[-1, i]:.2f}" for i in order[:4])
    words = f"Weights over rescaled time, solid, with Algorithm 1's staircase dashed behind; they end with {ends}."
    return Panel(
        "Weights β = u ⊙ v", words, data, draw.layout("rescaled time τ = t / log(1/α)", "weight", shapes=shapes)
    )


def _low(i: int) -> str:
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(i))


def _loss(measured: xr.Dataset, predicted: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    clock = measured["time"].values
    data = [
        draw.line(clock, measured["loss"], "gradient flow", draw.colour(0)),
        _stairs(predicted, predicted["loss"].values[None], clock[-1]),
    ]
    first, last = float(measured["loss"][0]), float(measured["loss"][-1])
    words = f"Loss over rescaled time: the flow, solid, falls from {first:.3g} to {last:.3g}; the staircase is dashed."
    layout = draw.layout("rescaled time τ = t / log(1/α)", "loss", y={"rangemode": "tozero"}, shapes=shapes)
    return Panel("Loss", words, data, layout)


def say(view: Diagonal, results: Results) -> str:
    """The stage that is looked at, predicted and measured; or how far the curve is from the staircase."""
    measured, predicted = results["measured"], results["predicted"]
    count = predicted.sizes["stage"]
    status = status_of(measured)
    told = "" if status.ok else f" The flow {status}."
    now = float(measured["time"][_row(view, measured)])
    k = int(np.searchsorted(predicted["stage_time"].values, now, side="right")) - 1
    if view.instant == 1 or not count:
        where = np.searchsorted(predicted["time"].values, measured["time"].values, side="right") - 1
        apart = np.abs(measured["loss"].values - predicted["loss"].values[where]) / float(predicted["loss"][0])
        clock = measured["time"].values  # most instants lie around the stages: the mean is over time
        gap = np.trapezoid(apart, clock) / clock[-1]
        return (
            f"{count} stages are predicted. At α = 10^−{view.decades:g} the loss curve is {100 * gap:.2g} % of the "
            f"first loss from the staircase, on average; a smaller α sharpens it.{told}"
        )
    if k < 0:
        first = float(predicted["stage_time"][0])
        return f"τ = {now:.3g}: all weights are still small. The first stage is predicted at τ = {first:.3g}.{told}"
    i, when = int(predicted["stage_coordinate"][k]), float(predicted["stage_time"][k])
    kind = NAMES.get(str(predicted["family"].values[i]), str(predicted["family"].values[i]))
    seen = stages(measured)
    mine = seen["unit_time"].values[seen["stage_coordinate"].values == i]
    run = f"in this run at {mine[np.abs(mine - when).argmin()]:.3g}" if len(mine) else "not in this run"
    sign = "+" if int(predicted["stage_sign"][k]) > 0 else "−"
    return (
        f"τ = {now:.3g}, stage {k + 1} of {count}: β{_low(i)} ({kind}) becomes active with sign {sign}, predicted at "
        f"τ = {when:.3g}, {run}; the loss then rests at {float(predicted['stage_loss'][k]):.3g} with "
        f"{int(predicted['support_size'][k])} active.{told}"
    )


PAGE = Page(
    "diagonal", "Diagonal networks", "Weights enter only through products u ⊙ v and start at scale α. The smaller α, "
    "the sharper the staircase: one coordinate after another becomes active, as Algorithm 1 predicts.",
    Diagonal, check, compute, panels, say, code,
    hint="While a slider moves, the flow is followed to 1 % per step; at rest, to 10⁻⁵.",
    moving="instant", marks=marks,
)  # fmt: skip
