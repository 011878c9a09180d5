"""The paper's statements about ranks as claims; one number per seed, that of the worst layer (and scale).

All are about the stable rank of the change of W_K W_Qᵀ or W_V W_Oᵀ, mean over the heads of a layer. "Early" is the
first measurement after 1,000 steps, whatever the length of the run: that is how far back Adam's second moment
reaches, 1/(1 − β₂), and before that its steps are signs of noisy gradients, whose rank says little. Rise and gradual
change are judged in runs of at least 5,000 steps, five times as many; a shorter one is all early. (At `tiny` and
`laptop`, whose runs have a few hundred steps, early is after 10, and what is asserted there is said below.)

Thresholds:

- *Low rank.* The paper shows single digits against about 43 at the start and calls it "extreme"; a quarter of the
  initial product's stable rank, in every layer, is ten or so. For ΔVO the text claims only "low-rank when compared to
  the initial spectrum": less than the initial product's, in every layer.
- *Rise.* ΔKQ ends higher than it was early, in every layer: a ratio of at least 1. ΔVO need not rise in every
  layer, and its curves in the paper do not: in at least half of them.
- *Gradually.* From early on, no step from one measurement to the next adds more than a quarter of the final value.
  A measurement covers at most 1/20 of a run, so a rank that arrived in one jump would show as one.
- *Where these two are asserted.* A run at `laptop` is all within what is early: ΔKQ first falls, from the noise of
  the first steps to one direction, and ΔVO gains a third of its rank in a few dozen steps. Numbers are shown there
  and asserted from `gpu` on; only the rise of a ViT's ΔVO is asserted at `laptop` too.
- *Spectra* (Figures 1, 5, 6 and 14 draw normalised ones, σ_i/σ_1, mean over the heads of a layer here): that of the
  change lies below that of the initial product, at the end, in every layer, at every index up to the head's
  dimension, beyond which the initial product has none: the largest difference is at most 0.
- *One after another* (Figure 6 draws the singular values of the change over time: "incremental learning dynamics"): of
  the five largest, each comes before the next, where "comes" is half of its final value, for good. In random order
  half of the neighbours would be right, in strict order all; three quarters are required, mean over heads and layers,
  of the worst scale. "More pronounced at smaller scales": the fifth comes later after the first there, in the median
  over heads and layers of the ratio of their steps, than at the largest scale. Asserted from `gpu` on.
- *Something was learned.* All this means little in a model that learned nothing: the training loss ends at least a
  tenth below that of uniform guesses, log(outputs).
- *Scale.* With three scales, ρ = 1/2 is one exchange of neighbours. The mean over heads and layers of Spearman's ρ
  between scale and final rank must be at least that for ΔKQ in every seed. The paper does not speak of ΔVO: any
  positive mean.

Nulls, all computed from the trajectory:

- *Weights that diffuse.* Both factors of a head take Gaussian random walks from Gaussian weights, to the norm that
  the change has in the run. Such a change has more than the rank of the initial product, and it does not rise. Heads
  of the walk have 16 dimensions in a model of 64, at most four a layer, for ratios of stable ranks hardly depend on
  that.
- *Measurements in random order*, from the early one on, for gradual change; the luckiest 5 % of 100. A rank that
  hardly changes is gradual in any order, and then that is no evidence.
- *Scales in random order*: a run per scale is what is independent, not its heads. Of three scales one order in six is
  the right one, so a single seed is no evidence. Where only the smallest and the largest scale are compared, or any
  positive ρ will do, a random order is right half of the time, however many scales there are: five seeds are the least
  that are evidence (1/32; four are right by chance in 1/16).
- The loss of uniform guesses is 1 by definition.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.trajectory import Trajectory
from saddles.measures.lines import rank_correlation
from saddles.transformers.experiments.runs import LEADING, PAPER, spectrum_excess

EARLY, LONG = 1_000, 5_000
"""Steps after which ranks say something, and of a run that can show their rise; the module says why."""
SMALL_EARLY = 10
"""Steps after which a run of a few hundred is compared with its end."""
LARGE = ("gpu", "paper")
"""Sizes with thousands of steps."""
HEAD, MODEL, HEADS = 16, 64, 4
"""Width of the heads and of the model of weights that diffuse, and most of them per layer."""
LUCK, ORDERS = 0.05, 100
"""Share of random orders that a null keeps, its luckiest, and how many are drawn."""
SCALES = 6
"""Most scales of which every order is looked at; of more, as many are drawn."""


def growth(trajectory: xr.Dataset, product: str, early: int = EARLY) -> dict[str, xr.DataArray]:
    """Ratio to the initial product, ratio to the early value, largest jump from there on: (scale, seed, layer).

    Args:
        early: the step at whose measurement, or the next one, ranks are first looked at.
    """
    ranks = trajectory["stable_rank"].sel(product=product).mean("head")
    steps = trajectory["step"].values
    place = min(int(np.searchsorted(steps, early)), len(steps) - 1)
    first = trajectory["initial_stable_rank"].sel(product=product).mean("head")
    last = ranks.isel(time=-1)
    later = ranks.isel(time=slice(place, None))
    jumps = later.diff("time").max("time") if later.sizes["time"] > 1 else xr.full_like(last, np.nan)
    return {"low": last / first, "rise": last / ranks.isel(time=place), "jump": jumps / last}


def diffusing(trajectory: xr.Dataset, product: str, early: int = EARLY) -> dict[str, xr.DataArray]:
    """`low` and `rise` of `growth` where weights take a random walk to the norm that the change has: the null."""
    ends = trajectory["frobenius_norm"].sel(product=product).isel(time=-1)
    begun = (trajectory["initial_singular_value"].sel(product=product) ** 2).sum("index") ** 0.5
    # With factors (1 + ε·noise) of the initial size the change has norm² 2ε² + ε⁴ of the initial product.
    norm = (ends / begun).mean("head").transpose("scale", "seed", "layer")
    amount = np.sqrt(np.sqrt(1 + norm.values.astype(float) ** 2) - 1)
    steps = trajectory["step"].values
    share = steps[min(int(np.searchsorted(steps, early)), len(steps) - 1)] / steps[-1]
    heads = min(trajectory.sizes["head"], HEADS)
    draw = np.random.default_rng(0)
    low, rise = np.empty(norm.shape), np.empty(norm.shape)
    for place in np.ndindex(*norm.shape):
        k, q, dk, dq, later_k, later_q = draw.normal(size=(6, heads, MODEL, HEAD))
        first = _stable_rank(k @ np.moveaxis(q, -1, -2))
        soon = _walked(k, q, np.sqrt(share) * dk, np.sqrt(share) * dq, float(amount[place]))
        rest = np.sqrt(1 - share)
        last = _walked(
            k, q, np.sqrt(share) * dk + rest * later_k, np.sqrt(share) * dq + rest * later_q, float(amount[place])
        )
        low[place], rise[place] = last / first, last / soon
    return {"low": norm.copy(data=low), "rise": norm.copy(data=rise)}


def spectra(trajectory: xr.Dataset, product: str) -> dict[str, np.ndarray]:
    """By how much the normalised spectrum of the change exceeds the initial one at most, of each seed; of the walk."""
    if "spectrum_excess" in trajectory:
        excess = _kept(trajectory, "spectrum_excess")
    else:  # stored before it was kept of every seed
        excess = spectrum_excess(trajectory["singular_value"].isel(instant=-1), trajectory["initial_singular_value"])
    excess = excess.sel(product=product).max(("scale", "layer"), skipna=False)
    draw = np.random.default_rng(0)
    k, q, dk, dq = draw.normal(size=(4, 8, MODEL, HEAD))
    walk, start = (
        np.linalg.svd(one, compute_uv=False)[:, 1:HEAD] / np.linalg.svd(one, compute_uv=False)[:, :1]
        for one in (dk @ np.moveaxis(q, -1, -2) + k @ np.moveaxis(dq, -1, -2), k @ np.moveaxis(q, -1, -2))
    )
    return {"gap": np.atleast_1d(excess.values), "null": (walk - start).mean(axis=0).max()}


def halfway(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The step from which on each value stays above half of its last one, linear in between; `values` (instant, …)."""
    share = values / np.maximum(values[-1], np.finfo(float).tiny)
    above = np.flip(np.logical_and.accumulate(np.flip(share >= 0.5, 0)), 0)
    place = np.argmax(above, axis=0)  # the first instant from which on it stays above
    after = np.take_along_axis(share, place[None], 0)[0]
    before = np.take_along_axis(share, np.maximum(place - 1, 0)[None], 0)[0]
    part = np.where(
        place > 0, (0.5 - before) / np.where(after > before, after - before, 1.0), 0.5 / np.maximum(after, 0.5)
    )
    begin = np.where(place > 0, steps[np.maximum(place - 1, 0)], 0.0)
    return begin + part * (steps[place] - begin)


def _kept(trajectory: xr.Dataset, name: str) -> xr.DataArray:
    """A variable of every seed but those of which an older store did not keep it; one that diverged counts, as NaN."""
    values = trajectory[name]
    known = values.notnull().any([axis for axis in values.dims if axis != "seed"])
    if "train_loss" in trajectory:
        known = known | trajectory["train_loss"].isel(time=-1).isnull().any("scale")
    return values.isel(seed=np.flatnonzero(known))


def rising(trajectory: xr.Dataset, product: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Share of neighbours among the leading singular values that rise in order, lateness of the last: (seed, scale).

    The second is the median over heads and layers of the step of the last over that of the first.
    """
    if "leading_singular_value" in trajectory:
        values = _kept(trajectory, "leading_singular_value")
    else:  # stored before they were kept of every seed
        values = trajectory["singular_value"].isel(index=slice(LEADING)).rename(index="leading")
        values = values if "seed" in values.dims else values.expand_dims(seed=trajectory["seed"].values[:1])
    values = values.sel(product=product).transpose("instant", "seed", "scale", "layer", "head", "leading")
    when = halfway(values.values.astype(float), trajectory["instant"].values.astype(float))
    gaps, last = np.diff(when, axis=-1), when[..., -1] / when[..., 0]
    order = np.where(np.isnan(gaps), np.nan, gaps > 0).mean(axis=(2, 3, 4))
    first = values.isel(instant=0, layer=0, head=0, leading=0, drop=True)
    return first.copy(data=order), first.copy(data=np.median(last, axis=(2, 3)))


def rising_together(trajectory: xr.Dataset) -> float:
    """The share of `rising` of weights that diffuse, measured at the same instants: the null."""
    steps = trajectory["instant"].values.astype(float)
    draw = np.random.default_rng(0)
    grown = np.sqrt(np.diff(steps, prepend=0.0) / steps[-1])[:, None, None, None]
    k, q = draw.normal(size=(2, 4 * HEADS, MODEL, HEAD))
    dk, dq = (np.cumsum(grown * draw.normal(size=(len(steps), *k.shape)), axis=0) for _ in range(2))
    values = np.linalg.svd(dk @ np.moveaxis(q, -1, -2) + k @ np.moveaxis(dq, -1, -2), compute_uv=False)
    return float((np.diff(halfway(values[..., :LEADING], steps), axis=-1) > 0).mean())


def _walked(k: np.ndarray, q: np.ndarray, dk: np.ndarray, dq: np.ndarray, amount: float) -> float:
    turned = np.moveaxis(q + amount * dq, -1, -2)
    return _stable_rank(amount * dk @ turned + amount * k @ np.moveaxis(dq, -1, -2))


def _stable_rank(matrices: np.ndarray) -> float:
    """Mean over heads; NaN of a run that diverged."""
    if not np.isfinite(matrices).all():
        return float("nan")
    values = np.linalg.svd(matrices, compute_uv=False)
    return float(((values**2).sum(-1) / values[:, 0] ** 2).mean())


def jump_in_random_order(trajectory: xr.Dataset, product: str, early: int = EARLY) -> float:
    """`jump` of `growth`, the worst layer and seed, of measurements in random order: what LUCK of them stay below."""
    ranks = trajectory["stable_rank"].sel(product=product).mean("head").transpose("time", ...)
    place = min(int(np.searchsorted(trajectory["step"].values, early)), ranks.sizes["time"] - 1)
    later = ranks.isel(time=slice(place, None)).values
    if len(later) < 2:
        return float("nan")
    draw = np.random.default_rng(0)
    jumps = [np.max(np.diff(draw.permutation(later, axis=0), axis=0) / later[-1]) for _ in range(ORDERS)]
    return float(np.quantile(jumps, LUCK))


def growth_claims(
    trajectory: Trajectory, size: str, where: str, rises: Sequence[str] = ("laptop", *LARGE)
) -> list[Claim]:
    """The claims about one model on one data set.

    Args:
        where: figures of the paper.
        rises: sizes at which ΔVO is asserted to rise.
    """
    early = EARLY if size in LARGE else SMALL_EARLY
    key, value = (growth(trajectory, product, early) for product in ("KQ", "VO"))
    key_walk, value_walk = (diffusing(trajectory, product, early) for product in ("KQ", "VO"))
    key_jump, value_jump = (jump_in_random_order(trajectory, product, early) for product in ("KQ", "VO"))
    walk, mixed = "weights that diffuse", "measurements in random order, luckiest 5 %"
    runs, steps = ("scale", "layer"), int(trajectory["step"][-1])
    short = f"judged in runs of at least {LONG:,} steps; this one has {steps:,}" if steps < LONG else ""
    judge = partial(check, paper=PAPER, where=where, size=size)
    in_time = partial(judge, not_applicable=short if size in LARGE else "")
    return [
        judge("The change of W_K W_Qᵀ ends with low rank: stable rank over that of the initial product, worst layer",
              values=key["low"].max(runs), relation="<=", threshold=0.25, null=key_walk["low"].max(runs), against=walk),
        in_time("The stable rank of ΔKQ rises: final over early value, worst layer",
                values=key["rise"].min(runs), relation=">=", threshold=1.0, sizes=LARGE,
                null=key_walk["rise"].min(runs), against=walk),
        in_time("The stable rank of ΔKQ rises gradually: largest gain between two measurements over the final value",
                values=key["jump"].max(runs), relation="<=", threshold=0.25, sizes=LARGE, null=key_jump,
                against=mixed),
        judge("The change of W_V W_Oᵀ ends below the initial product: ratio of stable ranks, worst layer",
              values=value["low"].max(runs), relation="<=", threshold=1.0, null=value_walk["low"].max(runs),
              against=walk),
        in_time("The stable rank of ΔVO rises: share of layers in which it ends above its early value",
                values=(value["rise"] > 1).mean(runs), relation=">=", threshold=0.5, sizes=rises,
                null=(value_walk["rise"] > 1).mean(runs), against=walk),
        in_time("The stable rank of ΔVO changes gradually: largest gain between two measurements over the final value",
                values=value["jump"].max(runs), relation="<=", threshold=0.25, sizes=LARGE, null=value_jump,
                against=mixed),
        *spectrum_claims(trajectory, judge),
        learned(trajectory, size, where),
    ]  # fmt: skip


def spectrum_claims(trajectory: Trajectory, judge: Callable[..., Claim]) -> list[Claim]:
    """The spectra that the paper draws, for both products."""
    found = {product: spectra(trajectory, product) for product in ("KQ", "VO")}
    return [
        judge(f"The normalised spectrum of Δ{product} ends below that of the initial product at every index: largest "
              "difference, worst layer and scale", values=one["gap"], relation="<=", threshold=0.0, null=one["null"],
              against="weights that diffuse a little")
        for product, one in found.items()
    ]  # fmt: skip


def incremental_claims(trajectory: Trajectory, judge: Callable[..., Claim]) -> list[Claim]:
    """Singular values that rise one after another, for both products."""
    order, late = ({product: rising(trajectory, product)[k] for product in ("KQ", "VO")} for k in (0, 1))
    scales = trajectory["scale"].values
    small, large = int(scales.argmin()), int(scales.argmax())
    together = rising_together(trajectory)
    return [
        *(
            judge(f"The {LEADING} leading singular values of Δ{product} rise one after another: share of neighbours in "
                  "order, worst scale", values=order[product].min("scale", skipna=False), relation=">=", threshold=0.75,
                  sizes=LARGE, null=together, against="weights that diffuse")
            for product in order
        ),
        *(
            judge(f"Of Δ{product} this is more pronounced at the smallest scale: lateness of the fifth, over that at "
                  "the largest", values=late[product][:, small] / late[product][:, large], relation=">=", threshold=1.0,
                  sizes=LARGE, null=_luckiest(_ratios(late[product].values.T)),
                  against="scales in random order, luckiest 5 %")
            for product in late
        ),
    ]  # fmt: skip


def _orders(count: int) -> np.ndarray:
    """All orders of so many scales, or so many drawn ones as six scales have."""
    if count <= SCALES:
        return np.array(list(itertools.permutations(range(count))))
    return np.random.default_rng(0).permuted(np.tile(np.arange(count), (math.factorial(SCALES), 1)), axis=1)


def _ratios(values: np.ndarray) -> np.ndarray:
    """First over last of every order of the scales: from (scale, seed) to (order, seed)."""
    orders = _orders(len(values))
    return values[orders[:, 0]] / values[orders[:, -1]]


def _luckiest(rows: np.ndarray) -> float:
    """The worst over seeds that LUCK of all random orders reach, (order, seed); every seed has an order of its own."""
    levels = np.unique(rows)
    chance = np.prod([(rows[:, seed] >= levels[:, None]).mean(1) for seed in range(rows.shape[1])], axis=0)
    return float(levels[chance >= LUCK].max(initial=-np.inf)) if np.isfinite(rows).all() else float("nan")


def learned(trajectory: Trajectory, size: str, where: str) -> Claim:
    """Training loss against that of uniform guesses."""
    guess = np.log(trajectory.attrs["outputs"])
    # A scale that diverged is NaN, and the claim fails with it: the worst of the others is not the worst.
    final = trajectory["train_loss"].isel(time=-1).max("scale", skipna=False) / guess
    words = "The model learns: final training loss over that of uniform guesses"
    return check(words, paper=PAPER, where=where, size=size, values=final, relation="<=", threshold=0.9,
                 against="of uniform guesses it is 1 by definition")  # fmt: skip


def scale_claims(trajectory: Trajectory, size: str, where: str) -> list[Claim]:
    """The claims about one model at several scales of the initialisation."""
    judge = partial(check, paper=PAPER, where=where, size=size)
    end = trajectory["stable_rank"].isel(time=-1)
    low = growth(trajectory, "KQ")["low"]
    edges = end.sel(product="KQ").mean(("layer", "head")).sortby("scale")
    mixed = "scales in random order, luckiest 5 %"
    key, value = (scales_in_random_order(end.sel(product=product)) for product in ("KQ", "VO"))
    return [
        judge("Smaller initialisation, lower final rank of ΔKQ: Spearman's ρ over scales, mean over heads and layers",
              values=spearman(end.sel(product="KQ")), relation=">=", threshold=0.5, null=key[0], against=mixed),
        judge("The final stable rank of ΔKQ at the smallest scale over that at the largest, mean over heads and layers",
              values=edges.isel(scale=0) / edges.isel(scale=-1), relation="<=", threshold=1.0, null=key[1],
              against=mixed),
        judge("ΔKQ ends with low rank at every scale: stable rank over that of the initial product, worst layer",
              values=low.max(("scale", "layer"), skipna=False), relation="<=", threshold=0.25,
              null=diffusing(trajectory, "KQ")["low"].max(("scale", "layer")), against="weights that diffuse"),
        judge("Smaller initialisation, lower final rank of ΔVO: Spearman's ρ over scales, mean over heads and layers",
              values=spearman(end.sel(product="VO")), relation=">=", threshold=0.0, null=value[0], against=mixed),
        *spectrum_claims(trajectory, judge),
        *incremental_claims(trajectory, judge),
        learned(trajectory, size, where),
    ]  # fmt: skip


def scales_in_random_order(ranks: xr.DataArray) -> tuple[float, float]:
    """The worst ρ over seeds, and the worst ratio of the ends, that LUCK of random orders of the scales reach."""
    ranks = ranks.sortby("scale").transpose("scale", "seed", "layer", "head")
    rho = np.array([spearman(ranks.copy(data=ranks.values[order])) for order in _orders(ranks.sizes["scale"])])
    return _luckiest(rho), -_luckiest(-_ratios(ranks.mean(("layer", "head")).values))


def spearman(ranks: xr.DataArray) -> np.ndarray:
    """ρ between scale and rank for each head, then the mean over heads and layers: one number per seed."""
    ordered = ranks.sortby("scale").transpose("scale", "seed", "layer", "head").values
    return rank_correlation(np.arange(len(ordered)), ordered).mean((1, 2))
