"""What linearity tells about scaling and adding fine-tunes.

A ViT learns images, and is tuned to two other domains, the negatives and the transposed images, at several rates and
for several lengths. Each pair of changes Δ₁, Δ₂ is added, θ₀ + Δ₁ + Δ₂, and each change is halved, θ₀ + Δ/2.

- *Adding.* `kept` is what the merged model keeps of both gains, Σ (base − merged)/Σ (base − tuned), the sums over the
  losses on both domains.
- *Halving.* Half a change should have half the effect. Where f is of second order in the change, f(½) misses half of
  the way by ¼R, R the remainder, so relative to half of the effect by **e/2**.

Thresholds, set before the runs: with GPT-2 small `kept` fell with e of the joint change, ρ = −0.63 and −0.90 over nine
pairs, so Spearman's ρ at most −0.5 in every seed. For halving: the median |log(seen/(e/2))| over changes with e up to
½, where second order can be expected to lead, at most 0.4 (a factor of 1.5).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.lines import rank_correlation
from saddles.runtime.packages import need_package

if TYPE_CHECKING:
    from torch import Tensor

    from saddles.networks.tunes import Tunes

PAPER = "tu2024mixed"
AXES = ("time", "seed", "rate")
DOMAINS = ("negative", "transposed")
SECOND_ORDER = 0.5
"""Changes up to this e are judged by the law of second order."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A ViT and its fine-tunes."""

    source: Annotated[str, "images to train on"]
    width: Annotated[int, "width of the embedding"]
    layers: Annotated[int, "number of blocks"]
    heads: Annotated[int, "heads per block"]
    batch: Annotated[int, "images per step"]
    first: Annotated[int, "steps of the first training, at the largest rate"]
    rates: Annotated[tuple[float, ...], "learning rates of the fine-tunes, Adam"]
    lengths: Annotated[tuple[int, ...], "steps of the fine-tunes"]
    watched: Annotated[int, "test images of each domain on which outputs are compared"]
    seeds: Annotated[int, "independent runs behind each claim"]


def run(settings: Settings, context: Context) -> Trajectory:
    """One first training, and all fine-tunes from it, for every seed."""
    need_package("torch", "probe")
    seeds = context.seeds(settings.seeds)
    parts = [context.part(f"{seed}", partial(_run, settings, seed)) for seed in seeds]
    found = {
        str(name): ((*AXES, "domain")[: variable.ndim + 1], np.stack([part[name].values for part in parts], 1))
        for name, variable in parts[0].data_vars.items()
    }
    coords = {"seed": seeds, "rate": list(settings.rates), "domain": list(DOMAINS)}
    return make_trajectory(found, settings.lengths, unit="step", coords=coords, lab="networks", kind="recorded")


def _run(settings: Settings, seed: int) -> Trajectory:
    from saddles.networks.tunes import Tunes  # loads torch

    tunes = Tunes.of(
        settings.source, DOMAINS, width=settings.width, layers=settings.layers, heads=settings.heads,
        batch=settings.batch, steps=settings.first, rate=max(settings.rates), seed=seed,
    )  # fmt: skip
    rows = {}
    for rate in settings.rates:
        ends = [tunes.tuned(domain, rate, settings.lengths) for domain in DOMAINS]
        for at, length in enumerate(settings.lengths):
            rows[length, rate] = _pair(tunes, [end[at] for end in ends], settings.watched)
    names = next(iter(rows.values()))
    values = {
        name: (("time", "rate", "domain")[: 2 + np.ndim(names[name])],
               np.array([[rows[length, rate][name] for rate in settings.rates] for length in settings.lengths]))
        for name in names
    }  # fmt: skip
    return make_trajectory(values, settings.lengths, unit="step", coords={"domain": list(DOMAINS)})


def _pair(tunes: "Tunes", ends: "list[dict[str, Tensor]]", watched: int) -> dict[str, float | list[float]]:
    """Numbers of two changes, alone and together."""
    batch = tunes.watched(watched)
    joint, halves = tunes.sum_of(ends), [tunes.sum_of([end], 0.5) for end in ends]
    base, alone, merged = tunes.losses(tunes.start), [tunes.losses(end) for end in ends], tunes.losses(joint)
    own = [alone[at][at] for at in range(len(ends))]
    return {
        "linearity": [networks.linearity(tunes.model, tunes.start, end, batch) for end in ends],
        "joint_linearity": networks.linearity(tunes.model, tunes.start, joint, batch),
        "half_missed": [tunes.missed(end, half, batch) for end, half in zip(ends, halves, strict=True)],
        "size": tunes.size(joint),
        "kept": (sum(base) - sum(merged)) / (sum(base) - sum(own)),
        "base_loss": base,
        "tuned_loss": own,
        "merged_loss": merged,
    }


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge what linearity tells about adding and halving."""
    judge = partial(check, paper=PAPER, size=size)
    kept, joint = (trajectory[name].transpose("seed", ...).values for name in ("kept", "joint_linearity"))
    e, missed = (trajectory[name].transpose("seed", ...).values for name in ("linearity", "half_missed"))
    draw = np.random.default_rng(0)
    pairs = [(row.ravel(), other.ravel()) for row, other in zip(kept, joint, strict=True)]
    halves = [(seen.ravel(), own.ravel()) for seen, own in zip(missed, e, strict=True)]
    return [
        judge(
            "What a merge keeps of both gains falls with e of the joint change: Spearman's ρ over pairs",
            where="scaling and merging of fine-tunes",
            values=[rank_correlation(row, other) for row, other in pairs],
            relation="<=",
            threshold=-0.5,
            null=[rank_correlation(row, draw.permutation(other)) for row, other in pairs],
            against="e in random order",
        ),
        judge(
            "Half a change misses half of its effect by e/2: median |log| of what is seen over it, for e up to ½",
            where="scaling and merging of fine-tunes",
            values=[off(seen, own) for seen, own in halves],
            relation="<=",
            threshold=0.4,
            null=[off(seen, own, draw) for seen, own in halves],
            against="e in random order",
        ),
    ]


def off(seen: np.ndarray, linearity: np.ndarray, mixed: np.random.Generator | None = None) -> float:
    """Median |log| of what half a change misses over e/2, where e ≤ ½; e in random order where `mixed` is given."""
    there = linearity <= SECOND_ORDER
    expected = linearity[there] / 2
    expected = expected if mixed is None else mixed.permutation(expected)
    return float(np.median(abs(np.log(seen[there] / expected)))) if there.any() else float("nan")


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.fine_tune(trajectory)


EXPERIMENT = Experiment(
    "networks/fine-tune",
    "Scaling and adding fine-tunes of a ViT: what linearity tells",
    PAPER,
    sizes={
        "tiny": Size(10, Settings(source="digits", width=8, layers=1, heads=2, batch=16, first=10, rates=(1e-3, 4e-3),
                                  lengths=(2, 4), watched=8, seeds=1)),
        "laptop": Size(6, Settings(source="digits", width=32, layers=2, heads=4, batch=16, first=200,
                                    rates=(1e-4, 4e-4, 1.6e-3), lengths=(8, 24, 72), watched=16, seeds=2)),
        "gpu": Size(300, Settings(source="cifar10", width=256, layers=4, heads=8, batch=128, first=8000,
                                  rates=(5e-5, 2e-4, 8e-4), lengths=(25, 100, 400, 1600), watched=64, seeds=3)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
