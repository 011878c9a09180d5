"""The page of learning in context: the staircase, the directions that are learned, and the answers at that instant."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import incontext
from saddles.core.dispatch import predict, simulate
from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.clock import around
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import RefusedError, View, clock, number

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
    instant: float = clock("share of the saved instants that has passed, most of them around the stages")


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


def compute(view: InContext, draft: bool = False) -> Results:
    """The flow and its stages."""
    predicted = _foreseen(*_key(view))
    model, task = _pieces(*_key(view)[:-1])
    times = around(predicted, view.decades)
    return {
        "measured": simulate(
            model, task, incontext.GradientFlow(rtol=RTOL), times=times, seed=view.seed, keep=["weights"]
        ),
        "predicted": predicted,
    }


def code(view: InContext) -> str:
    """Three lines."""
    return (
        "import numpy; from saddles import incontext, predict, simulate; from saddles.explorer.clock import around\n"
        f"model, task = incontext.Separate({view.heads}, 1, 10.0**-{view.decades!r}), "
        f"incontext.Regression({view.ratio!r} ** numpy.arange({view.dim}), {view.prompt})\n"
        f"predicted = predict(model, task, incontext.AlternatingFlows({view.dim}), seed={view.seed}); "
        f"measured = simulate(model, task, incontext.GradientFlow(rtol={RTOL!r}), "
        f"times=around(predicted, {view.decades!r}), seed={view.seed}, keep=['weights'])\n"
    )


def _row(view: InContext, measured: xr.Dataset) -> int:
    return round(view.instant * (measured.sizes["time"] - 1))


def marks(view: InContext, results: Results) -> list[float]:
    """Instants between the drops."""
    clock, when = results["measured"]["time"].values, results["predicted"]["stage_time"].values
    rows = np.searchsorted(clock, (when + np.append(when[1:], clock[-1])) / 2)
    return [round(float(row) / (len(clock) - 1), 3) for row in rows]


def panels(view: InContext, results: Results) -> list[Panel]:
    """Loss, strengths of the directions, size and directions of the heads, the matrix, one prompt, and answers."""
    measured = results["measured"]
    row = _row(view, measured)
    now = [draw.upright(float(measured["time"][row]), "", "#D55E00")] if view.instant < 1 else []
    return [
        replace(_loss(measured, results["predicted"], now), wide=True),
        _directions(measured, now),
        _heads(measured, now),
        _pointing(measured, row),
        _prompt(view, measured, row),
        _answers(view, measured, row),
        _matrix(measured, row),
    ]


def _matrix(measured: xr.Dataset, row: int) -> Panel:
    """M in the coordinates of the inputs, whose covariance is diagonal: what is learned lights up on its diagonal."""
    grids, values = measured["matrix"].values, measured["eigenvalue"].values
    scaled = grids[row] * np.sqrt(np.outer(values, values))
    ends = np.abs(grids[-1] * np.sqrt(np.outer(values, values))).max()
    names = [f"{value:.2g}" for value in values]
    top = float(max(ends, 1e-9))
    data = [draw.heat(scaled[::-1], names, names[::-1], zmin=-top, zmax=top, colorscale="RdBu", xgap=2, ygap=2,
                      hovertemplate="%{y}, %{x}: %{z:.3g}<extra></extra>")]  # fmt: skip
    lit = ", ".join(f"{value:.2f}" for value in np.diag(scaled))
    when = float(measured["time"][row])
    words = f"The matrix M of the attention layer at gradient time {when:.4g}: its diagonal is {lit}."
    flat = {"type": "category", "showgrid": False}
    layout = draw.layout("λ of the query's direction", "λ of the inputs' direction", x=flat, y=flat)
    return Panel("The layer's matrix √λ M √λ at this instant", words, data, layout, waits=True)


def _loss(measured: xr.Dataset, predicted: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    data = [
        draw.line(measured["time"], measured["loss"], "gradient flow", draw.colour(0)),
        draw.line(predicted["time"], predicted["loss"], "alternating flows", theory=True),
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
    layout = draw.layout("gradient time", "share learned, λ uᵀMu", shapes=shapes)
    return Panel("Directions, from the largest variance down", words, data, layout)


def _heads(measured: xr.Dataset, shapes: list[draw.Json]) -> Panel:
    rows = measured["head_norm"].values
    awake = [int(i) for i in np.argsort(-rows.sum(axis=0)) if rows[-1, i] > 0.1 * rows.max()]
    asleep = [i for i in range(rows.shape[1]) if i not in awake]
    data = (
        [draw.lines(measured["time"], rows[:, asleep].T, "asleep", draw.FAINT, line={"width": 1.4}, legendrank=99)]
        if asleep
        else []
    )
    data += [
        draw.line(measured["time"], rows[:, i], f"head {i}", draw.colour(place), legendrank=place)
        for place, i in reversed(list(enumerate(awake)))
    ]
    words = f"The part of each of {rows.shape[1]} heads over gradient time; {len(awake)} of them are awake at the end."
    layout = draw.layout("gradient time", "norm of the head's part of M", shapes=shapes)
    return Panel("Heads", words, data, layout)


def _pointing(measured: xr.Dataset, row: int) -> Panel:
    """Which direction of the inputs each head's key looks for: Λ is diagonal, so its squared entries are the shares."""
    keys, values = measured["key"].values[row, :, :, 0], measured["eigenvalue"].values
    shares = keys**2 / np.sum(keys**2, axis=1, keepdims=True)
    heads = [f"head {i}" for i in range(len(shares))]
    data = [draw.heat(shares[::-1], [f"{value:.2g}" for value in values], heads[::-1], zmin=0, zmax=1,
                      colorscale="Blues", reversescale=True, xgap=2, ygap=2,
                      hovertemplate="%{y}, λ = %{x}: %{z:.2f}<extra></extra>")]  # fmt: skip
    found = int((shares.max(axis=1) > 0.9).sum())
    when = float(measured["time"][row])
    words = f"Where each head's key points at gradient time {when:.4g}: {found} of {len(shares)} along one direction."
    flat = {"type": "category", "showgrid": False}
    return Panel("Directions of the heads at this instant", words, data,
                 draw.layout("λ of the inputs' direction", "", x=flat, y=flat), waits=True)  # fmt: skip


def _prompt(view: InContext, measured: xr.Dataset, row: int) -> Panel:
    """One prompt: the weights w that fit its pairs, and those that the model reads from it, Mᵀβ."""
    _, task = _pieces(*_key(view)[:-1])
    one = task.draw(1, view.seed)
    inputs, outputs = one.inputs[0], one.outputs[0]
    right = np.linalg.lstsq(inputs, outputs, rcond=None)[0]
    read = measured["matrix"].values[row].T @ (outputs @ inputs) / view.prompt
    told, true = float(read @ one.query[0]), float(one.answer[0])
    names = [f"{value:.2g}" for value in measured["eigenvalue"].values]
    data = [
        draw.bars(names, weights, [shade] * len(names), name=name, showlegend=True)
        for weights, shade, name in (
            (right, draw.FAINT, f"that fit the prompt: answer {true:.2f}"),
            (read, draw.colour(0), f"that the model reads: answer {told:.2f}"),
        )
    ]
    words = (
        f"Weights that fit one prompt of {view.prompt} pairs, and those that the model reads from it at this instant; "
        f"it answers {told:.2f} to the query, {true:.2f} is right."
    )
    layout = draw.layout("λ of the inputs' direction", "weight w", x={"type": "category"}, barmode="group")
    return Panel("One prompt, read at this instant", words, data, layout, waits=True)


def _answers(view: InContext, measured: xr.Dataset, row: int) -> Panel:
    _, task = _pieces(*_key(view)[:-1])
    drawn = task.draw(PROMPTS, view.seed)
    beta = np.einsum("pn,pnd->pd", drawn.outputs, drawn.inputs) / view.prompt
    told = np.einsum("pd,de,pe->p", beta, measured["matrix"].values[row], drawn.query)
    most = float(np.abs(drawn.answer).max())
    data = [
        draw.line([-most, most], [-most, most], "the right answer", theory=True),
        draw.dots(drawn.answer, told, "answers", draw.colour(0), marker={"size": 6}),
    ]
    error = float(np.mean((told - drawn.answer) ** 2))
    layout = draw.layout("true answer", "the model's answer", y={"range": [-1.05 * most, 1.05 * most]})
    words = f"Answers to {PROMPTS} fresh prompts at the chosen instant against the true ones; mean square {error:.3g}."
    return Panel("Prompts, answered at that instant", words, data, layout, waits=True)


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
    met = lowest[-1] < (levels[1:] + levels[:-1]) / 2
    if not met.any():
        return f"None of the {stages} predicted directions is learned by the end of this run.{told}"
    error = np.abs(predicted["stage_time"].values[1:] / seen - 1)[met].max()
    learned = f"{stages} directions are" if met.all() else f"{met.sum()} of {stages} predicted directions are"
    return (
        f"{learned} learned, one after another; the drops come within {100 * error:.2g} % of their "
        f"predicted times. A smaller start sharpens the stairs.{told}"
    )


PAGE = Page(
    "incontext", "Learning in context", "Attention learns to regress in context, one direction of the inputs at a "
    "time. Losses and times of the steps are predicted before training; move the instant and see the prompts answered.",
    InContext, check, compute, panels, say, code, moving="instant", marks=marks, short="In context",
)  # fmt: skip
