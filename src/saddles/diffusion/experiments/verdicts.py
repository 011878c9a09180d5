"""The paper's sentences of section 5 as claims.

A concept of class 11 counts as learned when the mean probability of its value passes ½ for good: an untrained model's
images are noise, on which a classifier may say anything, so a first crossing means little.

Thresholds:

- *Order.* At the weakest colour signal size is learned first, at the strongest colour: a ratio of times of at most 1,
  in every seed. One that is not learned within the run counts as later than the end; two such have no order, and fail.
  Null: the other end of the sweep, for an order that does not depend on the signal is the same at both.
- *Speed.* Spearman's ρ between separation and the time of colour is at most −½, in every seed: with four
  separations that is some exchanges of neighbours, but not more. A colour that is not learned comes last. Null:
  times in random order, the luckiest 5 % of such sets of seeds.
- *Memorisation.* From the evaluation on at which each trained class is right in half of its images for good, the
  concept MSE of class 11 (mean over the two concepts, of the mean over seeds, as the paper draws it) rises and falls
  again by 0.05 more than that of any trained class. With 32 images the standard error of a probability is at most
  0.09 and that of an MSE about as large, but all evaluations share their noise, and the mean over seeds has less: 0.05
  is a rise that can be seen in a figure and not yet a wiggle. The trained classes are the null: before images are
  circles the classifier answers to noise, and their MSE rises as much. The same of single seeds in at least half of
  them, and of paths smoothed by two evaluations, as the authors' script draws them. And the rise is transient: the
  last MSE is at most a quarter of the highest; images of the neighbours 01 and 10 in its place would stay.
- *Bend.* At the highest MSE of that rise the stronger concept is ahead: colour minus size is positive. Null: the same
  at the weakest colour signal, where size is the stronger.
- *Slowing down.* log |dC/dt| against time from the top speed on has a negative slope, 95 % interval included; R² is at
  least ½, for the paper says "broadly matches". The authors' script smooths the speed by 1.5 evaluations; R² of that
  is judged too. Null: the same speeds in random order, the luckiest 5 % of 100; any curve falls from its top, and
  a smooth one does so in a line.
- *Classes.* The sampler reproduces what was trained: 95 % of the last images of 00, 01 and 10 are what was asked for.
  Null: those of the first evaluation.
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
from saddles.measures.lines import fit_line, rank_correlation

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
PATH_WIDTH, SPEED_WIDTH = 2.0, 1.5
"""Evaluations by which the authors' script smooths paths (figure 6b) and speeds (figure 6c)."""
LUCK = 0.05
"""The share of random orders that a null keeps: its luckiest."""
ORDERS = 100
"""Random orders behind the null of figure 6c."""


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
    parts = _segments(error.dropna("time"))
    if parts is None:
        return 0.0
    change, kinds = parts["change"].values, parts["kind"].values
    rises = [change[k] for k in range(len(kinds) - 1) if kinds[k] == "ascent"]
    return float(max(rises, default=0.0))


def _segments(error: xr.DataArray) -> xr.Dataset | None:
    """Falls and rises of more than RISE; lifted to begin at 1, so that changes are absolute."""
    return measures.turning_points(error - error[0] + 1, RISE) if error.sizes["time"] > 2 else None


def excess(one: xr.Dataset, smooth: float = 0.0) -> tuple[float, float]:
    """By how much class 11 rises more than any trained class, and the same of the trained class that rises most.

    Args:
        one: `output` (time, point, coordinate) and `accuracy` (time, point) of one run, or of a mean over seeds.
        smooth: evaluations by which paths are smoothed.

    Curves begin when each trained class is right in half of its images for good; (0, 0) where that never happens.
    """
    path = _from_formed(one, measures.smoothed(one["output"].dropna("time"), smooth))
    rises = {}
    for name in (*TRAINED, "11"):
        goal = xr.DataArray([float(bit) for bit in name], dims="coordinate")
        rises[name] = transient_rise(((path.sel(point=name) - goal.values) ** 2).mean("coordinate"))
    *others, highest_trained = sorted(rises[name] for name in TRAINED)
    return rises["11"] - highest_trained, highest_trained - others[-1]


def _from_formed(one: xr.Dataset, path: xr.DataArray) -> xr.DataArray:
    """The part of a path at which each trained class is right in half of its images for good."""
    right = (one["accuracy"].sel(point=TRAINED) >= LEVEL).all("point").values[: path.sizes["time"]]
    return path.isel(time=np.flip(np.logical_and.accumulate(np.flip(right))))


def order_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6a."""
    judge = partial(check, paper=PAPER, where="Figure 6a", size=size, sizes=LARGE)
    when = times_learned(trajectory)
    weak, strong = when.isel(separation=0).values, when.isel(separation=-1).values
    rho = _rho(when.sel(coordinate="colour"))
    return [
        judge("At the weakest colour signal size is learned before colour: ratio of times",
              values=_ratio(weak[:, 1], weak[:, 0]), relation="<=", threshold=1.0,
              null=_ratio(strong[:, 1], strong[:, 0]), against="the strongest colour signal"),
        judge("At the strongest colour signal colour is learned before size: ratio of times",
              values=_ratio(strong[:, 0], strong[:, 1]), relation="<=", threshold=1.0,
              null=_ratio(weak[:, 0], weak[:, 1]), against="the weakest colour signal"),
        judge("A stronger colour signal is learned sooner: Spearman's ρ of separation and time",
              values=rho, relation="<=", threshold=-0.5,
              null=_lucky_rho(when.sizes["separation"], len(rho)), against="times in random order, luckiest 5 %"),
        *_learned(trajectory, size, "Figure 6a"),
    ]  # fmt: skip


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Ours over theirs; 0 where only ours is learned, NEVER where ours is not."""
    both = np.isfinite(ours) & np.isfinite(theirs)
    ratio = np.where(np.isfinite(ours), 0.0, NEVER)
    return np.divide(ours, theirs, out=ratio, where=both)


def _rho(when: xr.DataArray) -> np.ndarray:
    """Spearman's ρ of separation and time, one per seed."""
    values = when.transpose("separation", "seed").values
    late = np.where(np.isfinite(values), values, np.finfo(float).max)
    return rank_correlation(when["separation"].values, late)


def _lucky_rho(separations: int, seeds: int) -> float:
    """The worst ρ of some seeds of which all times are in random order: the value that LUCK of such sets reach."""
    draw = np.random.default_rng(0)
    ranks = np.arange(separations, dtype=float)
    orders = draw.permuted(np.broadcast_to(ranks, (10_000, seeds, separations)), axis=-1)
    distance = ((orders - ranks) ** 2).sum(-1)
    worst = 1 - 6 * distance.min(-1) / max(separations * (separations**2 - 1), 1)  # Spearman's formula without ties
    return float(np.quantile(worst, LUCK))


def memorisation_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6b, at the strongest separation."""
    judge = partial(check, paper=PAPER, where="Figure 6b", size=size, sizes=LARGE)
    one, mean = trajectory.isel(separation=-1), trajectory.mean("seed").isel(separation=-1)
    ours, trained = excess(mean)
    smooth, smooth_trained = excess(mean, PATH_WIDTH)
    single = np.array([excess(one.isel(seed=k)) for k in range(one.sizes["seed"])])
    share, share_trained = (single >= RISE).mean(axis=0)
    left = {name: _last_over_highest(mean["output"].sel(point=name)) for name in ("11", "01", "10")}
    several = trajectory.sizes["separation"] > 1
    rise = "The concept MSE of class 11 rises more than that of trained classes, and falls"
    other = "a trained class in its place"
    return [
        judge(f"{rise}: excess, mean over seeds", values=ours, relation=">=", threshold=RISE, null=trained,
              against=other),
        judge(f"{rise}: share of single seeds", values=share, relation=">=", threshold=0.5, null=share_trained,
              against=other),
        judge(f"{rise}: excess of paths smoothed like the authors'", values=smooth, relation=">=", threshold=RISE,
              null=smooth_trained, against=other),
        judge("The memorisation is transient: last concept MSE over the highest", values=left["11"], relation="<=",
              threshold=0.25, null=min(left["01"], left["10"]), against="images of class 01 or 10 in its place"),
        judge("The way bends towards the stronger concept: colour minus size at the highest MSE of the rise",
              values=_lead(trajectory, -1), relation=">=", threshold=0.0,
              null=_lead(trajectory, 0) if several else None,
              against="the weakest colour signal" if several else "one separation was run"),
        *_learned(trajectory, size, "Figure 6b"),
    ]  # fmt: skip


def _last_over_highest(path: xr.DataArray) -> float:
    error = ((path - 1) ** 2).mean("coordinate").dropna("time")
    return float(error[-1] / error.max()) if error.size else float("nan")  # of a run that diverged at once


def _lead(trajectory: xr.Dataset, place: int) -> float:
    """Colour minus size where the concept MSE of class 11 is highest, from when trained classes are there."""
    mean = trajectory.mean("seed").isel(separation=place)
    path = _from_formed(mean, mean["output"].dropna("time")).sel(point="11")
    if not path.sizes["time"]:
        return float("nan")
    ahead = path.isel(time=highest(((path - 1) ** 2).mean("coordinate")))
    return float(ahead.sel(coordinate="colour") - ahead.sel(coordinate="size"))


def highest(error: xr.DataArray) -> int:
    """Place of the highest point of the largest transient rise, or of the whole curve where there is none."""
    parts = _segments(error)
    if parts is not None:
        kinds, change = parts["kind"].values, parts["change"].values
        rises = [k for k in range(len(kinds) - 1) if kinds[k] == "ascent"]
        if rises:
            return int(parts["last"][max(rises, key=lambda k: change[k])])
    return int(np.argmax(error.values))


def slowing_claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Figure 6c, at every separation."""
    judge = partial(check, paper=PAPER, where="Figure 6c", size=size, sizes=LARGE)
    path, target = unseen(trajectory).mean("seed"), trajectory["target"]
    tail = measures.exponential_tail(path, target)
    smooth = measures.exponential_tail(path, target, smooth=SPEED_WIDTH)
    pace = measures.speed(path)
    low, fit = _in_random_order(pace, tail["instants"])
    _, fit_smooth = _in_random_order(pace, smooth["instants"], SPEED_WIDTH)
    scale = float(trajectory["time"][-1])
    mixed = "speeds in random order, luckiest 5 %"
    return [
        judge("|dC/dt| falls from its top on: rate × length of the run, lower end of the 95 % interval",
              values=tail["low"] * scale, relation=">=", threshold=0.0, null=low * scale, against=mixed),
        judge("It falls exponentially: R² of log |dC/dt| against time", values=tail["fit"],
              relation=">=", threshold=0.5, null=fit, against=mixed),
        judge("It falls exponentially: R² of the speed smoothed like the authors'", values=smooth["fit"],
              relation=">=", threshold=0.5, null=fit_smooth, against=mixed),
        *_learned(trajectory, size, "Figure 6c"),
    ]  # fmt: skip


def _in_random_order(pace: xr.DataArray, instants: xr.DataArray, smooth: float = 0.0) -> tuple[float, float]:
    """Lower end of the rate, and R², the worst over separations, of speeds in random order: the luckiest of ORDERS.

    From the top on as many instants are fitted as of the real curve; where fewer than four are left there is no slope.
    """
    draw, pace = np.random.default_rng(0), pace.transpose("time", "separation")
    clock, counts = pace["time"].values, np.nan_to_num(instants.values).astype(int)
    rows = []
    for _ in range(ORDERS):
        mixed = measures.smoothed(pace.copy(data=draw.permutation(pace.values, axis=0)), smooth).values
        fits = []
        for k, count in enumerate(counts):
            top = int(np.nanargmax(mixed[:, k])) if np.isfinite(mixed[:, k]).any() else 0
            used = top + np.flatnonzero(np.nan_to_num(mixed[top : top + count, k]) > 0)
            line = fit_line(clock[used], np.log(mixed[used, k])) if len(used) > 3 else None
            fits.append((-line.high, line.fit) if line else (-np.inf, 0.0))
        rows.append(np.min(fits, axis=0))
    low, fit = np.quantile(rows, 1 - LUCK, axis=0, method="lower")
    return float(low), float(fit)


def _learned(trajectory: Trajectory, size: str, where: str) -> list[Claim]:
    last = trajectory.isel(time=-1)
    right = last["accuracy"].sel(point=TRAINED).mean("point")
    fall = last["diffusion"] / trajectory["diffusion"].isel(time=0)
    judge = partial(check, paper=PAPER, where=where, size=size)
    return [
        judge("The sampler reproduces the trained classes: share of images that are what was asked for",
              values=right, relation=">=", threshold=0.95, sizes=LARGE,
              null=trajectory["accuracy"].isel(time=0).sel(point=TRAINED).mean("point"), against="first evaluation"),
        judge("The model learns: last diffusion term of the bound over the first", values=fall,
              relation="<=", threshold=0.5, sizes=ALL, against="of no training it is 1 by definition"),
    ]  # fmt: skip
