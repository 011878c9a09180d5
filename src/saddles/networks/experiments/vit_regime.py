"""A small ViT over width and initial scale: lazy or active, the rank of what its heads learn, and how well it tests.

`make_vit` with all it scales, attention, feed-forward parts and head, at `scale` times PyTorch's default (entries of
variance a²/3w in a w × w matrix), squared loss on a few images, trained until the loss is a given share of the first
one: so e compares networks that have learned equally much. `saddles.networks.vits` says what is trained and what the
loss sees, `vit_grid` how. Heads have a fixed width, so that there are more of them in a wider network, as in real ViTs.

What to expect. Normalisations make f of degree 0 in the blocks' weights together, and of degree 1 in the head's, where
the tokens' own part of the residual stream is small. So every matrix has a gradient of size a⁰√w and moves by about
w^(−½), against weights that act with a size of a: the features turn by 1/(a√w), and so does what is beyond linear.
What decides is a√w, and the border e = ½ lies at a ~ w^(−½); if the scale alone decided, as σ²w does for two linear
layers, it would lie at one a. Limits of the estimate: attention's logits grow as a² and saturate, and tokens have a
size of their own at small a.

Thresholds. The seeds 901 to 906 (digits) were looked at while this was built; none of them is judged. There the border
had a slope of about −0.35. Set after that and before any judged seed:

- the slope of log a over log w at the border within ¼ of −½, half way to that of the scale alone;
- e follows a√w over all cells of the grid, rank correlation −0.9 or below;
- what heads learn in the most active third of the cells has at most 0.8 of the stable rank of the laziest third;
- where e ≤ ¼ the linear part alone gives the same class as the network to nine of ten unseen images;
- at equal loss neither end tests best: the middle third of the scales is at least as good as the better of the others.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures
from saddles.core.claim import Claim, check
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.measures.lines import rank_correlation
from saddles.networks.phases import crossing, slope_of
from saddles.runtime.packages import need_package

PAPER = "tu2024mixed"
AXES = ("seed", "width", "scale")
LAZY, ACTIVE = 0.25, 0.75
"""e up to which the linear part is to tell the class, and from which it is not expected to."""
SHUFFLES = 100
"""Random orders over which a null is averaged."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """ViTs of several widths and initial scales on one task."""

    source: Annotated[str, "images to train on"]
    widths: Annotated[tuple[int, ...], "widths of the embedding"]
    points: Annotated[int, "initial scales, spaced geometrically", Within(3, LARGEST)]
    layers: Annotated[int, "number of blocks"]
    head: Annotated[int, "width of a head"]
    patches: Annotated[int, "patches along a side of an image"]
    samples: Annotated[int, "training images", Within(2, LARGEST)]
    tests: Annotated[int, "unseen images"]
    steps: Annotated[int, "most steps of descent"]
    seeds: Annotated[int, "independent starts and draws of images"]
    until: Annotated[float, "loss at which training ends, relative to the first one"] = 0.2
    lowest: Annotated[float, "smallest scale, over PyTorch's default"] = 0.25
    highest: Annotated[float, "largest scale"] = 4.0


def run(settings: Settings, context: Context) -> Trajectory:
    """All scales of a seed and width together."""
    need_package("torch", "probe")
    scales = np.geomspace(settings.lowest, settings.highest, settings.points)
    seeds = context.seeds(settings.seeds)
    parts = [
        [context.part(f"{seed}-{width}", partial(_run, settings, seed, width, scales)) for width in settings.widths]
        for seed in seeds
    ]
    names = [str(name) for name in parts[0][0].data_vars]
    values = {name: np.stack([np.stack([part[name].values for part in row]) for row in parts]) for name in names}
    border = np.apply_along_axis(crossing, -1, values["linearity"], np.log(scales))
    slopes = np.apply_along_axis(slope_of, -1, border, np.log(settings.widths))
    stacked = {name: (AXES, found) for name, found in values.items() if name != "linearity"}
    # e is 0 by its limit where nothing has moved yet.
    e = (("time", *AXES), np.stack([np.zeros_like(values["linearity"]), values["linearity"]]))
    whole = make_trajectory(
        {"linearity": e, **stacked, "border": (AXES[:2], np.exp(border)), "slope": (AXES[:1], slopes)},
        [0, settings.steps],
        unit="step",
        coords={"seed": seeds, "width": list(settings.widths), "scale": scales},
        lab="networks",
        kind="simulated",
    )
    whole.attrs |= {"source": settings.source, "until": settings.until, "samples": settings.samples}
    return whole


def _run(settings: Settings, seed: int, width: int, scales: np.ndarray) -> Trajectory:
    from saddles.networks import vit_grid, vits  # loads torch

    pictures = vits.Pictures.of(settings.source, samples=settings.samples, tests=settings.tests, seed=seed)
    some = vits.ViTs.of(
        pictures,
        width,
        scales,
        layers=settings.layers,
        head=settings.head,
        patches=settings.patches,
        seed=seed,
    )
    ends, losses, taken = vit_grid.trained(some, until=settings.until, steps=settings.steps)
    rows = vit_grid.measured(some, ends) | {"loss": losses, "steps": taken.astype(float)}
    return make_trajectory({name: (("scale",), row) for name, row in rows.items()}, [0, settings.steps], unit="step")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the border, what decides, and what lazy and active networks are like."""
    judge = partial(check, paper=PAPER, size=size)
    last = trajectory.isel(time=-1).transpose("seed", "width", "scale", ...)
    e, ranks, same, right = (last[name].values for name in ("linearity", "stable_rank", "agreement", "test_accuracy"))
    widths = last["width"].values
    reach = np.log(last["scale"].values)[None, :] + 0.5 * np.log(widths)[:, None]
    draw = np.random.default_rng(1)
    border = np.log(last["border"].values)
    others = [slope_of(np.roll(row, 1), np.log(widths)) for row in border]
    mixed = [[thirds(one, draw.permutation(one.size)) for one in ranks] for _ in range(SHUFFLES)]
    dealt = [[middle(draw.permuted(one, axis=1)) for one in right] for _ in range(SHUFFLES)]
    return [
        judge(
            "The border e = ½ of ViTs lies at a scale of about w^(−½): distance of its slope from −½",
            where="Figure 2, for a ViT",
            values=abs(last["slope"].values + 0.5),
            relation="<=",
            threshold=0.25,
            null=abs(np.array(others) + 0.5),
            against="borders of other widths; 0.5 if the scale alone decided",
        ),
        judge(
            "e follows a√w over widths and scales: rank correlation",
            where="section 3, for a ViT",
            values=[rank_correlation(one.ravel(), reach.ravel()) for one in e],
            relation="<=",
            threshold=-0.9,
            null=[rank_correlation(draw.permutation(one.ravel()), reach.ravel()) for one in e],
            against="cells in random order",
        ),
        judge(
            "Active networks learn heads of lower rank: stable rank of ΔKQ, most active third over laziest",
            where="low rank of the active regime",
            values=[thirds(one, np.argsort(order.ravel())) for one, order in zip(ranks, e, strict=True)],
            relation="<=",
            threshold=0.8,
            null=np.mean(mixed, axis=0),
            against=f"random thirds, the mean of {SHUFFLES}",
        ),
        judge(
            "Where e ≤ ¼ the linear part alone tells the class of unseen images: share on which both agree",
            where="lazy regime",
            values=[_mean(one[order <= LAZY]) for one, order in zip(same, e, strict=True)],
            relation=">=",
            threshold=0.9,
            null=[_mean(one[order >= ACTIVE]) for one, order in zip(same, e, strict=True)],
            against="networks with e ≥ ¾",
        ),
        judge(
            "At equal loss neither end tests best: accuracy, middle third of scales over the better of the others",
            where="Figure 2, for a ViT",
            values=[middle(one) for one in right],
            relation=">=",
            threshold=1.0,
            null=np.mean(dealt, axis=0),
            against=f"scales in random order, the mean of {SHUFFLES}",
        ),
    ]


def thirds(values: np.ndarray, order: np.ndarray) -> float:
    """The mean of the last third of the values in this order over that of the first third."""
    row, count = values.ravel()[order], max(1, values.size // 3)
    return float(row[-count:].mean() / row[:count].mean())


def middle(values: np.ndarray) -> float:
    """The mean of the middle third of the columns over the larger mean of the two others."""
    left, centre, right = (part.mean() for part in np.array_split(values, 3, axis=1))
    return float(centre / max(left, right))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.vit_regime(trajectory)


EXPERIMENT = Experiment(
    "networks/vit-regime",
    "A small ViT over width and initial scale: lazy or active",
    PAPER,
    sizes={
        "tiny": Size(6, Settings(source="digits", widths=(8, 16, 24), points=4, layers=1, head=4, patches=2, samples=20,
                                 tests=30, steps=12, seeds=1)),
        "laptop": Size(33, Settings(source="digits", widths=(32, 64, 128), points=9, layers=2, head=8, patches=2,
                                    samples=100, tests=297, steps=400, seeds=2)),
        "gpu": Size(180, Settings(source="cifar10", widths=(64, 128, 256, 512), points=9, layers=2, head=16, patches=4,
                                  samples=256, tests=2000, steps=1000, seeds=3, until=0.3)),
    },
    needs=("source",),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
