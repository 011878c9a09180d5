"""The remark after Theorem 2: the transition sits at σ²w ≈ ‖B‖_op of what is fitted.

The crossing is read off trained networks: the largest mode ends at s, the kernel there grows from
σ²w to √(s²+σ⁴w²), so ‖C1(end)‖/‖C1(0)‖ = √2 marks s = σ²w. Each network is trained until its
largest mode has converged, over a scan of σ²w, and the scan is interpolated.

Threshold: the log-log slope against d is within 0.1 of ½ and 1. Corrections are of relative order
1/(a²d) for the low-rank truth of singular values a_i d (‖A*+E‖ ≈ a d + 1/a) and d^{−2/3} for the
full-rank one. (With the random low-rank truth of appendix G, whose ‖A*‖/d itself still falls
between d = 25 and 200, the slope comes out between 0.78 and 0.89.)
"""

from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.linear import transition as figure
from saddles.linear.model import TwoLayer
from saddles.linear.task import Denoising
from saddles.runtime.progress import bar
from saddles.solvers.methods import GradientDescent

__all__ = ["claims", "figure", "run"]

PAPER = "tu2024mixed"
WIDTH = 10**9
TRUTHS = {"low rank": 1.0, "full rank": 0.5}


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Kernel growth over a scan of σ²w, for both truths, dimensions and seeds."""
    seeds, dims = context.seeds(settings["seeds"]), settings["dims"]
    scan = np.geomspace(0.2, 5.0, settings["points"])
    growth = np.empty((len(scan), len(TRUTHS), len(dims), len(seeds)))
    scale = np.empty(growth.shape[1:])
    with bar("linear/transition", growth[0].size * len(scan)) as progress:
        for place in np.ndindex(*scale.shape):
            truth, dim, seed = list(TRUTHS)[place[0]], dims[place[1]], seeds[place[2]]
            part = context.part(
                f"{truth.split()[0]}-{dim}-{seed}", lambda t=truth, d=dim, s=seed: _scan(t, d, s, scan, settings)
            )
            growth[(slice(None), *place)], scale[place] = part["growth"].values, float(part["scale"])
            progress.advance(len(scan))
    axes = ("truth", "dim", "seed")
    variables = {
        "growth": (("time", *axes), growth),
        "scale": (axes, scale),
        "crossing": (axes, _crossing(scan, growth) * scale),
    }
    whole = make_trajectory(
        variables,
        scan,
        unit="scan: σ²w over its expected scale",
        coords={"truth": list(TRUTHS), "dim": dims, "seed": seeds},
        lab="linear",
        kind="simulated",
    )
    return whole


def _scan(truth: str, dim: int, seed: int, scan: np.ndarray, settings: dict[str, Any]) -> Trajectory:
    """‖C1(end)‖/‖C1(0)‖ for each σ²w, the scan centred on the scale of the truth, without knowing what was observed."""
    spectrum = settings["spectrum"]
    if truth == "full rank":
        task, centre = Denoising(dim, dim, seed=seed), 2.8 * np.sqrt(dim)
    else:
        task, centre = Denoising(dim, len(spectrum), spectrum=spectrum, seed=seed), max(spectrum) * dim
    found = []
    for factor in scan:
        threshold = factor * centre
        pace = dim**2 / (settings["c"] * max(threshold, float(np.linalg.norm(task.observed, 2))))
        method = GradientDescent(pace, settings["steps"], settings["steps"])
        run = simulate(
            TwoLayer(WIDTH, threshold / WIDTH), task, method, seed=seed, keep=("gram",), skip=("singular_value",)
        )
        norms = np.linalg.norm(run["gram_in"].values, 2, axis=(1, 2))
        found.append(norms[-1] / norms[0])
    return make_trajectory({"growth": (("time",), found), "scale": ((), centre)}, scan, unit="scan")


def _crossing(scan: np.ndarray, growth: np.ndarray) -> np.ndarray:
    """Where the growth falls through √2, by interpolation in the logarithm; NaN outside the scan."""
    flat = growth.reshape(len(scan), -1)
    found = [
        np.exp(np.interp(-np.sqrt(2), -column, np.log(scan))) if column[0] > np.sqrt(2) > column[-1] else np.nan
        for column in flat.T
    ]
    return np.reshape(found, growth.shape[1:])


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge both exponents."""
    dims = np.log(trajectory["dim"].values.astype(float))
    rows = []
    for truth, expected in TRUTHS.items():
        crossing = trajectory["crossing"].sel(truth=truth).transpose("dim", "seed").values
        slope = np.polyfit(dims, np.log(crossing), 1)[0]
        rows.append(
            check(
                f"{truth.capitalize()} A*: the transition is at σ²w ∝ d^{expected:g}: "
                f"distance of the log-log slope from {expected:g}",
                paper=PAPER,
                where="remark after Theorem 2",
                values=np.abs(slope - expected),
                relation="<=",
                threshold=0.1,
                size=size,
            )
        )
    return rows
