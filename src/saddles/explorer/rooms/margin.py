"""The room of margins: tokens in the plane, the attention the flow converges to, and three norms."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from saddles.explorer import draw
from saddles.explorer.room import Panel, Room
from saddles.explorer.view import choice, number, refuse

NORMS = ("l1", "nuclear", "frobenius")
WORDS = {"l1": "ℓ1 (diagonal)", "nuclear": "nuclear", "frobenius": "Frobenius"}
EXPECTED = {"diagonal": "l1", "factored": "nuclear", "joint": "frobenius"}
MOST_STEPS = 3000
"""Solver steps a page spends."""
MOST_TOKENS = 40
GROWN = "norm of W (Frobenius)"


@dataclass(frozen=True)
class Margin:
    """Sequences of tokens in the plane, and how the attention weights are trained."""

    model: str = choice("joint", "parametrisation", {"diagonal": "diagonal K and Q", "factored": "full K and Q",
                                                     "joint": "one matrix W"})  # fmt: skip
    sequences: int = number(3, "sequences", 1, 8, 1)
    length: int = number(4, "tokens a sequence", 2, 8, 1)
    seed: int = number(0, "seed", 0, 999, 1, "draws tokens, queries, labels and the head")
    decades: float = number(3.0, "log₁₀ of the norm", 1.0, 5.0, 0.5, "the flow is followed until ‖W‖ is 10^this")
    scale: float = number(0.1, "initial scale", 0.001, 1.0, 0.001, "of K and Q")
    instant: float = number(1.0, "instant", 0.0, 1.0, 0.01, "share of the saved instants that has passed", still=True)


def check(view: Margin) -> None:
    """Refuse more tokens than the page follows."""
    count = view.sequences * view.length
    if count > MOST_TOKENS:
        raise refuse(
            "sequences",
            f"{view.sequences} sequences of {view.length} tokens came",
            f"a page follows up to {MOST_TOKENS} tokens in all",
            "use fewer or shorter sequences",
        )  # fmt: skip


@lru_cache(maxsize=16)
def _task(sequences: int, length: int, seed: int) -> Any:
    from saddles.margin import Tokens

    return Tokens.random(sequences, length, 2, assumption=1, seed=seed, diagonal=True)


def _model(view: Margin) -> Any:
    from saddles import margin

    if view.model == "joint":
        return margin.JointAttention()
    return (
        margin.DiagonalAttention(view.scale) if view.model == "diagonal" else margin.FactoredAttention(scale=view.scale)
    )


@lru_cache(maxsize=32)
def _limits(sequences: int, length: int, seed: int) -> dict[str, xr.Dataset]:
    """The three max-margin solutions, which do not depend on the training."""
    from saddles import margin, predict

    task = _task(sequences, length, seed)
    models = {
        "l1": margin.DiagonalAttention(),
        "nuclear": margin.FactoredAttention(),
        "frobenius": margin.JointAttention(),
    }
    return {norm: predict(models[norm], task, margin.MaxMargin(norm)) for norm in NORMS}


def compute(view: Margin, draft: bool = False) -> dict[str, xr.Dataset]:
    """The flow, and the solutions of the three max-margin problems."""
    from saddles import margin, simulate

    task = _task(view.sequences, view.length, view.seed)
    method = margin.MarginFlow(until_norm=10.0**view.decades, max_steps=MOST_STEPS)
    drawn = {"seed": view.seed} if view.model == "factored" else {}  # the other two start at a fixed place
    return {"measured": simulate(_model(view), task, method, **drawn)} | _limits(
        view.sequences, view.length, view.seed
    )


def code(view: Margin) -> str:
    """Three lines."""
    model = {"joint": "margin.JointAttention()", "diagonal": f"margin.DiagonalAttention({view.scale!r})",
             "factored": f"margin.FactoredAttention(scale={view.scale!r})"}[view.model]  # fmt: skip
    return (
        "from saddles import margin, predict, simulate\n"
        f"task = margin.Tokens.random({view.sequences}, {view.length}, 2, assumption=1, seed={view.seed}, "
        f"diagonal=True); measured = simulate({model}, task, margin.MarginFlow(until_norm={10.0**view.decades!r}, "
        f"max_steps={MOST_STEPS}){f', seed={view.seed}' if view.model == 'factored' else ''})\n"
        "l1, nuclear, frobenius = (predict(m(), task, margin.MaxMargin(n)) for m, n in "
        "((margin.DiagonalAttention, 'l1'), "
        "(margin.FactoredAttention, 'nuclear'), (margin.JointAttention, 'frobenius')))\n"
    )


def _matrices(run: xr.Dataset) -> np.ndarray:
    """W over time, also of a diagonal layer."""
    if "weights" in run:
        return run["weights"].values
    return np.stack([np.diag(beta) for beta in run["beta"].values])


def _attention(task: Any, weights: np.ndarray) -> np.ndarray:
    """softmax of x_lᵀ W z over the tokens of each sequence, shape (…, sequence, token)."""
    logits = np.einsum("nld,...de,ne->...nl", task.X, weights, task.z)
    logits = logits - logits.max(axis=-1, keepdims=True)
    share = np.exp(logits)
    return share / share.sum(axis=-1, keepdims=True)


def panels(view: Margin, found: dict[str, xr.Dataset]) -> list[Panel]:
    """Tokens with their attention, attention over training, norms at unit margin."""
    task, run = _task(view.sequences, view.length, view.seed), found["measured"]
    now = round(view.instant * (run.sizes["time"] - 1))
    shares = _attention(task, _matrices(run))
    return [_tokens(task, run, shares[now], now), _shares(task, run, shares, now), _norms(view, found, now)]


def _tokens(task: Any, run: xr.Dataset, share: np.ndarray, now: int) -> Panel:
    data = []
    for i in range(len(task.X)):
        look = {
            "size": (7 + 22 * np.sqrt(share[i])).tolist(),
            "symbol": ["star" if token == task.optimal[i] else "circle" for token in range(task.shape[1])],
            "opacity": 0.85,
            "line": {"width": 0},
        }
        name = f"sequence {i + 1}"
        told = "attention %{customdata:.3f}<extra>" + name + "</extra>"
        shown = {"customdata": share[i].tolist(), "hovertemplate": told}
        data.append(draw.dots(task.X[i, :, 0], task.X[i, :, 1], name, draw.colour(i), marker=look, **shown))
        target = task.z[i]
        data.append(
            draw.line(
                [0, target[0]], [0, target[1]], "", draw.colour(i), line={"width": 1.5, "dash": "dot"}, hoverinfo="skip"
            )
        )
    best = share[np.arange(len(share)), task.optimal]
    words = (
        f"Tokens in the plane, one colour a sequence, sized by the attention they get at ‖W‖ = "
        f"{float(run['frobenius_norm'][now]):.3g}; "
        f"stars are optimal tokens and get {', '.join(f'{b:.2f}' for b in best)}; dotted lines are the queries."
    )
    return Panel("Tokens ● optimal ★, sized by attention; queries dotted", words, data,
                 draw.layout("coordinate 1", "coordinate 2", x={"constrain": "domain"},
                             y={"scaleanchor": "x", "constrain": "domain"}))  # fmt: skip


def _grown(run: xr.Dataset) -> np.ndarray:
    return np.maximum(run["frobenius_norm"].values, 1e-3)


def _shares(task: Any, run: xr.Dataset, shares: np.ndarray, now: int) -> Panel:
    size = _grown(run)
    data = [
        draw.line(size, shares[:, i, task.optimal[i]], f"sequence {i + 1}", draw.colour(i)) for i in range(len(task.X))
    ]
    ends = ", ".join(f"{row[best]:.3f}" for row, best in zip(shares[-1], task.optimal, strict=True))
    words = f"Attention on the optimal token of each sequence as the weights grow; at the end {ends}."
    shapes = [draw.upright(size[now])]
    return Panel("Attention on the optimal token", words, data,
                 draw.layout(GROWN, "attention", x={"type": "log"}, y={"range": [0, 1.03]}, shapes=shapes))  # fmt: skip


def _norms(view: Margin, found: dict[str, xr.Dataset], now: int) -> Panel:
    run = found["measured"]
    size, margin = _grown(run), run["margin"].where(run["margin"] > 0).values
    curves = {"nuclear": run["nuclear_norm"].values / margin, "frobenius": run["frobenius_norm"].values / margin}
    if view.model == "diagonal":
        curves = {"l1": curves["nuclear"], "frobenius": curves["frobenius"]}
    data, words = [], []
    for place, norm in enumerate(NORMS):
        best = float(found[norm]["objective"][0])
        if norm in curves:
            data.append(draw.line(size, curves[norm], f"{WORDS[norm]}, run", draw.colour((0, 3, 2)[place])))
            words.append(f"{WORDS[norm]} {curves[norm][-1]:.3g} (least {best:.3g})")
        shade = draw.colour((0, 3, 2)[place])
        data.append(
            draw.line(
                size[[0, -1]], [best, best], f"{WORDS[norm]}, least", shade, line={"dash": "6px,3px", "width": 1.4}
            )
        )
    lows = [float(found[norm]["objective"][0]) for norm in NORMS]
    tops = [float(np.nanmax(curve[size > 1])) for curve in curves.values() if np.isfinite(curve[size > 1]).any()]
    ceiling = min(3.0 * max(lows), 1.1 * max([*tops, 1.1 * max(lows)]))
    height = {"range": [0.8 * min(lows), ceiling]}
    layout = draw.layout(GROWN, "norm at unit margin", x={"type": "log"}, y=height, shapes=[draw.upright(size[now])])
    return Panel(
        "Norms at unit margin: run solid, least possible dashed",
        f"Norms of W at unit margin: {'; '.join(words)}.",
        data,
        layout,
    )


def say(view: Margin, found: dict[str, xr.Dataset]) -> str:
    """Which norm this training is expected to minimise, and how close it is."""
    run, norm = found["measured"], EXPECTED[view.model]
    best, size = float(found[norm]["objective"][0]), "nuclear_norm" if norm != "frobenius" else "frobenius_norm"
    margin = float(run["margin"][-1])
    told = "" if run.attrs["status"] == "finished" else f" The flow {run.attrs['status']}."
    if margin <= 0:
        return f"The margin is not positive yet at ‖W‖ = {float(run['frobenius_norm'][-1]):.3g}.{told}"
    excess = float(run[size][-1]) / margin / best - 1
    return (
        f"This parametrisation is expected to converge to the solution of least {WORDS[norm]} norm, {best:.3g}. "
        f"At ‖W‖ = {float(run['frobenius_norm'][-1]):.3g} the run is {100 * excess:.2g} % above it.{told}"
    )


ROOM = Room(
    "margin", "Margin", "One attention layer on separable sequences: its weights grow without end, its direction "
    "converges. Which solution it finds depends on how W = KQᵀ is parametrised.",
    Margin, check, compute, panels, say, code, moving="instant",
)  # fmt: skip
