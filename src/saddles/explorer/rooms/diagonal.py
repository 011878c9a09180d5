"""The room of diagonal networks: one coordinate at a time, the staircase behind the curves."""

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.room import Panel, Room
from saddles.explorer.view import choice, number, refuse

STAGES = 8
ROWS = 200
"""Saved instants, always: one compiled program for all views of a model's size."""
TOLERANCE, DRAFT = 1e-5, 1e-2
"""Error a step of the flow, and while a slider moves."""
MOST = {"linear": 40, "head": 8}
"""Largest dimension a page computes."""
NAMES = {"weight": "weight", "key_query": "key–query entry", "value_output": "value–output entry"}


@dataclass(frozen=True)
class Diagonal:
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
        raise refuse(
            "dim",
            f"dimension {view.dim} came",
            f"this page computes this model up to {most}",
            "run larger ones in Python",
        )  # fmt: skip


def _sizes(view: Diagonal) -> tuple[str, int, int, int]:
    return view.model, view.dim, view.samples, view.seed


@lru_cache(maxsize=16)
def _pieces(model: str, dim: int, samples: int, seed: int) -> tuple[Any, Any]:
    from saddles.diagonal import AttentionHead, LinearDiagonal, TeacherStudent

    network = LinearDiagonal(dim) if model == "linear" else AttentionHead(dim)
    return network, TeacherStudent(network, samples, tokens=4, seed=seed)


@lru_cache(maxsize=64)
def _staircase(model: str, dim: int, samples: int, seed: int) -> xr.Dataset:
    """Algorithm 1, which does not depend on α."""
    from saddles import predict
    from saddles.diagonal import Incremental

    network, task = _pieces(model, dim, samples, seed)
    return predict(network, task, Incremental(STAGES))


def _clock(foreseen: xr.Dataset) -> np.ndarray:
    times = foreseen["stage_time"].values
    end = 1.2 * float(times[-1]) if len(times) else 10.0
    return np.linspace(0.0, end, ROWS)


def compute(view: Diagonal, draft: bool = False) -> dict[str, xr.Dataset]:
    """The flow from α, and Algorithm 1's stages."""
    from saddles import simulate
    from saddles.diagonal import Flow

    network, task = _pieces(*_sizes(view))
    foreseen = _staircase(*_sizes(view))
    small = dataclasses.replace(network, log_alpha=-view.decades * math.log(10))
    method = Flow(tolerance=DRAFT if draft else TOLERANCE)
    return {
        "measured": simulate(small, task, method, times=_clock(foreseen), seed=view.seed),
        "predicted": foreseen,
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


def panels(view: Diagonal, found: dict[str, xr.Dataset]) -> list[Panel]:
    """Weights and loss over rescaled time, the staircase dashed."""
    measured, foreseen = found["measured"], found["predicted"]
    when = foreseen["stage_time"].values
    shapes = (
        [draw.upright(when[view.stage - 1], f"stage {view.stage}", "#D55E00")] if 0 < view.stage <= len(when) else []
    )
    return [_weights(view, measured, foreseen, shapes), _loss(measured, foreseen, shapes)]


def _stairs(foreseen: xr.Dataset, heights: np.ndarray, end: float) -> dict[str, Any]:
    """Lines (curve, instant) that are constant from stage to stage: a point before and one after each jump."""
    clock = np.append(foreseen["time"].values, end)
    return draw.lines(clock, np.hstack([heights, heights[:, -1:]]), "Algorithm 1", theory=True)


def _weights(view: Diagonal, measured: xr.Dataset, foreseen: xr.Dataset, shapes: Any) -> Panel:
    clock, beta = measured["time"].values, measured["beta"].values
    order = list(dict.fromkeys(int(i) for i in foreseen["stage_coordinate"].values))
    rest = [i for i in range(beta.shape[1]) if i not in order]
    learned = {int(i) for i in foreseen["stage_coordinate"].values[: view.stage or None]}
    data = [_stairs(foreseen, foreseen["beta"].values[:, order].T, clock[-1])] if order else []
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


def _loss(measured: xr.Dataset, foreseen: xr.Dataset, shapes: Any) -> Panel:
    clock = measured["time"].values
    data = [
        _stairs(foreseen, foreseen["loss"].values[None], clock[-1]),
        draw.line(clock, measured["loss"], "gradient flow", draw.colour(0)),
    ]
    first, last = float(measured["loss"][0]), float(measured["loss"][-1])
    words = f"Loss over rescaled time: the flow, solid, falls from {first:.3g} to {last:.3g}; the staircase is dashed."
    layout = draw.layout("rescaled time τ = t / log(1/α)", "loss", y={"rangemode": "tozero"}, shapes=shapes)
    return Panel("Loss", words, data, layout)


def say(view: Diagonal, found: dict[str, xr.Dataset]) -> str:
    """The stage that is looked at, predicted and measured; or how far the curve is from the staircase."""
    from saddles.measures import stages

    measured, foreseen = found["measured"], found["predicted"]
    count = foreseen.sizes["stage"]
    status = status_of(measured)
    told = "" if status.ok else f" The flow {status}."
    if view.stage == 0 or not count:
        where = np.searchsorted(foreseen["time"].values, measured["time"].values, side="right") - 1
        gap = np.abs(measured["loss"].values - foreseen["loss"].values[where]).mean() / float(foreseen["loss"][0])
        return (
            f"{count} stages are foreseen. At α = 10^−{view.decades:g} the loss curve is {100 * gap:.2g} % of the "
            f"first loss from the staircase, on average; a smaller α sharpens it.{told}"
        )
    if view.stage > count:
        return f"Only {count} stages are foreseen: after them nothing grows any more.{told}"
    k = view.stage - 1
    i, when = int(foreseen["stage_coordinate"][k]), float(foreseen["stage_time"][k])
    kind = NAMES.get(str(foreseen["family"].values[i]), str(foreseen["family"].values[i]))
    seen = stages(measured)
    mine = seen["unit_time"].values[seen["stage_coordinate"].values == i]
    run = f"in this run at {mine[np.abs(mine - when).argmin()]:.3g}" if len(mine) else "not in this run"
    sign = "+" if int(foreseen["stage_sign"][k]) > 0 else "−"
    return (
        f"Stage {view.stage} of {count}: β{_low(i)} ({kind}) becomes active with sign {sign}, foreseen at "
        f"τ = {when:.3g}, {run}; the loss then rests at {float(foreseen['stage_loss'][k]):.3g} with "
        f"{int(foreseen['support_size'][k])} active.{told}"
    )


ROOM = Room(
    "diagonal", "Diagonal networks", "Weights enter only through products u ⊙ v and start at scale α. The smaller α, "
    "the sharper the staircase: one coordinate after another becomes active, as Algorithm 1 foresees.",
    Diagonal, check, compute, panels, say, code,
    hint="While a slider moves, the flow is followed to 1 % a step; at rest, to 10⁻⁵.",
    moving="stage", steps=STAGES,
)  # fmt: skip
