"""The remark after Theorem 2: the transition sits at σ²w ≈ ‖B‖_op of what is fitted.

The crossing is read off trained networks: the largest mode ends at s, the kernel there grows from
σ²w to √(s²+σ⁴w²), so ‖C1(end)‖/‖C1(0)‖ = √2 marks s = σ²w. Each network is trained until its
largest mode has converged, over a scan of σ²w, and the scan is interpolated.

Claim and threshold: "≈" is read as within a quarter of ‖A*+E‖_op, for both truths and every d. That the transition
scales like d and like √d follows, because the norm does. Its null is another size of the same matrix: had the mean
square singular value (‖·‖_F/√d) set the transition, one constant could not fit both truths and all d.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.linear.experiments.scaling import PAPER
from saddles.runtime.progress import bar

WIDTH = 10**9
TRUTHS = ("low rank", "full rank")
CLOSE = float(np.log(1.25))
"""σ²w at the transition is ‖A*+E‖_op within this, in logs: a quarter."""


@dataclass(frozen=True)
class Settings:
    """A scan of σ²w for two truths, over dimensions."""

    dims: Annotated[tuple[int, ...], "dimensions d"]
    seeds: Annotated[int, "independent tasks and initial weights"]
    spectrum: Annotated[tuple[float, ...], "a_1..a_K of the low-rank truth: singular values over d"] = (1.0, 0.7, 0.5)
    points: Annotated[int, "values of σ²w in the scan"] = 7
    steps: Annotated[int, "steps of gradient descent"] = 40
    c: Annotated[float, "learning rate η = d²/(c max(σ²w, ‖A*+E‖))"] = 5.0


def run(settings: Settings, context: Context) -> Trajectory:
    """Kernel growth over a scan of σ²w, for both truths, dimensions and seeds."""
    seeds, dims = context.seeds(settings.seeds), settings.dims
    scan = np.geomspace(0.2, 5.0, settings.points)
    growth = np.empty((len(scan), len(TRUTHS), len(dims), len(seeds)))
    scale, norm, mean_size = (np.empty(growth.shape[1:]) for _ in range(3))
    with bar("linear/transition", growth[0].size * len(scan)) as progress:
        for place in np.ndindex(*scale.shape):
            truth, dim, seed = TRUTHS[place[0]], dims[place[1]], seeds[place[2]]
            part = context.part(f"{truth.split()[0]}-{dim}-{seed}", partial(_scan, truth, dim, seed, scan, settings))
            growth[(slice(None), *place)], scale[place] = part["growth"].values, float(part["scale"])
            norm[place], mean_size[place] = float(part["norm"]), float(part["mean_size"])
            progress.advance(len(scan))
    axes = ("truth", "dim", "seed")
    variables = {
        "growth": (("time", *axes), growth),
        "scale": (axes, scale),
        "crossing": (axes, _crossing(scan, growth) * scale),
        "norm": (axes, norm),
        "mean_size": (axes, mean_size),
    }
    return make_trajectory(
        variables,
        scan,
        unit="scan: σ²w over its expected scale",
        coords={"truth": list(TRUTHS), "dim": list(dims), "seed": seeds},
        lab="linear",
        kind="simulated",
    )


def _scan(truth: str, dim: int, seed: int, scan: np.ndarray, settings: Settings) -> Trajectory:
    """‖C1(end)‖/‖C1(0)‖ for each σ²w, the scan centred on the scale of the truth, without knowing what was observed."""
    spectrum = settings.spectrum
    if truth == "full rank":
        task, centre = linear.Denoising(dim, dim, seed=seed), 2.8 * np.sqrt(dim)
    else:
        task, centre = linear.Denoising(dim, len(spectrum), spectrum=spectrum, seed=seed), max(spectrum) * dim
    growth = []
    for factor in scan:
        threshold = factor * centre
        pace = dim**2 / (settings.c * max(threshold, float(np.linalg.norm(task.observed, 2))))
        method = linear.GradientDescent(pace, settings.steps, settings.steps)
        model = linear.TwoLayer(WIDTH, threshold / WIDTH)
        run = simulate(model, task, method, seed=seed, keep=("gram",), skip=("singular_value",))
        norms = np.linalg.norm(run["gram_in"].values, 2, axis=(1, 2))
        growth.append(norms[-1] / norms[0])
    sizes = {
        "scale": centre,
        "norm": float(np.linalg.norm(task.observed, 2)),
        "mean_size": float(np.linalg.norm(task.observed) / np.sqrt(dim)),
    }
    variables: dict[str, Variable] = {"growth": (("time",), growth)}
    return make_trajectory(variables | {name: ((), size) for name, size in sizes.items()}, scan, unit="scan")


def _crossing(scan: np.ndarray, growth: np.ndarray) -> np.ndarray:
    """Where the growth falls through √2, by interpolation in the logarithm; NaN outside the scan."""
    flat = growth.reshape(len(scan), -1)
    crossings = [
        np.exp(np.interp(-np.sqrt(2), -column, np.log(scan))) if column[0] > np.sqrt(2) > column[-1] else np.nan
        for column in flat.T
    ]
    return np.reshape(crossings, growth.shape[1:])


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge what sets the transition."""
    ratios, others = (
        np.abs(np.log((trajectory["crossing"] / trajectory[name]).transpose("truth", "dim", "seed").values)).max((0, 1))
        for name in ("norm", "mean_size")
    )
    return [
        check(
            "The transition is at σ²w ≈ ‖A*+E‖_op, for low and for full rank, at every d: largest |log| of their ratio",
            paper=PAPER,
            where="remark after Theorem 2",
            values=ratios,
            relation="<=",
            threshold=CLOSE,
            size=size,
            null=others,
            against="the mean size of a singular value in the place of the largest",
        )
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.transition(trajectory)


EXPERIMENT = Experiment(
    "linear/transition",
    "Where lazy becomes active: σ²w ∝ d for a low-rank truth, ∝ √d for a full-rank one",
    PAPER,
    sizes={
        "tiny": Size(4, Settings(dims=(12, 24), points=5, seeds=2)),
        "laptop": Size(7, Settings(dims=(25, 50, 100, 200), seeds=4)),
        "gpu": Size(60, Settings(dims=(50, 100, 200, 400), seeds=6)),
        "paper": Size(200, Settings(dims=(50, 100, 200, 400), points=11, seeds=4)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
