"""The page of margins: tokens in the plane, the attention the flow converges to, and three norms."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import margin
from saddles.core.dispatch import predict, simulate
from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.page import Fit, Page, Panel, Results
from saddles.explorer.view import RefusedError, View, choice, clock, number

NORMS = ("l1", "nuclear", "frobenius")
WORDS = {"l1": "ℓ1 (diagonal)", "nuclear": "nuclear", "frobenius": "Frobenius"}
EXPECTED = {"diagonal": "l1", "factored": "nuclear", "joint": "frobenius"}
MOST_STEPS = 3000
"""Solver steps a page spends."""
MOST_TOKENS = 40
GROWN = "norm of W (Frobenius)"


@dataclass(frozen=True)
class Margin(View):
    """Sequences of tokens in the plane, and how the attention weights are trained."""

    model: str = choice("joint", "parametrisation", {"diagonal": "diagonal K and Q", "factored": "full K and Q",
                                                     "joint": "one matrix W"})  # fmt: skip
    sequences: int = number(3, "sequences", 1, 8, 1)
    length: int = number(4, "tokens per sequence", 2, 8, 1)
    seed: int = number(0, "seed", 0, 999, 1, "draws tokens, queries, labels and the head")
    decades: float = number(3.0, "log₁₀ of the norm", 1.0, 5.0, 0.5, "the flow is followed until ‖W‖ is 10^this")
    scale: float = number(0.1, "initial scale", 0.001, 1.0, 0.001, "of K and Q")
    instant: float = clock("share of the saved instants that has passed")


def check(view: Margin) -> None:
    """Refuse more tokens than the page follows."""
    count = view.sequences * view.length
    if count > MOST_TOKENS:
        sentence = f"A page follows up to {MOST_TOKENS} tokens in all; got {count}. Use fewer or shorter sequences."
        raise RefusedError("sequences", sentence)


@lru_cache(maxsize=16)
def _task(sequences: int, length: int, seed: int) -> "margin.Tokens":
    return margin.Tokens.random(sequences, length, 2, assumption=1, seed=seed, diagonal=True)


def _model(view: Margin) -> "margin.AttentionModel":
    if view.model == "joint":
        return margin.JointAttention()
    return (margin.DiagonalAttention if view.model == "diagonal" else margin.FactoredAttention)(scale=view.scale)


@lru_cache(maxsize=32)
def _limits(sequences: int, length: int, seed: int) -> Results:
    """The three max-margin solutions, which do not depend on the training."""
    task = _task(sequences, length, seed)
    models = {
        "l1": margin.DiagonalAttention(),
        "nuclear": margin.FactoredAttention(),
        "frobenius": margin.JointAttention(),
    }
    return {norm: predict(models[norm], task, margin.MaxMargin(norm)) for norm in NORMS}


def compute(view: Margin, draft: bool = False) -> Results:
    """The flow, and the solutions of the three max-margin problems."""
    task = _task(view.sequences, view.length, view.seed)
    method = margin.MarginFlow(until_norm=10.0**view.decades, max_steps=MOST_STEPS)
    seed = view.seed if view.model == "factored" else 0  # the other two start at a fixed place
    measured = simulate(_model(view), task, method, seed=seed)
    return {"measured": measured} | _limits(view.sequences, view.length, view.seed)


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


def _attention(task: "margin.Tokens", weights: np.ndarray) -> np.ndarray:
    """softmax of x_lᵀ W z over the tokens of each sequence, shape (…, sequence, token)."""
    logits = np.einsum("nld,...de,ne->...nl", task.X, weights, task.z)
    logits = logits - logits.max(axis=-1, keepdims=True)
    share = np.exp(logits)
    return share / share.sum(axis=-1, keepdims=True)


def panels(view: Margin, results: Results) -> list[Panel]:
    """Tokens with their attention, attention over training, norms at unit margin."""
    task, run = _task(view.sequences, view.length, view.seed), results["measured"]
    now = round(view.instant * (run.sizes["time"] - 1))
    shares = _attention(task, _matrices(run))
    return [_tokens(task, run, shares[now], now), _shares(task, run, shares, now), _norms(view, results, now)]


def _tokens(task: "margin.Tokens", run: xr.Dataset, share: np.ndarray, now: int) -> Panel:
    data = []
    for i in range(len(task.X)):
        # The optimal token last: the legend shows the first one's mark, the same for every sequence.
        order = np.argsort(np.arange(task.shape[1]) == task.optimal[i], kind="stable")
        look = {
            "size": (7 + 22 * np.sqrt(share[i, order])).tolist(),
            "symbol": ["circle"] * (task.shape[1] - 1) + ["star"],
            "opacity": 0.85,
            "line": {"width": 0},
        }
        name = f"sequence {i + 1}"
        told = "attention %{customdata:.3f}<extra>" + name + "</extra>"
        shown = {"customdata": share[i, order].tolist(), "hovertemplate": told}
        data.append(draw.dots(task.X[i, order, 0], task.X[i, order, 1], name, draw.colour(i), marker=look, **shown))
        target = task.z[i]
        dotted = {"width": 1.5, "dash": "dot"}
        data.append(draw.line([0, target[0]], [0, target[1]], "", draw.colour(i), line=dotted, hoverinfo="skip"))
    best = share[np.arange(len(share)), task.optimal]
    words = (
        f"Tokens in the plane, one colour per sequence, sized by the attention they get at ‖W‖ = "
        f"{float(run['frobenius_norm'][now]):.3g}; "
        f"stars are optimal tokens and get {', '.join(f'{b:.2f}' for b in best)}; dotted lines are the queries."
    )
    return Panel("Tokens ● optimal ★, sized by attention; queries dotted", words, data,
                 draw.layout("coordinate 1", "coordinate 2", x={"constrain": "domain"},
                             y={"scaleanchor": "x", "constrain": "domain"}))  # fmt: skip


def _grown(run: xr.Dataset) -> np.ndarray:
    return np.maximum(run["frobenius_norm"].values, 1e-3)


def _shares(task: "margin.Tokens", run: xr.Dataset, shares: np.ndarray, now: int) -> Panel:
    size = _grown(run)
    data = [
        draw.line(size, shares[:, i, task.optimal[i]], f"sequence {i + 1}", draw.colour(i)) for i in range(len(task.X))
    ]
    ends = ", ".join(f"{row[best]:.3f}" for row, best in zip(shares[-1], task.optimal, strict=True))
    words = f"Attention on the optimal token of each sequence as the weights grow; at the end {ends}."
    shapes = [draw.upright(size[now])]
    x, y = {"type": "log", "dtick": 1}, {"range": [0, 1.03]}
    return Panel("Attention on the optimal token", words, data,
                 draw.layout(GROWN, "attention", x=x, y=y, shapes=shapes))  # fmt: skip


def _norms(view: Margin, results: Results, now: int) -> Panel:
    run = results["measured"]
    size, least = _grown(run), run["margin"].where(run["margin"] > 0).values
    curves = {"nuclear": run["nuclear_norm"].values / least, "frobenius": run["frobenius_norm"].values / least}
    if view.model == "diagonal":
        curves = {"l1": curves["nuclear"], "frobenius": curves["frobenius"]}
    data, words = [], []
    dashed = {"dash": "6px,3px", "width": 1.4}
    for norm, place in zip(NORMS, (0, 3, 2), strict=True):
        best, shade = float(results[norm]["objective"][0]), draw.colour(place)
        if norm in curves:
            data.append(draw.line(size, curves[norm], f"{WORDS[norm]}, run", shade))
            reached = f"{curves[norm][-1]:.3g}" if run["margin"][-1] > 0 else "none, the margin is not positive"
            words.append(f"{WORDS[norm]} {reached} (least {best:.3g})")
        data.append(draw.line(size[[0, -1]], [best, best], f"{WORDS[norm]}, least", shade, line=dashed))
    lows = [float(results[norm]["objective"][0]) for norm in NORMS]
    tops = [float(np.nanmax(curve[size > 1])) for curve in curves.values() if np.isfinite(curve[size > 1]).any()]
    ceiling = min(3.0 * max(lows), 1.1 * max([*tops, 1.1 * max(lows)]))
    height = {"range": [0.8 * min(lows), ceiling]}
    layout = draw.layout(
        GROWN, "norm at unit margin", x={"type": "log", "dtick": 1}, y=height, shapes=[draw.upright(size[now])]
    )
    told = f"Norms of W at unit margin: {'; '.join(words)}."
    return Panel("Norms at unit margin: run solid, least possible dashed", told, data, layout)


def fit(view: Margin, results: Results) -> dict[str, Fit]:
    """One matrix W starts at 0: it has no initial scale."""
    return {"scale": None} if view.model == "joint" else {}


def say(view: Margin, results: Results) -> str:
    """Which norm this training is expected to minimise, and how close it is."""
    run, norm = results["measured"], EXPECTED[view.model]
    best, size = float(results[norm]["objective"][0]), "nuclear_norm" if norm != "frobenius" else "frobenius_norm"
    least, status = float(run["margin"][-1]), status_of(run)
    told = "" if status.ok else f" The flow {status}."
    reached = float(run["frobenius_norm"][-1])
    at = f"‖W‖ = {reached:,.0f}" if reached >= 100 else f"‖W‖ = {reached:.3g}"
    if least <= 0:
        return f"The margin is not positive yet at {at}.{told}"
    excess = float(run[size][-1]) / least / best - 1
    return (
        f"This parametrisation is expected to converge to the solution of least {WORDS[norm]} norm, {best:.3g}. "
        f"At {at} the run is {100 * excess:.2g} % above it.{told}"
    )


PAGE = Page(
    "margin", "Margin", "One attention layer on separable sequences: its weights grow without end, its direction "
    "converges. Which solution it finds depends on how W = KQᵀ is parametrised.",
    Margin, check, compute, panels, say, code, moving="instant", fit=fit,
)  # fmt: skip
