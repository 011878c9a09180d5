"""Figure 1: two dynamics, one curve.

Claims and their thresholds:

- *Agreement.* Theorem 1 bounds the relative error of the kernel by O(√(d/w)); the curves may
  differ by that much, relative to their height.
- *Speed-up.* On crossing, the prefactor √(s²+σ⁴w²) doubles between s = σ²w/2 and 2σ²w, so the
  speed must at least not fall: ratio ≥ 1.
- *Signal first.* The last signal mode has reached 90 % of its end before the first noise mode
  has reached 90 % of its own.
- *The window.* The best test error lies before the first noise mode has reached half of its end,
  and after every signal mode has crossed σ²w and reached half of its own.

Nulls: the lazy dynamics in the place of the self-consistent ones (agreement) and of descent (speed-up); K modes drawn
at random in the place of the K largest (order and window).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size, Within
from saddles.core.status import Status, status_of
from saddles.core.trajectory import Trajectory
from saddles.linear.experiments.scaling import PAPER, network, rate
from saddles.runtime.progress import bar


@dataclass(frozen=True)
class Settings:
    """One network and its twin, over several tasks."""

    dim: Annotated[int, "rows and columns of the matrix, d"]
    steps: Annotated[int, "steps of gradient descent"]
    save_every: Annotated[int, "save every so many steps"]
    seeds: Annotated[int, "independent tasks and initial weights"]
    rank: Annotated[int, "rank K of the truth A*"] = 5
    gamma_w: Annotated[float, "width w = d^gamma_w", Within(-10, 10)] = 2.25
    gamma_variance: Annotated[float, "variance σ² = d^gamma_variance", Within(-10, 10)] = -1.85
    c: Annotated[float, "learning rate η = d²/(c ‖A*‖)"] = 50.0


def run(settings: Settings, context: Context) -> Trajectory:
    """Both dynamics for several tasks and initial weights."""
    seeds = context.seeds(settings.seeds)
    parts = []
    with bar("linear/figure-1", len(seeds)) as progress:
        for seed in seeds:
            parts.append(context.part(f"seed-{seed}", partial(_pair, settings, seed)))
            progress.advance()
    shortest = min((part["time"] for part in parts), key=len)
    parts = [part.isel(time=slice(0, len(shortest))).assign_coords(time=shortest) for part in parts]
    whole = xr.concat(parts, xr.DataArray(seeds, dims="seed", name="seed"), data_vars="all", coords="minimal",
                      compat="override", combine_attrs="override", join="override")  # fmt: skip
    whole.attrs["status"] = str(Status.all_of(status_of(part) for part in parts))
    return whole.transpose("time", ...)


def _pair(settings: Settings, seed: int) -> Trajectory:
    dim, gammas = settings.dim, (settings.gamma_w, settings.gamma_variance)
    task = linear.Denoising(dim, settings.rank, seed=seed)
    model = network(dim, *gammas)
    pace = rate(dim, *gammas, task.target, settings.c)
    method = linear.GradientDescent(pace, settings.steps, settings.save_every)
    measured = simulate(model, task, method, seed=seed, keep=())
    predicted = predict(model, task, linear.SelfConsistent(method), seed=seed, keep=())
    lazy = predict(model, task, linear.Lazy(method), seed=seed, keep=())
    rows = min(one.sizes["time"] for one in (measured, predicted, lazy))
    both = xr.concat(
        [measured.isel(time=slice(0, rows)), predicted.isel(time=slice(0, rows))],
        xr.DataArray(["descent", "self-consistent"], dims="dynamics", name="dynamics"),
        data_vars=["loss", "train_error", "test_error", "singular_value"], coords="minimal", compat="override",
        combine_attrs="override", join="override",
    )  # fmt: skip
    for name in ("train_error", "test_error", "singular_value"):
        both[f"lazy_{name}"] = (lazy[name].dims, lazy[name].values[:rows])
    both["limit_value"] = ("mode", np.linalg.svd(task.observed, compute_uv=False))
    both["rate"] = ((), pace)
    both = both.assign_coords(time=both["step"].values.astype(float))
    both["time"].attrs["unit"] = "steps"
    both.attrs["rank"] = settings.rank
    return both.drop_vars("step")


def _reach(values: np.ndarray, level: float) -> float:
    above = values >= level
    return float(np.argmax(above)) if above.any() else np.inf


def _over(one: float, other: float) -> float:
    """A ratio of times; two that are over at the first step are simultaneous."""
    return one / other if other else (np.inf if one else 1.0)


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the sentences about Figure 1."""
    measured = _measured(trajectory)
    judge = partial(check, paper=PAPER, where="Figure 1", size=size)
    return [
        judge(
            "Train and test error of gradient descent follow the self-consistent dynamics: "
            "largest difference relative to the curve, in units of √(d/w)",
            values=measured["agree"],
            null=measured["null agree"],
            against="the lazy dynamics as the theory",
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "The K largest singular values speed up on crossing σ²w: speed at 2σ²w over speed at σ²w/2",
            values=measured["speed"],
            null=measured["null speed"],
            against="the lazy dynamics",
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "The K largest singular values converge before the rest: time of 90 % of the last signal mode "
            "over that of the first noise mode",
            values=measured["first"],
            null=measured["null first"],
            against="K modes drawn at random",
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "The best test error comes before the rest have converged: "
            "its time over that of 50 % of the first noise mode",
            values=measured["late"],
            null=measured["null late"],
            against="K modes drawn at random",
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "The best test error comes after the K largest have crossed σ²w and grown: "
            "its time over that of 50 % of the last signal mode",
            values=measured["early"],
            null=measured["null early"],
            against="K modes drawn at random",
            relation=">=",
            threshold=1.0,
        ),
    ]


def _measured(trajectory: Trajectory) -> dict[str, list[float]]:
    """What each claim is judged by, and its null, one number per seed."""
    rank = int(trajectory.attrs["rank"])
    names = ("agree", "speed", "first", "late", "early")
    measured: dict[str, list[float]] = {name: [] for name in (*names, *(f"null {name}" for name in names))}
    draw = np.random.default_rng(0)
    for _, one in trajectory.groupby("seed"):
        one = one.squeeze("seed")
        descent = one.sel(dynamics="descent")
        allowed = np.sqrt(trajectory.sizes["mode"] / float(one["hidden_units"]))
        for null, other in (("", one.sel(dynamics="self-consistent")), ("null ", None)):
            errors = []
            for name in ("train_error", "test_error"):
                theory = one[f"lazy_{name}"] if other is None else other[name]
                errors.append(float(np.abs(descent[name] - theory).max() / descent[name].max()))
            measured[f"{null}agree"].append(max(errors) / allowed)
        values = descent["singular_value"].transpose("time", "mode").values
        lazy = one["lazy_singular_value"].transpose("time", "mode").values
        ends, threshold = one["limit_value"].values, float(one["threshold"])
        measured["speed"].append(min(_speed_up(values[:, i], threshold) for i in range(rank)))
        measured["null speed"].append(min(_speed_up(lazy[:, i], threshold) for i in range(rank)))
        best = float(descent["test_error"].argmin("time"))
        for null, modes in (("", list(range(len(ends)))), ("null ", draw.permutation(len(ends)).tolist())):
            signal, rest = modes[:rank], modes[rank:]
            last = max(_reach(values[:, i], 0.9 * ends[i]) for i in signal)
            half = max(_reach(values[:, i], max(0.5 * ends[i], threshold)) for i in signal)
            # Of the real modes the first noise mode is the largest of the rest; of any others, whichever is first.
            first = rest[:1] if not null else rest
            noise, later = (min(_reach(values[:, i], level * ends[i]) for i in first) for level in (0.5, 0.9))
            measured[f"{null}first"].append(_over(last, later))
            measured[f"{null}late"].append(_over(best, noise))
            measured[f"{null}early"].append(_over(best, half))
    return measured


def _speed_up(values: np.ndarray, threshold: float) -> float:
    """Speed at 2σ²w over speed at σ²w/2, by interpolating the time of four levels."""
    steps = np.arange(len(values), dtype=float)
    rising = np.maximum.accumulate(values)
    # A fifth below and above σ²w/2 and 2σ²w.
    levels = threshold * np.array([0.4, 0.6, 1.6, 2.4])
    if rising[0] > levels[0] or rising[-1] < levels[-1]:
        return np.nan
    # The small slope makes flat stretches rise, which interpolation needs.
    at = np.interp(levels, rising + 1e-12 * steps, steps)
    return float((levels[3] - levels[2]) / (at[3] - at[2]) / ((levels[1] - levels[0]) / (at[1] - at[0])))


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.figure_1(trajectory)


EXPERIMENT = Experiment(
    "linear/figure-1",
    "Gradient descent and the self-consistent dynamics, errors and singular values",
    PAPER,
    sizes={
        "tiny": Size(3, Settings(dim=40, rank=3, c=10.0, steps=120, save_every=2, seeds=2)),
        "laptop": Size(7, Settings(dim=200, c=25.0, steps=300, save_every=4, seeds=3)),
        "gpu": Size(30, Settings(dim=500, steps=600, save_every=6, seeds=5)),
        "paper": Size(300, Settings(dim=500, steps=600, save_every=6, seeds=3)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
