"""The paper's sentences of section 5 as claims.

A concept of class 11 counts as learned when the mean probability of its value passes ½ for good: an untrained model's
images are noise, on which a classifier may say anything, so a first crossing means little.

Thresholds:

- *Order.* At the weakest colour signal size is learned first, at the strongest colour: a ratio of times of at most 1,
  in every seed. One that is not learned within the run counts as later than the end; two such are no order, and fail.
- *Speed.* Spearman's ρ between separation and the time of colour is at most −½, in every seed: with four
  separations that is some exchanges of neighbours, but not more. A colour that is not learned comes last.
- *Memorisation.* The concept MSE of class 11 (mean over the two concepts, of the mean over seeds, as the paper draws
  it) rises by 0.05 and falls again by more. With 32 images the standard error of a probability is at most 0.09 and
  that of an MSE about as large, but all evaluations share their noise, and the mean over seeds has less: 0.05 is a
  rise that can be seen in a figure and not yet a wiggle. The same of single seeds in at least half of them. And the
  rise is transient: the last MSE is at most a quarter of the highest.
- *Bend.* At the highest MSE after the first rise the stronger concept is ahead: colour minus size is positive.
- *Slowing down.* log |dC/dt| against time from the top speed on has a negative slope, 95 % interval included; R² is at
  least ½, for the paper says "broadly matches".
- *Classes.* The sampler reproduces what was trained: 95 % of the last images of 00, 01 and 10 are what was asked for.
- *Something was learned.* The diffusion term of the bound ends at half of its first value or less. Asserted everywhere.

All but the last are asserted at `gpu` and `paper` only: models of the smaller sizes have a thousandth of the
weights, see a hundredth of the images, at a quarter of the resolution, and their young images are not yet circles.
"""

from functools import partial

import numpy as np
import xarray as xr

from saddles import measures
from saddles.core.claim import Claim, check
from saddles.core.trajectory import Trajectory

PAPER = "yang2025concepts"
LARGE = ("gpu", "paper")
ALL = ("tiny", "laptop", *LARGE)
LEVEL = 0.5
"""Probability above which a concept counts as learned."""
RISE = 0.05
"""Smallest rise and fall of the concept MSE that count; the module says why."""
NEVER = 1e3
"""Ratio of times where the first is not learned at all."""
TRAINED = ["00", "01", "10"]


def unseen(trajectory: xr.Dataset) -> xr.DataArray:
    """The path of class 11 through concept space: (time, separation, seed, coordinate)."""
    return trajectory["output"].sel(point="11", drop=True)


def concept_error(trajectory: xr.Dataset, ensemble: bool = True) -> xr.DataArray:
    """Concept-space MSE of class 11: (time, separation), of the mean over seeds, or of each seed."""
    path = unseen(trajectory)
    path = path.mean("seed") if ensemble else path
    return ((path - trajectory["target"]) ** 2).mean("coordinate").rename("concept_error")


def times_learned(trajectory: xr.Dataset) -> xr.DataArray:
    """Steps at which class 11 has each concept for good, infinite where it has not: (separation, seed, coordinate)."""
    learned = measures.learning_times(unseen(trajectory), trajectory["target"], LEVEL, for_good=True)["learned_at"]
    return learned.transpose("separation", "seed", "coordinate").fillna(np.inf)


def transient_rise(error: xr.DataArray) -> float:
    """The largest rise of one curve that a fall of more than RISE follows, 0 where there is none."""
    error = error.dropna("time")
    if error.sizes["time"] < 3 or float(error[0]) <= 0:
        return 0.0
    first = float(error[0])
    parts = measures.turning_points(error, RISE / first)
    change, kinds = parts["change"].values * first, parts["kind"].values
    rises = [change[k] for k in range(len(kinds) - 1) if kinds[k] == "ascent"]
    return float(max(rises, default=0.0))


def order_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6a."""
    judge = partial(check, paper=PAPER, where="Figure 6a", size=size, sizes=LARGE)
    when = times_learned(trajectory)
    weak, strong = when.isel(separation=0).values, when.isel(separation=-1).values
    return [
        judge("At the weakest colour signal size is learned before colour: ratio of times",
              values=_ratio(weak[:, 1], weak[:, 0]), relation="<=", threshold=1.0),
        judge("At the strongest colour signal colour is learned before size: ratio of times",
              values=_ratio(strong[:, 0], strong[:, 1]), relation="<=", threshold=1.0),
        judge("A stronger colour signal is learned sooner: Spearman's ρ of separation and time",
              values=_rho(when.sel(coordinate="colour")), relation="<=", threshold=-0.5),
        *_learned(trajectory, size, "Figure 6a"),
    ]  # fmt: skip


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Ours over theirs; 0 where only ours is learned, NEVER where ours is not."""
    both = np.isfinite(ours) & np.isfinite(theirs)
    ratio = np.where(np.isfinite(ours), 0.0, NEVER)
    return np.divide(ours, theirs, out=ratio, where=both)


def _rho(when: xr.DataArray) -> list[float]:
    """Spearman's ρ of separation and time, one per seed."""
    from scipy.stats import spearmanr  # half a second to import, and only claims need it

    values = when.transpose("separation", "seed").values
    late = np.where(np.isfinite(values), values, np.finfo(float).max)
    if len(late) < 2:
        return [float("nan")] * late.shape[1]
    return [float(spearmanr(when["separation"], row)[0]) if np.ptp(row) > 0 else 0.0 for row in late.T]  # type: ignore[arg-type]


def memorisation_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6b, at the strongest separation."""
    judge = partial(check, paper=PAPER, where="Figure 6b", size=size, sizes=LARGE)
    one = trajectory.isel(separation=[-1])
    whole = concept_error(one).isel(separation=0)
    single = concept_error(one, ensemble=False).isel(separation=0)
    rises = [transient_rise(single.isel(seed=k)) for k in range(single.sizes["seed"])]
    peak = highest(whole)
    ahead = unseen(one).isel(separation=0).mean("seed").isel(time=peak)
    lead = float(ahead.sel(coordinate="colour") - ahead.sel(coordinate="size"))
    return [
        judge("The concept MSE of class 11 rises before it falls: its largest transient rise, mean over seeds",
              values=transient_rise(whole), relation=">=", threshold=RISE),
        judge("It does in single seeds: share of them", values=float(np.mean(np.array(rises) >= RISE)),
              relation=">=", threshold=0.5),
        judge("The memorisation is transient: last concept MSE over the highest",
              values=float(whole[-1] / whole.max()), relation="<=", threshold=0.25),
        judge("The way bends towards the stronger concept: colour minus size at the highest MSE of the rise",
              values=lead, relation=">=", threshold=0.0),
        *_learned(trajectory, size, "Figure 6b"),
    ]  # fmt: skip


def highest(error: xr.DataArray) -> int:
    """Place of the highest point of the largest transient rise, or of the whole curve where there is none."""
    first = float(error[0])
    parts = measures.turning_points(error, RISE / first) if first > 0 else None
    if parts is not None:
        kinds, change = parts["kind"].values, parts["change"].values
        rises = [k for k in range(len(kinds) - 1) if kinds[k] == "ascent"]
        if rises:
            return int(parts["last"][max(rises, key=lambda k: change[k])])
    return int(np.argmax(error.values))


def slowing_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6c, at every separation."""
    judge = partial(check, paper=PAPER, where="Figure 6c", size=size, sizes=LARGE)
    tail = measures.exponential_tail(unseen(trajectory).mean("seed"), trajectory["target"])
    scale = float(trajectory["time"][-1])
    return [
        judge("|dC/dt| falls from its top on: rate × length of the run, lower end of the 95 % interval",
              values=tail["low"] * scale, relation=">=", threshold=0.0),
        judge("It falls exponentially: R² of log |dC/dt| against time", values=tail["fit"],
              relation=">=", threshold=0.5),
        *_learned(trajectory, size, "Figure 6c"),
    ]  # fmt: skip


def _learned(trajectory: Trajectory, size: str, where: str) -> list[Claim]:
    last = trajectory.isel(time=-1)
    right = last["accuracy"].sel(point=TRAINED).mean("point")
    fall = last["diffusion"] / trajectory["diffusion"].isel(time=0)
    judge = partial(check, paper=PAPER, where=where, size=size)
    return [
        judge("The sampler reproduces the trained classes: share of images that are what was asked for",
              values=right, relation=">=", threshold=0.95, sizes=LARGE),
        judge("The model learns: last diffusion term of the bound over the first", values=fall,
              relation="<=", threshold=0.5, sizes=ALL),
    ]  # fmt: skip
