"""Definition C.1 and the times T₁ to T₅ of appendix E.3: when an active network is where, and how well it is aligned.

The paper's dynamics, d²A' = (A* − A)C₁ + C₂(A* − A), run at half the speed of gradient flow on its own cost; times
here are on the paper's clock. T₁: ‖A‖ = σ²w. T₂: ‖A‖ = σ²w (w/d)^¼. T₃: s_K = a_K d/2. x is Definition C.1's
misalignment, Σ_k 4 − (u_k + v_k)² for singular vectors with overlaps u_k and v_k with those of A*, 0 when all are
equal.

Claims and their thresholds, set from the text and from the spiked spectrum of A* + E (noise edge 2√d, singular values
a_i d + 1/a_i, overlaps 1 − O(1/(a_i² d))), at γ_w = 2.5, where what is drawn at the start, √(d/w), is negligible:

- *T₁ = O(d)*: slope of T₁/d in log d at most 0.1; a logarithm would give 0.2 between d = 40 and 160.
- *T₃ − T₁ = d log(a_K d/σ²w)/a_K + O(d)*, as printed. A mode at s ≪ a_K d grows at the rate 2a_K/d, so that the
  coefficient should be half of that; the text's chain of inequalities shows an upper bound. Both are judged at the
  smallest d, where σ²w is made a thousand times smaller: what is added to T₃ − T₁ is the logarithm's part alone. A
  quarter is allowed, for 1/a_i adds 1/(a_K² d) to the rate, 7 % at d = 40.
- *P₁* (from T₁ to T₃): s_{K+1}/s_K ≤ ½ at the largest d (expected 2/(a_K √d)); relative gaps of signal values do not
  fall with d (slope ≥ −0.1); s_{K+1}(T₃)/σ²w does not grow with d (slope ≤ 0).
- *P₂*: x falls at least like d^−γ with γ = min((γ_w − 1)/8, ¼) at T₁, (γ_w − 1)/2 at T₂ and 1 (from T₄ on) for all
  times after T₃: slopes of x d^γ at most 0.1, of the mean over seeds, for one draw of x scatters by a tenth at d = 40.
  (Each seed was judged by itself at first, and one of three was at 0.12.)
- *T₅*: |s_i − a_i d| ≤ O(d⁻¹ + d^{−2Δ}) log d, as printed, once the signal has settled (at the end of the run): root
  mean square over modes and seeds, slope of its product with d/log d at most 0.1. Of A* + E the difference is
  1/a_i + O(1), so that it should fail; the bound that the rest of the appendix needs has a factor d more.

Nulls: the weights at the start, another law, or another instant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.linear.experiments.scaling import PAPER, network
from saddles.runtime.progress import bar

GAMMA_W, GAMMA_VARIANCE = 2.5, -2.0
CLOCK = 2.0
"""The paper's time over gradient time."""
SMALLER = 1000.0
"""By which σ²w is divided to read the coefficient of its logarithm."""


@dataclass(frozen=True)
class Settings:
    """A scan of dimensions in the active regime."""

    dims: Annotated[tuple[int, ...], "dimensions d"]
    seeds: Annotated[int, "independent tasks and initial weights"]
    spectrum: Annotated[tuple[float, ...], "a_1..a_K: different singular values of A* over d"] = (1.0, 0.8, 0.6)
    until: Annotated[float, "end of the runs, in units of d log d on the paper's clock"] = 1.3
    instants: Annotated[int, "instants at which singular vectors are computed"] = 60


def run(settings: Settings, context: Context) -> Trajectory:
    """Descent from every dimension and seed, with what Definition C.1 asks of its singular values and vectors."""
    seeds, dims = context.seeds(settings.seeds), settings.dims
    parts = {}
    with bar("linear/stages", float(len(seeds) * sum(d**2 for d in dims))) as progress:
        for dim in dims:
            for seed in seeds:
                parts[dim, seed] = context.part(f"{dim}-{seed}", partial(_one, settings, dim, seed))
                progress.advance(dim**2)
    rows = [xr.concat([parts[dim, seed] for seed in seeds], "seed") for dim in dims]
    whole = xr.concat(rows, "dim").assign_coords(dim=list(dims), seed=seeds).transpose("time", "dim", "seed", ...)
    smaller = [context.part(f"smaller-{seed}", partial(_one, settings, dims[0], seed, SMALLER)) for seed in seeds]
    whole["smaller_level"] = (("time", "seed", "mode"), np.stack([one["level"].values for one in smaller], axis=1))
    whole.attrs |= {"spectrum": list(settings.spectrum)}
    return whole


def _end(until: float, smaller: float, dim: int, spectrum: Sequence[float]) -> float:
    """When a run ends: later where σ²w is smaller, by what the weakest mode needs to make up for it."""
    return until + float(np.log(smaller)) / (2 * min(spectrum) * np.log(dim))


def _one(settings: Settings, dim: int, seed: int, smaller: float = 1.0) -> Trajectory:
    rank = len(settings.spectrum)
    task = linear.Denoising(dim, rank, seed=seed, spectrum=settings.spectrum)
    usual = network(dim, GAMMA_W, GAMMA_VARIANCE)
    model = linear.TwoLayer(usual.width, usual.threshold / smaller / float(usual.width))  # type: ignore[arg-type]
    end = _end(settings.until, smaller, dim, settings.spectrum)
    clock = np.linspace(0.0, 1.0, settings.instants)
    unit = dim * np.log(dim) / CLOCK
    pace = np.sqrt(dim) / 4  # T₁ = O(d): some 4 √d steps
    steps = int(np.ceil(end * unit / pace))
    # One stride more than `end` is run, so that the last instant lies between two saved ones.
    stride = max(1, steps // settings.instants)
    run = simulate(
        model, task, linear.GradientDescent(pace, steps + stride, stride), seed=seed, keep=("matrix",),
        skip=("singular_value",),
    )  # fmt: skip
    left, values, right = np.linalg.svd(run["matrix"].transpose("time", "row", "column").values)
    true_left, _, true_right = np.linalg.svd(task.target)
    overlap = np.einsum("tij,ij->tj", left[:, :, :rank], true_left[:, :rank])
    overlap += np.einsum("tji,ji->tj", right[:, :rank], true_right[:rank])
    when = run["time"].values / unit
    rows = np.concatenate([values[:, : rank + 1] / model.threshold, (4 - overlap**2).sum(axis=1)[:, None]], axis=1)
    rows = np.stack([np.interp(clock * end, when, row) for row in rows.T], axis=1)
    return make_trajectory(
        {"level": (("time", "mode"), rows[:, :-1]), "misalignment": (("time",), rows[:, -1])},
        clock * settings.until, unit="d log d, on the paper's clock", lab="linear", kind="simulated",
    )  # fmt: skip


def _first(levels: np.ndarray, level: float, clock: np.ndarray) -> np.ndarray:
    """When each column of `levels` (time, seed) first reaches a level, linear between instants; NaN for never."""
    # The largest so far: interpolation needs a rising abscissa, and this reads the first passage.
    return np.array([np.interp(level, np.maximum.accumulate(one), clock, right=np.nan) for one in levels.T])


def milestones(trajectory: xr.Dataset) -> xr.Dataset:
    """T₁, T₂ and T₃ in units of d log d: when ‖A‖ and s_K first reach their levels, linear between instants."""
    a_last = float(trajectory.attrs["spectrum"][-1])
    clock, names = trajectory["time"].values, ("T1", "T2", "T3")
    rows = np.zeros((len(names), trajectory.sizes["dim"], trajectory.sizes["seed"]))
    for i, dim in enumerate(trajectory["dim"].values.astype(float)):
        size = network(int(dim), GAMMA_W, GAMMA_VARIANCE)
        levels = (1.0, (size.width / dim) ** 0.25, 0.5 * a_last * dim / size.threshold)  # type: ignore[operator]
        for k, (mode, level) in enumerate(zip((0, 0, -2), levels, strict=True)):
            rows[k, i] = _first(
                trajectory["level"].isel(dim=i, mode=mode).transpose("time", "seed").values, level, clock
            )
    return xr.Dataset({name: (("dim", "seed"), row) for name, row in zip(names, rows, strict=True)})


def _smaller(trajectory: xr.Dataset) -> dict[str, np.ndarray]:
    """T₁ and T₃ over d of the smallest d with the smaller σ²w, one per seed."""
    spectrum, dim = [float(a) for a in trajectory.attrs["spectrum"]], int(trajectory["dim"][0])
    clock = trajectory["time"].values
    clock = clock * _end(clock[-1], SMALLER, dim, spectrum) / clock[-1]
    levels = trajectory["smaller_level"].transpose("mode", "time", "seed").values
    last = 0.5 * spectrum[-1] * dim * SMALLER / network(dim, GAMMA_W, GAMMA_VARIANCE).threshold
    rows = (_first(levels[mode], level, clock) for mode, level in ((0, 1.0), (-2, last)))
    return {name: row * np.log(dim) for name, row in zip(("T1", "T3"), rows, strict=True)}


def _at(values: xr.DataArray, times: xr.DataArray) -> np.ndarray:
    """A variable (time, dim, seed) at one instant for each dim and seed."""
    clock, rows = values["time"].values, values.transpose("dim", "seed", "time").values
    return np.array([[np.interp(t, clock, row) for t, row in zip(*pair, strict=True)]
                     for pair in zip(times.values, rows, strict=True)])  # fmt: skip


def _slopes(trajectory: xr.Dataset, values: np.ndarray) -> np.ndarray:
    """Log-log slope against d of `values` (dim), or one per seed of `values` (dim, seed)."""
    return np.atleast_1d(np.polyfit(np.log(trajectory["dim"].values.astype(float)), np.log(values), 1)[0])


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge Definition C.1 and the times."""
    return _of_times(trajectory, size) + _of_values(trajectory, size) + _of_vectors(trajectory, size)


def _of_times(trajectory: Trajectory, size: str) -> list[Claim]:
    times = milestones(trajectory)
    log_d = np.log(trajectory["dim"].values.astype(float))[:, None]
    over_d = {name: times[name].values * log_d for name in times}
    a_last = float(trajectory.attrs["spectrum"][-1])
    added = {name: a_last * (late - over_d[name][0]) / np.log(SMALLER) for name, late in _smaller(trajectory).items()}
    printed = added["T3"] - added["T1"]
    judge = partial(check, paper=PAPER, where="Appendix E.3", size=size, relation="<=")
    return [
        judge(
            "T₁ = O(d): log-log slope of T₁/d against d",
            values=_slopes(trajectory, over_d["T1"]),
            threshold=0.1,
            null=_slopes(trajectory, over_d["T1"] * log_d),
            against="a law with the logarithm, d log d",
        ),
        judge(
            "T₃ − T₁ = d log(a_K d/σ²w)/a_K + O(d), as printed: distance of the coefficient from it, relative",
            values=np.abs(printed - 1),
            threshold=0.25,
            null=np.abs(added["T1"] - 1),
            against="T₁ alone",
        ),
        judge(
            "T₃ − T₁ = d log(a_K d/σ²w)/(2a_K) + O(d), from the rate 2a_K/d: distance of the coefficient, relative",
            values=np.abs(2 * printed - 1),
            threshold=0.25,
            null=np.abs(printed - 1),
            against="the coefficient as printed",
        ),
    ]


def _of_values(trajectory: Trajectory, size: str) -> list[Claim]:
    times, dims = milestones(trajectory), trajectory["dim"].values.astype(float)
    spectrum = np.asarray(trajectory.attrs["spectrum"], dtype=float)
    level = trajectory["level"].transpose("time", "dim", "seed", "mode")
    between = (level["time"] >= times["T1"]) & (level["time"] <= times["T3"])
    signal, edge = level.isel(mode=slice(0, -1)).values, level.isel(mode=-1)
    share = edge / level.isel(mode=-2)
    gaps = level.isel(mode=0).copy(data=(1 - signal[..., 1:] / signal[..., :-1]).min(axis=-1))
    threshold = np.array([network(int(d), GAMMA_W, GAMMA_VARIANCE).threshold for d in dims])
    off = signal * threshold[None, :, None, None] - spectrum * dims[None, :, None, None]
    off = np.sqrt((off**2).mean(axis=(2, 3)))
    judge = partial(check, paper=PAPER, where="Definition C.1, Lemma C.9", size=size)
    return [
        judge(
            "P₁ from T₁ to T₃: largest s_{K+1}/s_K at the largest d",
            values=share.where(between).max("time").isel(dim=-1).values,
            relation="<=",
            threshold=0.5,
            null=share.isel(time=0, dim=-1).values,
            against="the weights at the start",
        ),
        judge(
            "P₁ from T₁ to T₃: the smallest (s_k − s_{k+1})/s_k of the signal does not fall with d: log-log slope",
            values=_slopes(trajectory, gaps.where(between).min("time").values),
            relation=">=",
            threshold=-0.1,
            null=_slopes(trajectory, gaps.isel(time=0).values),
            against="the weights at the start",
        ),
        judge(
            "P₁: at T₃ s_{K+1} is within a constant of σ²w: log-log slope of their ratio against d",
            values=_slopes(trajectory, _at(edge, times["T3"])),
            relation="<=",
            threshold=0.0,
            null=_slopes(trajectory, _at(level.isel(mode=-2), times["T3"])),
            against="s_K in the place of s_{K+1}",
        ),
        judge(
            "At T₅ |s_i − a_i d| ≤ O(log d/d), as printed: log-log slope against d of its root mean square at the end, "
            "times d/log d",
            where="Appendix E.3",
            values=_slopes(trajectory, off[-1] * dims / np.log(dims)),
            relation="<=",
            threshold=0.1,
            null=_slopes(trajectory, off[0] * dims / np.log(dims)),
            against="the weights at the start",
        ),
    ]


def _of_vectors(trajectory: Trajectory, size: str) -> list[Claim]:
    times, x = milestones(trajectory), trajectory["misalignment"].transpose("time", "dim", "seed")
    dims = trajectory["dim"].values.astype(float)[:, None]
    judge = partial(
        check, paper=PAPER, where="Definition C.1, appendix E.3", size=size, relation="<=", threshold=0.1,
        against="the weights at the start",
    )  # fmt: skip
    rows = (
        ("at T₁", "min((γ_w−1)/8, ¼)", min((GAMMA_W - 1) / 8, 0.25), _at(x, times["T1"])),
        ("at T₂", "(γ_w−1)/2", (GAMMA_W - 1) / 2, _at(x, times["T2"])),
        ("for all times after T₃", "1", 1.0, x.where(x["time"] >= times["T3"]).max("time").values),
    )
    return [
        judge(
            f"P₂: the misalignment x falls like d^−γ {when}, γ = {words}: log-log slope of x d^γ",
            values=_slopes(trajectory, (values * dims**gamma).mean(axis=1)),
            null=_slopes(trajectory, (x.isel(time=0).values * dims**gamma).mean(axis=1)),
        )
        for when, words, gamma, values in rows
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.stages(trajectory, milestones(trajectory))


EXPERIMENT = Experiment(
    "linear/stages",
    "When an active network is where: the times of appendix E.3, and its alignment with the truth",
    PAPER,
    sizes={
        "tiny": Size(3, Settings(dims=(16, 24), seeds=1, instants=40)),
        "laptop": Size(4, Settings(dims=(40, 80, 160), seeds=3)),
        "gpu": Size(60, Settings(dims=(50, 100, 200, 400), seeds=4)),
        "paper": Size(120, Settings(dims=(50, 100, 200, 400), seeds=6)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
