"""The page of two-layer linear networks: from lazy to active as width and variance change."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import linear
from saddles.core.dispatch import predict, simulate
from saddles.core.status import status_of
from saddles.explorer import draw
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import RefusedError, View, choice, clock, number
from saddles.linear.experiments.scaling import network, rate
from saddles.protocols import ArrayLike

C = 20.0
"""The paper's constant of the learning rate (it uses 2 to 50): small enough steps for smooth curves."""
ROWS = 64
"""Saved instants, always: one compiled program for all views of a dimension."""
MOST = 2e9
"""Most multiplications a request may cost: about 4 s."""
PHASES = {
    "underparametrised": "too narrow for the signal",
    "noisy": "so much variance that the start itself is noise",
    "lazy": "lazy: all modes move alike, and noise is fitted with the signal",
    "active": "active: strong modes are learned first, and the signal is found before the noise",
}


@dataclass(frozen=True)
class Linear(View):
    """Width d^γ_w, variance d^γ_σ², and a noisy matrix of rank K."""

    gamma_w: float = number(1.8, "width exponent γ_w", 0.0, 3.0, 0.05, "hidden units w = d^γ_w")
    gamma_variance: float = number(
        -1.8, "variance exponent γ_σ²", -3.0, 0.0, 0.05, "σ² = d^γ_σ² of the initial weights"
    )
    rank: int = number(3, "rank K of the signal", 1, 8, 1)
    noise: float = number(1.0, "noise", 0.0, 2.0, 0.05, "standard deviation of the noise on each entry")
    dim: int = number(30, "dimension d", 10, 120, 10, "the matrix is d × d; smooth up to 60")
    steps: int = number(192, "steps", 64, 2048, 64, "steps of gradient descent")
    seed: int = number(0, "seed", 0, 999, 1, "draws the matrix, the noise and the initial weights")
    scale: str = choice("log", "scale of singular values", {"log": "logarithmic", "linear": "linear"}, still=True)
    instant: float = clock("share of the steps that have been taken")


def check(view: Linear) -> None:
    """Refuse more work than a page should ask for: 16 d³ multiplications per step, both dynamics."""
    work = 16.0 * view.dim**3 * view.steps
    if work > MOST:
        raise RefusedError(
            "steps",
            f"A page computes up to {MOST:.0e} multiplications; {view.steps} steps at d = {view.dim} take {work:.1e}. "
            f"Use at most {int(MOST / (16 * view.dim**3))} steps at this d, or run it in Python.",
        )


@lru_cache(maxsize=16)
def _task(dim: int, rank: int, noise: float, seed: int) -> "linear.Denoising":
    return linear.Denoising(dim, rank, noise=noise, seed=seed)


def _pieces(view: Linear) -> "tuple[linear.Denoising, linear.TwoLayer, linear.GradientDescent]":
    task = _task(view.dim, view.rank, view.noise, view.seed)
    model = network(view.dim, view.gamma_w, view.gamma_variance)
    pace = rate(view.dim, view.gamma_w, view.gamma_variance, task.observed, C)
    return task, model, linear.GradientDescent(pace, view.steps // ROWS * ROWS, view.steps // ROWS)


def _padded(model: "linear.TwoLayer", task: "linear.Denoising", seed: int) -> "linear.TwoLayer":
    """The same network with hidden units of weight 0 added up to 2d, where it has fewer: they stay 0.

    Its shape, and so the compiled program, no longer depends on the width.
    """
    inner, outer = model.start(task, seed)
    more = sum(task.shape) - inner.shape[1]
    if not more:
        return model
    first, second = (np.pad(block, ((0, 0), (0, more))) for block in (inner, outer))
    return linear.TwoLayer(model.width, model.variance, (first.T, second))


def compute(view: Linear, draft: bool = False) -> Results:
    """Gradient descent, and the self-consistent theory of the same steps; a draft is without the matrix at each."""
    task, model, method = _pieces(view)
    padded = _padded(model, task, view.seed)
    seed = view.seed if padded is model else 0  # a padded network has its weights already
    return {
        "measured": simulate(padded, task, method, seed=seed, keep=() if draft else ("matrix",)),
        "predicted": predict(padded, task, linear.SelfConsistent(method), seed=seed, keep=()),
    }


def code(view: Linear) -> str:
    """Three lines."""
    task, model, method = _pieces(view)
    return (
        "from saddles import linear, predict, simulate\n"
        f"task, model, method = linear.{task!r}, linear.{model!r}, linear.{method!r}\n"
        f"measured, predicted = simulate(model, task, method, seed={view.seed}, keep=('matrix',)), "
        f"predict(model, task, linear.SelfConsistent(method), seed={view.seed})\n"
    )


def panels(view: Linear, results: Results) -> list[Panel]:
    """Singular values, errors, and the matrix itself beside the one it should find."""
    measured = results["measured"]
    row = round(view.instant * (measured.sizes["time"] - 1))
    now = [draw.upright(float(measured["step"][row]))] if view.instant < 1 else []
    curves = [_modes(view, results, now), _errors(results, now)]
    return [*curves, _matrix(view, measured, row)] if "matrix" in measured else curves


def _matrix(view: Linear, measured: xr.Dataset, row: int) -> Panel:
    """A and the signal, rows and columns in the order of the signal's first singular vectors."""
    signal = _task(view.dim, view.rank, view.noise, view.seed).target
    left, _, right = np.linalg.svd(signal)
    rows, columns = np.argsort(left[:, 0]), np.argsort(right[0])
    here = measured["matrix"].values[row][np.ix_(rows, columns)]
    size, gap = view.dim, max(2, view.dim // 12)
    # Three standard deviations: a few entries beyond them would make the rest pale.
    look = {
        "zmin": -3 * float(signal.std()),
        "zmax": 3 * float(signal.std()),
        "colorscale": "RdBu",
        "hoverinfo": "skip",
    }
    data = [
        draw.heat(here, np.arange(size), np.arange(size), showscale=False, **look),
        draw.heat(signal[np.ix_(rows, columns)], size + gap + np.arange(size), np.arange(size), **look),
    ]
    step, error = int(measured["step"][row]), float(measured["test_error"][row])
    notes = [
        {"text": words, "x": at, "y": 1.0, "xref": "x", "yref": "paper", "yanchor": "bottom", "showarrow": False}
        for words, at in ((f"A at step {step}", size / 2), ("the signal, never seen", 1.5 * size + gap))
    ]
    words = (
        f"The network's matrix A at step {step} as a picture, beside the signal of rank {view.rank} that it should "
        f"find: their mean square difference is {error:.3g}."
    )
    bare = {"showticklabels": False, "ticks": "", "showgrid": False, "showline": False}
    square = bare | {"scaleanchor": "x", "constrain": "domain"}
    layout = draw.layout("column", "row", x=bare | {"constrain": "domain"}, y=square, annotations=notes,
                         margin={"l": 30, "r": 14, "t": 26, "b": 30})  # fmt: skip
    return Panel("The matrix at this instant", words, data, layout, wide=True, waits=True)


def _modes(view: Linear, results: Results, now: list[draw.Json]) -> Panel:
    measured, predicted = results["measured"], results["predicted"]
    steps, ends = measured["step"].values, predicted["step"].values
    run, theory = measured["singular_value"].values, predicted["singular_value"].values
    shown = min(view.dim, view.rank + 6)
    noise = f"the next {shown - view.rank} (noise)"
    data = [draw.lines(steps, run[:, view.rank : shown].T, noise, "rgba(140,140,140,0.8)", line={"width": 1.0},
                       legendrank=2)]  # fmt: skip
    for mode in reversed(range(view.rank)):
        words = f"the {view.rank} largest, descent" if view.rank > 1 else "the largest, descent"
        data.append(draw.line(steps, run[:, mode], "" if mode else words, draw.colour(mode), legendrank=1))
    data.append(draw.lines(ends, theory[:, : view.rank + 1].T, "self-consistent theory", theory=True, legendrank=3))
    threshold = float(measured["threshold"])
    up = {"type": "log", "tickformat": "~g", "dtick": "D2"} if view.scale == "log" else {"rangemode": "tozero"}
    words = (
        f"Singular values of A over {view.steps} steps of gradient descent, solid, and of the self-consistent theory, "
        f"dashed; the {view.rank} largest end at {_list(run[-1, : view.rank])}; "
        f"the threshold σ²w is {threshold:.3g}."
    )
    shapes = [draw.level(threshold, "σ²w"), *now]
    return Panel(
        "Singular values", words, data,
        draw.layout("step of gradient descent", "singular value of A", y=up, shapes=shapes),
    )  # fmt: skip


def _list(values: ArrayLike) -> str:
    return ", ".join(f"{value:.3g}" for value in np.ravel(values))


def _errors(results: Results, now: list[draw.Json]) -> Panel:
    measured, predicted = results["measured"], results["predicted"]
    data, words = [], []
    for name, shade in (("train_error", draw.colour(0)), ("test_error", draw.colour(3))):
        title = name.replace("_", " ")
        data.append(draw.line(measured["step"], measured[name], f"{title}, descent", shade))
        words.append(f"{title} from {float(measured[name][0]):.3g} to {float(measured[name][-1]):.3g}")
    theory = [predicted[name].values for name in ("train_error", "test_error")]
    data.append(draw.lines(predicted["step"], theory, "self-consistent theory", theory=True))
    where = int(measured["test_error"].argmin("time"))
    best = float(measured["step"][where])
    data.append(draw.dots([best], [measured["test_error"][where]], "best test error", draw.colour(3),
                          marker={"symbol": "circle-open", "size": 11, "line": {"width": 2}}))  # fmt: skip
    return Panel(
        "Errors", f"{'; '.join(words)}; the best test error comes at step {best:.0f}.", data,
        draw.layout("step of gradient descent", "mean square error", y={"rangemode": "tozero"}, shapes=now),
    )  # fmt: skip


def say(view: Linear, results: Results) -> str:
    """The regime, the best test error, and how far theory is from the run."""
    measured, predicted = results["measured"], results["predicted"]
    rows = min(measured.sizes["time"], predicted.sizes["time"])
    gap = float(np.abs(measured["test_error"][:rows].values - predicted["test_error"][:rows].values).max())
    best = float(measured["test_error"].min())
    where = int(measured["step"][int(measured["test_error"].argmin("time"))])
    width = float(measured["hidden_units"])
    status = status_of(measured)
    told = "" if status.ok else f" The run {status}."
    return (
        f"w = {width:,.0f} hidden units, σ²w = {float(measured['threshold']):.3g}: "
        f"{PHASES[linear.phase(view.gamma_w, view.gamma_variance)]}. Best test error {best:.3f} at step {where}; "
        f"theory and run differ by at most {gap:.2g} in the test error.{told}"
    )


PAGE = Page(
    "linear", "Linear networks", "A two-layer linear network W₂W₁ learns a noisy matrix of low rank by gradient "
    "descent. Width and variance of its initial weights decide whether it learns lazily or mode by mode.",
    Linear, check, compute, panels, say, code, moving="instant",
    hint="While a slider moves, the picture of the matrix waits until it rests.", click=("gamma_variance", "gamma_w"),
)  # fmt: skip
