"""Theorem 2: active networks recover A* at a time ∝ d log d, lazy ones never do.

Claims and their thresholds:

- *Recovery.* The theorem's bound falls like d^{−1/2} at these scalings (Δ = ½); the best test
  error must fall at least half as fast: slope ≤ −1/4.
- *Time.* The best time is below the theorem's, and t/(d log d) does not grow: slope in log d at
  most 0.1, the order of the log log d / log d that the theorem leaves open.
- *At the theorem's own time* the noise is fitted already at every d that fits a machine: the
  claim is reported as not applicable there, with the number seen.
- *Lazy.* Proposition D.1's ⅓ min(‖A*‖², ‖E‖²)/d² bounds the test error for all time.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.linear import theorem_2 as figure
from saddles.linear.experiments.scaling import network
from saddles.linear.phases import leading_time, recovery_time
from saddles.linear.task import Denoising
from saddles.runtime.progress import bar
from saddles.solvers.methods import GradientDescent

__all__ = ["claims", "figure", "run"]

PAPER = "tu2024mixed"
REGIMES = {"active": (1.5, -1.0), "lazy": (2.5, -1.3)}
INSTANTS = 101


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Descent with η ∝ √d in both regimes, over dimensions and seeds, on the clock t/(d log d)."""
    seeds, dims, spectrum = context.seeds(settings["seeds"]), settings["dims"], settings["spectrum"]
    clock = np.linspace(0.0, settings["clock"], INSTANTS)
    parts = {}
    with bar("linear/theorem-2", len(seeds) * sum(d**2 for d in dims)) as progress:
        for dim in dims:
            for seed in seeds:
                parts[dim, seed] = context.part(f"{dim}-{seed}", lambda d=dim, s=seed: _both(d, s, spectrum, clock))
                progress.advance(dim**2)

    def stack(name: str) -> np.ndarray:
        rows = [np.stack([parts[dim, seed][name].values for seed in seeds], axis=-1) for dim in dims]
        return np.stack(rows, axis=-2)

    axes = ("dim", "seed")
    variables: dict[str, Any] = {"test_error": (("time", "regime", *axes), stack("test_error"))}
    variables |= {name: ((*axes,), stack(name)) for name in ("floor", "late_error")}
    variables |= {name: (("regime", *axes), stack(name)) for name in ("best_error", "best_time")}
    variables["theorem_time"] = (("dim",), [_scaled(recovery_time, d, spectrum) for d in dims])
    variables["leading_time"] = (("dim",), [_scaled(leading_time, d, spectrum) for d in dims])
    whole = make_trajectory(
        variables,
        clock,
        unit="d log d",
        coords={"dim": dims, "seed": seeds, "regime": list(REGIMES)},
        lab="linear",
        kind="simulated",
    )
    whole.attrs["regimes"] = str(REGIMES)
    return whole


def _scaled(law: Any, dim: int, spectrum: list[float]) -> float:
    return law(dim, *REGIMES["active"], spectrum) / (dim * np.log(dim))


def _both(dim: int, seed: int, spectrum: list[float], clock: np.ndarray) -> Trajectory:
    task = Denoising(dim, len(spectrum), seed=seed, spectrum=spectrum)
    found: dict[str, Any] = {"test_error": [], "best_error": [], "best_time": []}
    unit, rate = dim * np.log(dim), np.sqrt(dim) / 2
    for gammas in REGIMES.values():
        model = network(dim, *gammas)
        pace = min(rate, dim**2 / (8 * model.threshold))
        steps = int(np.ceil(clock[-1] * unit / pace))
        stride = max(1, steps // 400)
        run = simulate(
            model, task, GradientDescent(pace, steps + stride, stride), seed=seed, keep=(), skip=("singular_value",)
        )
        error = run["test_error"].values
        found["test_error"].append(np.interp(clock * unit, run["time"].values, error))
        found["best_error"].append(error.min())
        found["best_time"].append(float(run["time"][error.argmin()]) / unit)
    variables: dict[str, Any] = {
        "test_error": (("time", "regime"), np.stack(found["test_error"], axis=-1)),
        "best_error": (("regime",), found["best_error"]),
        "best_time": (("regime",), found["best_time"]),
        "floor": ((), float(min(np.mean(task.target**2), np.mean((task.observed - task.target) ** 2)) / 3)),
        "late_error": ((), found["test_error"][0][-1]),
    }
    return make_trajectory(variables, clock, unit="d log d", coords={"regime": list(REGIMES)})


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge both regimes."""
    dims = np.log(trajectory["dim"].values.astype(float))
    active, lazy = trajectory.sel(regime="active"), trajectory.sel(regime="lazy")
    best = active["best_error"].transpose("dim", "seed").values
    times = active["best_time"].transpose("dim", "seed").values
    late = float((active["best_error"].isel(dim=-1) / trajectory["late_error"].isel(dim=-1)).max())
    lowest = (lazy["test_error"].min("time") / trajectory["floor"]).min("dim").values
    judge = partial(check, paper=PAPER, where="Theorem 2", size=size)
    return [
        judge(
            "Active: the best test error falls with d: log-log slope",
            values=np.polyfit(dims, np.log(best), 1)[0],
            relation="<=",
            threshold=-0.25,
        ),
        judge(
            "Active: it is reached before the theorem's time: t_best over that time",
            values=(times / trajectory["theorem_time"].values[:, None]).max(axis=0),
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "Active: t_best/(d log d) is bounded: log-log slope against d",
            values=np.polyfit(dims, np.log(times), 1)[0],
            relation="<=",
            threshold=0.1,
        ),
        judge(
            "Active: the test error is small at the theorem's own time: "
            "best error over the error at the end of the clock",
            values=late,
            relation=">=",
            threshold=0.5,
            not_applicable="at every dimension a machine holds the noise is fitted long before the theorem's time",
        ),
        judge(
            "Lazy: the test error never falls below ⅓ min(‖A*‖², ‖E‖²)/d²: smallest ratio over time",
            where="Theorem 2, Proposition D.1",
            values=lowest,
            relation=">=",
            threshold=1.0,
        ),
    ]
