"""The page of learning in context: the staircase, the directions that are learned, and the answers at that instant."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import incontext
from saddles.core.dispatch import predict, simulate
from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import RefusedError, View, number

ROWS = 240
"""Saved instants."""
PROMPTS = 150
"""Prompts whose answers are shown."""
RTOL = 1e-6
"""Error per step of the flow."""
MOST = 6
"""Largest dimension a page computes."""


@dataclass(frozen=True)
class InContext(View):
    """Inputs of falling variance, separate heads of rank one, and the size of their start."""

    decades: float = number(3.0, "−log₁₀ start", 1.5, 12.0, 0.5, "initial weights of size 10^−this")
    dim: int = number(3, "dimension", 2, MOST, 1, "of the inputs")
    ratio: float = number(
        0.7, "ratio of neighbouring variances", 0.4, 0.95, 0.05, "close ones are learned in any order"
    )
    heads: int = number(6, "heads", 1, 16, 1, "attention heads with keys and queries of rank one")
    prompt: int = number(31, "pairs in a prompt", 5, 200, 1)
    seed: int = number(0, "seed", 0, 999, 1, "draws the initial weights and the prompts")
    instant: int = number(100, "instant, % of the run", 0, 100, 1, "when the prompts are answered", still=True)


def check(view: InContext) -> None:
    """Refuse sizes that a page cannot follow while it is looked at."""
    if view.dim > MOST:
        raise RefusedError("dim", f"A page computes up to dimension {MOST}; got {view.dim}. Run larger ones in Python.")


def _key(view: InContext) -> tuple[float, int, float, int, int, int]:
    return view.decades, view.dim, view.ratio, view.heads, view.prompt, view.seed


def _pieces(
    decades: float, dim: int, ratio: float, heads: int, prompt: int
) -> "tuple[incontext.Separate, incontext.Regression]":
    return incontext.Separate(heads, 1, 10.0**-decades), incontext.Regression(ratio ** np.arange(dim), prompt)


@lru_cache(maxsize=64)
def _foreseen(decades: float, dim: int, ratio: float, heads: int, prompt: int, seed: int) -> xr.Dataset:
    return predict(*_pieces(decades, dim, ratio, heads, prompt), incontext.AlternatingFlows(dim), seed=seed)


def _end(predicted: xr.Dataset) -> float:
    return float(predicted["time"][-1])


def compute(view: InContext, draft: bool = False) -> Results:
    """The flow and its stages."""
    predicted = _foreseen(*_key(view))
    model, task = _pieces(*_key(view)[:-1])
    times = np.linspace(0.0, _end(predicted), ROWS)
    return {
        "measured": simulate(model, task, incontext.GradientFlow(rtol=RTOL), times=times, seed=view.seed),
        "predicted": predicted,
    }


def code(view: InContext) -> str:
    """Three lines."""
    return (
        "import numpy; from saddles import incontext, predict, simulate\n"
        f"model, task = incontext.Separate({view.heads}, 1, 10.0**-{view.decades!r}), "
        f"incontext.Regression({view.ratio!r} ** numpy.arange({view.dim}), {view.prompt})\n"
        f"predicted, measured = predict(model, task, incontext.AlternatingFlows({view.dim}), seed={view.seed}), "
        f"simulate(model, task, incontext.GradientFlow(rtol={RTOL!r}), "
        f"times=numpy.linspace(0.0, {_end(_foreseen(*_key(view)))!r}, {ROWS}), seed={view.seed})\n"
    )


def _row(view: InContext) -> int:
    return round(view.instant / 100 * (ROWS - 1))


def panels(view: InContext, results: Results) -> list[Panel]:
    """Loss, strengths of the directions, size of the heads, and answers."""
    measured = results["measured"]
    now = [draw.upright(float(measured["time"][_row(view)]), "", "#D55E00")]
    return [
        _loss(measured, results["predicted"], now),
        _directions(measured, now),
        _heads(measured, now),
        _answers(view, measured),
    ]


def _loss(measured: xr.Dataset, predicted: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    data = [
        draw.line(predicted["time"], predicted["loss"], "alternating flows", theory=True),
        draw.line(measured["time"], measured["loss"], "gradient flow", draw.colour(0)),
    ]
    first, last = float(measured["loss"][0]), float(measured["loss"][-1])
    words = f"Loss over gradient time: the flow, solid, falls from {first:.3g} to {last:.3g}; the prediction is dashed."
    layout = draw.layout("gradient time", "loss over all prompts", y={"rangemode": "tozero"}, shapes=shapes)
    return Panel("Loss", words, data, layout)


def _directions(measured: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    values = measured["eigenvalue"].values
    rows = measured["strength"].values * values
    data = [draw.line(measured["time"], rows[:, i], f"λ = {values[i]:.2g}", draw.colour(i)) for i in range(len(values))]
    ends = ", ".join(f"{row:.2f}" for row in rows[-1])
    words = f"How far each direction of the inputs is learned, over gradient time; they end at {ends}."
    layout = draw.layout("gradient time", "λ uᵀMu, 1 is learned for long prompts", shapes=shapes)
    return Panel("Directions, from the largest variance down", words, data, layout)


def _heads(measured: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    rows = measured["head_norm"].values
    data = [draw.line(measured["time"], rows[:, i], "", draw.colour(i)) for i in range(rows.shape[1])]
    awake = int((rows[-1] > 0.1 * rows.max()).sum())
    words = f"The part of each of {rows.shape[1]} heads over gradient time; {awake} of them are awake at the end."
    layout = draw.layout("gradient time", "norm of the head's part of M", shapes=shapes)
    return Panel("Heads", words, data, layout)


def _answers(view: InContext, measured: xr.Dataset) -> Panel:
    _, task = _pieces(*_key(view)[:-1])
    drawn = task.draw(PROMPTS, view.seed)
    beta = np.einsum("pn,pnd->pd", drawn.outputs, drawn.inputs) / view.prompt
    told = np.einsum("pd,de,pe->p", beta, measured["matrix"].values[_row(view)], drawn.query)
    most = float(np.abs(drawn.answer).max())
    data = [
        draw.line([-most, most], [-most, most], "right", theory=True),
        draw.dots(drawn.answer, told, "answers", draw.colour(0), marker={"size": 6}),
    ]
    error = float(np.mean((told - drawn.answer) ** 2))
    words = f"Answers to {PROMPTS} fresh prompts at the chosen instant against the true ones; mean square {error:.3g}."
    return Panel("Prompts, answered at that instant", words, data, draw.layout("true answer", "the model's answer"))


def say(view: InContext, results: Results) -> str:
    """How well the times are met."""
    measured, predicted = results["measured"], results["predicted"]
    stages = predicted.sizes["stage"] - 1
    levels = predicted["plateau"].values
    lowest = np.minimum.accumulate(measured["loss"].values)
    seen = np.interp(-(levels[1:] + levels[:-1]) / 2, -lowest, measured["time"].values)
    status = status_of(measured)
    told = "" if status.ok else f" The flow {status}."
    if not stages:
        return f"Nothing wakes in this setting.{told}"
    error = np.abs(predicted["stage_time"].values[1:] / seen - 1).max()
    return (
        f"{stages} directions are learned, one after another; the drops come within {100 * error:.2g} % of their "
        f"predicted times, read off {ROWS} instants. A smaller start sharpens the stairs.{told}"
    )


PAGE = Page(
    "incontext", "Learning in context", "Attention learns to regress in context, one direction of the inputs at a "
    "time. Losses and times of the steps are predicted before training; move the instant and see the prompts answered.",
    InContext, check, compute, panels, say, code, moving="instant", steps=100,
)  # fmt: skip
