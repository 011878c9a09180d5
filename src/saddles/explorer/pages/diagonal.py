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
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import RefusedError, View, choice, number
from saddles.measures import stages

STAGES = 8
ROWS = 200
"""Saved instants, always: one compiled program for all views of a model's size."""
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
    stage: int = number(0, "stage", 0, STAGES, 1, "step through what is learned", still=True)


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


def _clock(predicted: xr.Dataset) -> np.ndarray:
    times = predicted["stage_time"].values
    end = 1.2 * float(times[-1]) if len(times) else 10.0
    return np.linspace(0.0, end, ROWS)


def compute(view: Diagonal, draft: bool = False) -> Results:
    """The flow from α, and Algorithm 1's stages."""
    network, task = _pieces(*_sizes(view))
    predicted = _staircase(*_sizes(view))
    small = dataclasses.replace(network, log_alpha=-view.decades * math.log(10))
    method = diagonal.Flow(tolerance=DRAFT if draft else TOLERANCE)
    return {
        "measured": simulate(small, task, method, times=_clock(predicted), seed=view.seed),
        "predicted": predicted,
    }


def code(view: Diagonal) -> str:
    """Three lines."""
    network, task = _pieces(*_sizes(view))
    name = type(network).__name__
    clock = _clock(_staircase(*_sizes(view)))
    return (
        "import math, numpy; from saddles import diagonal, predict, simulate\n"
        f"model = diagonal.{name}({view.dim}, log_alpha=-{view.decades!r} * math.log(10)); "
        f"task = diagonal.TeacherStudent(model, {view.samples}, tokens={task.tokens}, seed={view.seed})\n"
        f"predicted, measured = predict(model, task, diagonal.Incremental({STAGES})), "
        f"simulate(model, task, diagonal.Flow(), "
        f"times=numpy.linspace(0.0, {float(clock[-1])!r}, {ROWS}), seed={view.seed})\n"
    )


def panels(view: Diagonal, results: Results) -> list[Panel]:
    """Weights and loss over rescaled time, the staircase dashed."""
    measured, predicted = results["measured"], results["predicted"]
    when = predicted["stage_time"].values
    shapes = (
        [draw.upright(when[view.stage - 1], f"stage {view.stage}", "#D55E00")] if 0 < view.stage <= len(when) else []
    )
    return [_weights(view, measured, predicted, shapes), _loss(measured, predicted, shapes)]


def _stairs(predicted: xr.Dataset, heights: np.ndarray, end: float) -> draw.Json:
    """Lines (curve, instant) that are constant from stage to stage: a point before and one after each jump."""
    clock = np.append(predicted["time"].values, end)
    return draw.lines(clock, np.hstack([heights, heights[:, -1:]]), "Algorithm 1", theory=True)


def _weights(view: Diagonal, measured: xr.Dataset, predicted: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    clock, beta = measured["time"].values, measured["beta"].values
    order = list(dict.fromkeys(int(i) for i in predicted["stage_coordinate"].values))
    rest = [i for i in range(beta.shape[1]) if i not in order]
    learned = {int(i) for i in predicted["stage_coordinate"].values[: view.stage or None]}
    data = [_stairs(predicted, predicted["beta"].values[:, order].T, clock[-1])] if order else []
    if rest:
        data.append(draw.lines(clock, beta[:, rest].T, "", draw.FAINT, line={"width": 1.2}))
    for i in order[::-1]:
        words = f"β{_low(i)}" if i in order[:4] else ""
        line = {} if i in learned else {"width": 1.2}
        data.append(draw.line(clock, beta[:, i], words, draw.colour(order.index(i)), line=line))
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
        _stairs(predicted, predicted["loss"].values[None], clock[-1]),
        draw.line(clock, measured["loss"], "gradient flow", draw.colour(0)),
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
    if view.stage == 0 or not count:
        where = np.searchsorted(predicted["time"].values, measured["time"].values, side="right") - 1
        gap = np.abs(measured["loss"].values - predicted["loss"].values[where]).mean() / float(predicted["loss"][0])
        return (
            f"{count} stages are predicted. At α = 10^−{view.decades:g} the loss curve is {100 * gap:.2g} % of the "
            f"first loss from the staircase, on average; a smaller α sharpens it.{told}"
        )
    if view.stage > count:
        return f"Only {count} stages are predicted: after them nothing grows any more.{told}"
    k = view.stage - 1
    i, when = int(predicted["stage_coordinate"][k]), float(predicted["stage_time"][k])
    kind = NAMES.get(str(predicted["family"].values[i]), str(predicted["family"].values[i]))
    seen = stages(measured)
    mine = seen["unit_time"].values[seen["stage_coordinate"].values == i]
    run = f"in this run at {mine[np.abs(mine - when).argmin()]:.3g}" if len(mine) else "not in this run"
    sign = "+" if int(predicted["stage_sign"][k]) > 0 else "−"
    return (
        f"Stage {view.stage} of {count}: β{_low(i)} ({kind}) becomes active with sign {sign}, predicted at "
        f"τ = {when:.3g}, {run}; the loss then rests at {float(predicted['stage_loss'][k]):.3g} with "
        f"{int(predicted['support_size'][k])} active.{told}"
    )


PAGE = Page(
    "diagonal", "Diagonal networks", "Weights enter only through products u ⊙ v and start at scale α. The smaller α, "
    "the sharper the staircase: one coordinate after another becomes active, as Algorithm 1 predicts.",
    Diagonal, check, compute, panels, say, code,
    hint="While a slider moves, the flow is followed to 1 % per step; at rest, to 10⁻⁵.",
    moving="stage", steps=STAGES,
)  # fmt: skip
