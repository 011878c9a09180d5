"""The page of real networks: lazy or active over width and variance of the start, and the run of each cell."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr

from saddles import networks
from saddles.explorer import draw
from saddles.explorer.page import Page, Panel, Results
from saddles.explorer.view import View, choice, clock, number
from saddles.networks.phases import HALF, crossing, predicted_linearity, slope_of

DIM, SAMPLES, STEPS, SAVED = 20, 150, 120, 20
"""Components of the images, training images, steps of descent, and saved instants: seconds for a whole diagram."""
POINTS = 7
UP = np.linspace(1.25, 2.0, POINTS)
ACROSS = np.linspace(-3.5, -0.5, POINTS)
KINDS = {"relu": "ReLU", "tanh": "tanh", "linear": "linear, which the theory treats"}


@dataclass(frozen=True)
class Networks(View):
    """A grid of networks, and one of its cells."""

    activation: str = choice("relu", "activation", KINDS)
    seed: int = number(0, "seed", 0, 99, 1, "draws the images and the initial weights")
    gamma_w: float = number(1.5, "width exponent γ_w", 1.25, 2.0, 0.125, "hidden units w = d^γ_w, d = 20", still=True)
    gamma_variance: float = number(
        -2.0, "variance exponent γ_σ²", -3.5, -0.5, 0.5, "σ² = d^γ_σ² of the initial weights", still=True
    )
    instant: float = clock("share of the steps that have been taken")


def check(view: Networks) -> None:
    """A diagram has a fixed size."""


@lru_cache(maxsize=8)
def _diagram(activation: str, seed: int) -> xr.Dataset:
    task = networks.Regression.from_images("digits", dim=DIM, samples=SAMPLES, seed=seed)
    return networks.phase_diagram(
        task, UP, ACROSS, activation=activation, seed=seed, steps=STEPS, saved=SAVED, precision="float32"
    )


def compute(view: Networks, draft: bool = False) -> Results:
    """The whole diagram: each of its cells is a run, so that no other setting computes anything."""
    return {"measured": _diagram(view.activation, view.seed)}


def code(view: Networks) -> str:
    """Three lines."""
    return (
        "import numpy; from saddles import networks\n"
        f"task = networks.Regression.from_images('digits', dim={DIM}, samples={SAMPLES}, seed={view.seed})\n"
        f"measured = networks.phase_diagram(task, numpy.linspace(1.25, 2.0, {POINTS}), numpy.linspace(-3.5, -0.5, "
        f"{POINTS}), activation={view.activation!r}, seed={view.seed}, steps={STEPS}, saved={SAVED}, "
        "precision='float32')\n"
    )


def _cell(view: Networks, measured: xr.Dataset) -> xr.Dataset:
    return measured.sel(gamma_w=view.gamma_w, gamma_variance=view.gamma_variance, method="nearest")


def _foreseen(measured: xr.Dataset, cell: xr.Dataset) -> float:
    """e that the theory of linear networks gives a cell after training."""
    threshold = DIM ** (float(cell["gamma_w"]) + float(cell["gamma_variance"]))
    return float(predicted_linearity(measured["singular_value"].values, threshold))


def panels(view: Networks, results: Results) -> list[Panel]:
    """The diagram at the instant; linearity, losses and rank of the cell's run."""
    measured = results["measured"]
    row = round(view.instant * (measured.sizes["time"] - 1))
    now = [draw.upright(float(measured["time"][row]))] if view.instant < 1 else []
    cell = _cell(view, measured)
    return [
        _map(view, measured, cell, row),
        _linearity(view, measured, cell, now),
        _losses(cell, now),
        _rank(cell, now),
    ]


def _map(view: Networks, measured: xr.Dataset, cell: xr.Dataset, row: int) -> Panel:
    here = measured["linearity"].isel(time=row).values
    border = np.array([crossing(line, ACROSS) for line in here])
    there = np.isfinite(border)
    step = int(measured["time"][row])
    told = "γ_σ² %{x:.2f}, γ_w %{y:.2f}: e = %{z:.2f}<extra></extra>"
    data = [
        draw.heat(here, ACROSS, UP, zmin=0, zmax=1, hovertemplate=told,
                  colorbar={"title": {"text": "e", "side": "right"}}),
        draw.line(border[there], UP[there], "e = ½", "#777777", line={"width": 5}, hoverinfo="skip"),
        draw.line(border[there], UP[there], "", "white", line={"width": 2}, hoverinfo="skip"),
        draw.line(*_theory(measured, border), "σ²w = const", theory=True, hoverinfo="skip",
                  line={"color": "#FFB14E", "width": 2}),
        draw.dots([float(cell["gamma_variance"])], [float(cell["gamma_w"])], "this run", "#D55E00",
                  marker={"symbol": "cross", "size": 13, "line": {"color": "white", "width": 2}}, hoverinfo="skip"),
    ]  # fmt: skip
    slope = slope_of(border, UP)
    leans = f"its slope is {slope:.2f}" if np.isfinite(slope) else "too few rows reach it for a slope"
    words = (
        f"Linearity e of the change of {POINTS * POINTS} networks after {step} steps, over variance and width "
        f"exponents: 0 is lazy, 1 active. The line e = ½ is white ({leans}; −1 would be a line of σ²w alone, dashed). "
        "Click a cell to open its run."
    )
    x = {"range": [ACROSS[0] - 0.2, ACROSS[-1] + 0.2], "showgrid": False}
    y = {"range": [UP[0] - 0.07, UP[-1] + 0.07], "showgrid": False}
    layout = draw.layout("variance exponent γ_σ²", "width exponent γ_w", x=x, y=y)
    return Panel(f"Lazy or active, step {step}: click a cell", words, data, layout, map=True)


def _theory(measured: xr.Dataset, border: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The predicted border of linear networks after training; of others, a line of σ²w through the measured middle."""
    if measured.attrs["activation"] == "linear":
        return measured["theory_border"].values, UP
    there = np.isfinite(border)
    middle = float(np.mean(border[there] + UP[there])) if there.any() else np.nan
    return middle - UP, UP


def _linearity(view: Networks, measured: xr.Dataset, cell: xr.Dataset, now: list[draw.Json]) -> Panel:
    steps, values = cell["time"].values, cell["linearity"].values
    row = measured["linearity"].sel(gamma_w=view.gamma_w, method="nearest").values
    data = [
        draw.lines(steps, row.T, "other variances", "rgba(140,140,140,0.6)", line={"width": 1.0}),
        draw.line(steps, values, "this run", draw.colour(3)),
    ]
    told = ""
    if view.activation == "linear":
        end = _foreseen(measured, cell)
        data.append(draw.line([steps[0], steps[-1]], [end, end], "theory, after training", theory=True))
        told = f" The theory of wide linear networks gives {end:.2f} after training."
    words = f"Linearity e over the steps: {values[-1]:.2f} at the end.{told}"
    layout = draw.layout("step of gradient descent", "linearity e", y={"range": [-0.03, 1.05]}, shapes=now)
    return Panel("How linear the change is", words, data, layout)


def _losses(cell: xr.Dataset, now: list[draw.Json]) -> Panel:
    steps = cell["time"].values
    data = [
        draw.line(steps, cell["loss"], "training", draw.colour(0)),
        draw.line(steps, cell["test_loss"], "test", draw.colour(3)),
    ]
    ends = float(cell["loss"][-1]), float(cell["test_loss"][-1])
    words = f"Losses over that of f = 0: training ends at {ends[0]:.2g}, test at {ends[1]:.2g}."
    return Panel("Losses", words, data, draw.layout("step of gradient descent", "loss / loss of f = 0", shapes=now,
                                                    y={"rangemode": "tozero"}))  # fmt: skip


def _rank(cell: xr.Dataset, now: list[draw.Json]) -> Panel:
    steps, values = cell["time"].values[1:], cell["stable_rank"].values[1:]
    data = [draw.line(steps, values, "", draw.colour(2))]
    words = f"Stable rank of the change of the first layer: {values[0]:.2f} at first, {values[-1]:.2f} at the end."
    layout = draw.layout("step of gradient descent", "stable rank of ΔW₁", y={"rangemode": "tozero"}, shapes=now)
    return Panel("Rank of the change", words, data, layout)


def say(view: Networks, results: Results) -> str:
    """The cell, its regime, and what it learned."""
    measured = results["measured"]
    cell = _cell(view, measured)
    width = round(DIM ** float(cell["gamma_w"]))
    e, accuracy = float(cell["linearity"][-1]), float(cell["test_accuracy"][-1])
    regime = "active: most of the change is beyond its linear part" if e > HALF else "lazy: the change is mostly linear"
    kind = {"relu": "A ReLU", "tanh": "A tanh", "linear": "A linear"}[view.activation]
    return (
        f"{kind} network with {width} hidden units, σ²w = "
        f"{DIM ** float(cell['gamma_w'] + cell['gamma_variance']):.3g}: {regime} (e = {e:.2f} after {STEPS} steps). "
        f"It names {100 * accuracy:.0f} % of handwritten digits that it has not seen."
    )


PAGE = Page(
    "networks", "Real networks", "Two layers with an activation learn to tell handwritten digits apart. One number e, "
    "how far their change is from linear in the weights, says whether they learned lazily or actively.",
    Networks, check, compute, panels, say, code, moving="instant", short="Networks",
    hint="A diagram is computed when activation or seed change; all else is in it already.",
    click=("gamma_variance", "gamma_w"),
)  # fmt: skip
