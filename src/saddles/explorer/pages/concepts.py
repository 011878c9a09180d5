"""The page of concepts: outputs moving through the plane, entries growing and being suppressed."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from saddles import concepts
from saddles.core.dispatch import predict, simulate
from saddles.explorer import draw
from saddles.explorer.page import Fit, Page, Panel, Results
from saddles.explorer.view import RefusedError, View, choice, clock, number
from saddles.measures import descents, turning_points

ROWS = 121
"""Saved instants, always: one compiled program for all views of a depth."""
STEPS, SAMPLES, BATCH = 2400, 500, 50
"""Steps of SGD for networks of three layers and more, points per cluster, and points per step."""
MOST = 60.0
"""Largest μ²·time a page follows: the flow's steps grow with it."""
TERMS = {"growth": "growth", "suppression": "suppression", "noise_term": "noise"}


@dataclass(frozen=True)
class Concepts(View):
    """Two concepts of strengths μ₁, μ₂ with spread σ, and a network of some depth."""

    mu1: float = number(1.0, "signal μ₁", 0.2, 3.0, 0.05)
    mu2: float = number(1.6, "signal μ₂", 0.2, 3.0, 0.05)
    sigma: float = number(0.1, "spread σ", 0.0, 0.6, 0.02, "standard deviation of each cluster")
    depth: str = choice("2", "depth", {"1": "one layer", "2": "two layers (symmetric)", "3": "three layers, SGD",
                                       "4": "four layers, SGD"})  # fmt: skip
    top: float = number(0.15, "size of the start", 0.01, 0.5, 0.01, "two layers: U(0) is uniform up to this")
    until: float = number(6.0, "time", 1.0, 40.0, 0.5, "gradient time")
    seed: int = number(5, "seed", 0, 999, 1, "draws the initial weights (and SGD's samples)")
    entry: str = choice("12", "entry of the Jacobian", {"11": "w₁₁", "22": "w₂₂", "12": "w₁₂"}, still=True)
    instant: float = clock()


def check(view: Concepts) -> None:
    """Refuse flows that are too long for a page."""
    rate = max(view.mu1, view.mu2) ** 2
    if rate * view.until > MOST:
        sentence = f"A page follows μ² · time up to {MOST:g}; got {rate * view.until:.3g}. "
        raise RefusedError("until", sentence + f"Use a time of at most {MOST / rate:.3g}.")


def _task(view: Concepts) -> "concepts.Identity":
    samples = None if view.depth in "12" else SAMPLES
    return concepts.Identity((view.mu1, view.mu2), view.sigma, samples=samples, seed=view.seed)


def compute(view: Concepts, draft: bool = False) -> Results:
    """The run, and its theory where there is one (one layer, two symmetric layers)."""
    task = _task(view)
    if view.depth in "34":
        model = concepts.MLP((2,) * (int(view.depth) - 1))
        method = concepts.SGD(
            view.until / STEPS, BATCH, epochs=STEPS * BATCH // (2 * SAMPLES), save_every=STEPS // (ROWS - 1)
        )
        return {"measured": simulate(model, task, method, seed=view.seed, keep=("jacobian",))}
    times = np.linspace(0.0, view.until, ROWS)
    if view.depth == "1":
        model, theory = concepts.OneLayer(), concepts.OneLayerTheory()
    else:
        model, theory = concepts.SymmetricTwoLayer(top=view.top), concepts.TwoLayerTheory()
    measured = simulate(model, task, concepts.GradientFlow(), times=times, seed=view.seed)
    return {"measured": measured, "predicted": predict(model, task, theory, times=times, seed=view.seed)}


def code(view: Concepts) -> str:
    """Three lines."""
    head = "import numpy; from saddles import concepts, predict, simulate\n"
    samples = "" if view.depth in "12" else f", samples={SAMPLES}"
    task = f"concepts.Identity(({view.mu1!r}, {view.mu2!r}), {view.sigma!r}{samples}, seed={view.seed})"
    if view.depth in "34":
        epochs, every = STEPS * BATCH // (2 * SAMPLES), STEPS // (ROWS - 1)
        return (
            f"{head}task, model = {task}, concepts.MLP({(2,) * (int(view.depth) - 1)!r})\n"
            f"measured = simulate(model, task, concepts.SGD({view.until / STEPS!r}, {BATCH}, epochs={epochs}, "
            f"save_every={every}), seed={view.seed}, keep=('jacobian',))\n"
        )
    one = view.depth == "1"
    model = "concepts.OneLayer()" if one else f"concepts.SymmetricTwoLayer(top={view.top!r})"
    theory = "concepts.OneLayerTheory()" if one else "concepts.TwoLayerTheory()"
    return (
        f"{head}task, model = {task}, {model}; "
        f"how = {{'times': numpy.linspace(0.0, {view.until!r}, {ROWS}), 'seed': {view.seed}}}\n"
        "measured, predicted = simulate(model, task, concepts.GradientFlow(), **how), "
        f"predict(model, task, {theory}, **how)\n"
    )


def panels(view: Concepts, results: Results) -> list[Panel]:
    """Outputs in the plane, the Jacobian, losses, and the forces on one entry."""
    now = round(view.instant * (results["measured"].sizes["time"] - 1))
    shown = [_plane(view, results, now), _jacobian(results, now), _losses(results, now)]
    return [*shown, _forces(view, results, now)] if view.depth == "2" else shown


def _plane(view: Concepts, results: Results, now: int) -> Panel:
    output = results["measured"]["output"].values[:, :2]
    x, y = output.T
    way = results["measured"]["time"].values
    data = [
        draw.line(x, y, "the whole run", draw.FAINT, line={"width": 1.5}),
        draw.line(x[: now + 1], y[: now + 1], "so far", draw.colour(0), line={"width": 3}),
    ]
    if "predicted" in results:
        predicted = results["predicted"]["output"].values
        data.append(draw.line(predicted[:, 0], predicted[:, 1], "theory", theory=True))
    square, star, ring = ({"symbol": "square", "size": 10}, {"symbol": "star", "size": 15},
                          {"size": 13, "symbol": "circle-open", "line": {"width": 3}})  # fmt: skip
    data += [
        draw.dots([0, view.mu1], [view.mu2, 0], "training clusters", draw.colour(1), marker=square),
        draw.dots([view.mu1], [view.mu2], "x̂, never seen", draw.colour(3), marker=star),
        draw.dots([x[now]], [y[now]], "", draw.colour(0), marker=ring),
    ]
    far = 1.12 * max(view.mu1, view.mu2, 1e-9)
    low = min(-0.08 * far, 1.1 * float(np.nanmin(output)))
    words = (
        f"The network's output at the unseen point x̂ = ({view.mu1:g}, {view.mu2:g}) moves in the plane of the two "
        f"concepts; at time {way[now]:.3g} it is at ({x[now]:.2f}, {y[now]:.2f})."
    )
    layout = draw.layout("output along concept 1", "output along concept 2", x={"range": [low, far]},
                         y={"range": [low, far], "scaleanchor": "x", "constrain": "domain"})  # fmt: skip
    return Panel("Output in concept space", words, data, layout)


ENTRIES = (("w₁₁", 0, 0, 0), ("w₂₂", 1, 1, 3), ("w₁₂", 0, 1, 2), ("w₂₁", 1, 0, 4))


def _jacobian(results: Results, now: int) -> Panel:
    measured = results["measured"]
    clock, jacobian = measured["time"].values, measured["jacobian"].values
    symmetric = np.allclose(jacobian, jacobian.swapaxes(1, 2), atol=1e-9)
    shown = ENTRIES[: 3 if symmetric else 4]
    data = [draw.line(clock, jacobian[:, i, j], name, draw.colour(place)) for name, i, j, place in shown]
    if "predicted" in results:
        predicted = results["predicted"]["jacobian"].values
        curves = [predicted[:, i, j] for _, i, j, _ in shown]
        data.append(draw.lines(results["predicted"]["time"], curves, "theory", theory=True))
    data += _events(measured)
    ends = ", ".join(f"{name} {jacobian[-1, i, j]:.2f}" for name, i, j, _ in ENTRIES)
    words = f"Entries of the Jacobian over time; they end at {ends}. Minor entries grow and are suppressed."
    return Panel("Jacobian: growth ▲ and suppression ▼", words, data,
                 draw.layout("gradient time", "entry of the Jacobian", shapes=[draw.upright(clock[now])]))  # fmt: skip


def _events(measured: xr.Dataset) -> list[draw.Json]:
    """Growth where a major entry passes ½, suppression where a minor one is largest."""
    seen, clock, marks = concepts.events(measured), measured["time"].values, []
    for kind, sign in (("growth", "triangle-up"), ("suppression", "triangle-down")):
        rows = np.flatnonzero(seen["kind"].values == kind)
        at = seen["at"].values[rows]
        entry = [measured["jacobian"].values[:, seen["row"].values[k] - 1, seen["column"].values[k] - 1] for k in rows]
        height = [float(np.interp(t, clock, values)) for t, values in zip(at, entry, strict=True)]
        told = f"{kind} at %{{x:.3g}}<extra></extra>"
        marks.append(draw.dots(at, height, "", draw.THEORY, marker={"symbol": sign, "size": 11}, hovertemplate=told))
    return marks


def _losses(results: Results, now: int) -> Panel:
    measured = results["measured"]
    clock, test = measured["time"].values, measured["test_loss"]
    turns = turning_points(test)
    data = [draw.line(clock, measured["loss"], "training loss", draw.colour(5), line={"width": 1.6}),
            draw.line(clock, test, "test loss at x̂", draw.colour(3))]  # fmt: skip
    if "predicted" in results:
        data.append(draw.line(results["predicted"]["time"], results["predicted"]["test_loss"], "theory", theory=True))
    falls = turns["kind"].values == "descent"
    shapes = [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": float(a), "x1": float(b), "y0": 0, "y1": 1,
         "layer": "below", "line": {"width": 0}, "fillcolor": "rgba(0,158,115,0.10)",
         "label": {"text": f"descent {k + 1}", "textposition": "top center", "font": {"size": 11}}}
        for k, (a, b) in enumerate(zip(turns["start"].values[falls], turns["end"].values[falls], strict=True))
    ]  # fmt: skip
    words = (
        f"Test loss at the unseen point, from {float(test[0]):.3g} to {float(test[-1]):.3g}, in {int(falls.sum())} "
        f"descent{'s' * (int(falls.sum()) != 1)}; training loss ends at {float(measured['loss'][-1]):.3g}."
    )
    shapes.append(draw.upright(clock[now]))
    layout = draw.layout("gradient time", "loss", y={"rangemode": "tozero"}, shapes=shapes)
    return Panel("Losses, descents marked", words, data, layout)


def _forces(view: Concepts, results: Results, now: int) -> Panel:
    measured = results["measured"]
    i, j = int(view.entry[0]) - 1, int(view.entry[1]) - 1
    time = measured["time"].values
    # The paper's time is twice gradient time, on which this page counts: each term moves the entry twice as fast.
    signs = {"growth": 2, "suppression": -2, "noise_term": -2}
    data = [
        draw.line(time, signs[name] * measured[name].values[:, i, j], words, draw.colour(place))
        for (name, words), place in zip(TERMS.items(), (2, 3, 4), strict=True)
    ]
    total = sum(signs[name] * measured[name].values[:, i, j] for name in TERMS)
    data.append(draw.line(time, total, "their sum, ẇ", theory=True))
    name = f"w{'₁₂'[i]}{'₁₂'[j]}"
    words = (
        f"Terms that move {name} over gradient time: growth up to "
        f"{2 * float(measured['growth'][:, i, j].max()):.3g}, suppression up to "
        f"{2 * float(measured['suppression'][:, i, j].max()):.3g}."
    )
    layout = draw.layout("gradient time", "part of ẇ", shapes=[draw.upright(time[now])])
    return Panel(f"What moves {name} (equation 4.3)", words, data, layout)


def fit(view: Concepts, results: Results) -> dict[str, Fit]:
    """The forces, and the size of a uniform start, are those of two symmetric layers."""
    return {} if view.depth == "2" else {"entry": None, "top": None}


def say(view: Concepts, results: Results) -> str:
    """Which concept comes first, how many descents, and how far theory is."""
    measured = results["measured"]
    seen = descents(measured["test_loss"])
    count, depth = int(seen["count"]), 100 * float(seen["depth"])
    strong = f"Concept {1 if view.mu1 > view.mu2 else 2} is the stronger."
    if view.mu1 == view.mu2:
        strong = "Both concepts are equally strong."
    words = f"{strong} The test loss has {count} descent{'s' * (count != 1)}"
    words += f", with a rise of {depth:.0f} % of the first loss between: transient memorisation." if count > 1 else "."
    if "predicted" in results:
        gap = float(np.abs(measured["output"].values - results["predicted"]["output"].values).max())
        words += f" Theory and run differ by at most {gap:.1g} in the output."
    else:
        words += " No theory covers this depth; the run is SGD on samples."
    return words


PAGE = Page(
    "concepts", "Concepts", "A network learns the identity on two clusters, one per concept, and is asked about their "
    "combination, which it never saw. Watch its answer move.",
    Concepts, check, compute, panels, say, code, moving="instant", fit=fit,
)  # fmt: skip
