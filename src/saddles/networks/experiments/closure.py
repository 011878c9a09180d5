"""Real heads along training: balance, memory of the start, linearity, the share outside the start's spans, rank.

A ViT and a GPT-2 over bytes, trained by Adam and by SGD. The same runs test the first step of Adam: its ΔKQ and their
stable rank follow from one gradient, exactly.

Thresholds, set before the runs:

- The first step of Adam is exact up to float32: 1 % of the stable rank.
- Gradient flow keeps C, so `memory` stays near 0 under SGD and not under Adam. SGD moves its heads less, so what is
  judged is memory over the relative change of the factors, at the end and in the median over heads: SGD's is at most
  a third of Adam's.
- A lazy head has linearity 0 and nothing outside its start's spans. Trained heads are to be more active than a change
  of the same entries in random order: median linearity at least 1.2 times that of the
  permuted change.
- Does the rank of ΔKQ fall before it rises, as seen in Adam runs of large models? Smallest stable rank over that of the
  first step at most 0.8, in the median over heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import figures, networks
from saddles.core.claim import Claim, check
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.runtime.packages import need_package

PAPER = "boix2023rank"
MODELS, OPTIMISERS = ("vit", "gpt2"), ("adam", "sgd")
AXES = ("time", "seed", "model", "optimiser", "layer", "head", "product")
MEASURES = ("balance", "memory", "linearity", "outside", "stable_rank", "factor_change")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A ViT and a GPT-2 of the same size."""

    images: Annotated[str, "images the ViT is trained on"]
    text: Annotated[str, "text the GPT-2 is trained on, byte by byte"]
    width: Annotated[int, "width of the embedding"]
    layers: Annotated[int, "number of blocks"]
    heads: Annotated[int, "heads per block"]
    batch: Annotated[int, "images, or blocks of text, per step"]
    steps: Annotated[int, "steps"]
    adam_rate: Annotated[float, "learning rate of Adam"]
    sgd_rate: Annotated[float, "learning rate of SGD"]
    looks: Annotated[int, "times at which the heads are measured, spaced geometrically", Within(2, LARGEST)]
    seeds: Annotated[int, "independent runs behind each claim"]


def run(settings: Settings, context: Context) -> Trajectory:
    """Both models with both optimisers, for every seed."""
    need_package("torch", "probe")
    need_package("transformers", "probe")
    seeds = context.seeds(settings.seeds)
    parts = [
        [
            [context.part(f"{seed}-{kind}-{name}", partial(_run, settings, seed, kind, name)) for name in OPTIMISERS]
            for kind in MODELS
        ]
        for seed in seeds
    ]
    whole = xr.combine_nested(parts, concat_dim=["seed", "model", "optimiser"], combine_attrs="drop", join="override")
    found = {}
    for name, variable in whole.data_vars.items():
        axes = tuple(axis for axis in AXES if axis in variable.dims)
        found[str(name)] = (axes, variable.transpose(*axes).values)
    coords = {"seed": seeds, "model": list(MODELS), "optimiser": list(OPTIMISERS), "product": ["KQ", "VO"]}
    return make_trajectory(found, whole["time"].values, unit="step", coords=coords, lab="networks", kind="recorded")


def _run(settings: Settings, seed: int, kind: str, optimiser: str) -> Trajectory:
    from saddles.networks import follow  # loads torch

    source = settings.images if kind == "vit" else settings.text
    model, feed = follow.make_model(
        kind,
        source,
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        batch=settings.batch,
        seed=seed,
    )
    start = follow.state_of(model)
    rate = settings.adam_rate if optimiser == "adam" else settings.sgd_rate
    predicted = networks.adam_start(model, follow.first_gradient(model, feed), rate=rate)
    rows: list[xr.Dataset] = []
    losses: list[float] = []
    looks = follow.spaced(settings.steps, settings.looks)

    def look(step: int, loss: float) -> None:
        rows.append(networks.closure(start, model))
        losses.append(loss)

    follow.follow(model, feed, follow.optimiser_of(optimiser, model, rate), settings.steps, looks, look, "closure")
    mixed = networks.closure(start_like := {name: part.numpy() for name, part in start.items()},
                             _mixed(start_like, follow.state_of(model), seed), _config(model))  # fmt: skip
    axes = ("time", "layer", "head", "product")
    values: dict[str, object] = {name: (axes, np.stack([row[name].values for row in rows])) for name in MEASURES}
    values |= {f"mixed_{name}": (axes[1:], mixed[name].values) for name in ("linearity", "outside")}
    values |= {"predicted_rank": (axes[1:], predicted["stable_rank"].values)}
    values |= {"gradient_rank": (axes[1:], predicted["gradient_stable_rank"].values), "loss": (("time",), losses)}
    return make_trajectory(values, looks, unit="step", coords={"product": ["KQ", "VO"]})  # type: ignore[arg-type]


def _config(model: object) -> dict[str, object]:
    from saddles.probe.weights.live_model import heads

    layout = heads(model)  # pyright: ignore[reportArgumentType]  (a module of torch)
    return {"num_attention_heads": len(layout.layers()[0]), "n_head": len(layout.layers()[0])}


def _mixed(start: dict[str, np.ndarray], end: Mapping[str, object], seed: int) -> dict[str, np.ndarray]:
    """The start plus a change whose entries, tensor by tensor, are those of the training in random order."""
    draw = np.random.default_rng([seed, 34])
    found = {}
    for name, before in start.items():
        change = np.asarray(end[name]) - before
        found[name] = before + draw.permutation(change.reshape(-1)).reshape(before.shape)
    return found


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the first step, what is remembered, and how active the heads are."""
    judge = partial(check, paper=PAPER, size=size)
    heads = ["layer", "head"]
    first, last = trajectory.isel(time=0), trajectory.isel(time=-1)
    adam = {"optimiser": "adam"}
    runs = ["seed", "model"]
    predicted = abs(first["predicted_rank"] / first["stable_rank"] - 1).sel(adam).max([*heads, "product"])
    plain = abs(first["gradient_rank"] / first["stable_rank"] - 1).sel(adam).max([*heads, "product"])
    memory = (last["memory"] / last["factor_change"]).median(heads).max("product")
    ratio = memory.sel(optimiser="sgd") / memory.sel(adam)
    active = (last["linearity"].median(heads) / last["mixed_linearity"].median(heads)).sel(adam | {"product": "KQ"})
    ranks = trajectory["stable_rank"].sel(adam | {"product": "KQ"}).median(heads)
    fall = ranks.min("time") / ranks.isel(time=0)
    still = trajectory["stable_rank"].sel(optimiser="sgd", product="KQ").median(heads)
    return [
        judge(
            "The stable rank of every head's first Adam step follows from one gradient: largest relative error",
            where="first step of Adam",
            values=predicted.transpose(*runs).values,
            relation="<=",
            threshold=0.01,
            null=plain.transpose(*runs).values,
            against="the rank of a step of gradient descent",
        ),
        judge(
            "SGD remembers the start's C and Adam does not: `memory` over the change of the factors, SGD's over Adam's",
            where="gradient flow of a head's products",
            values=ratio.transpose(*runs).values,
            relation="<=",
            threshold=1 / 3,
            against="no null: the ratio compares the two, and is 1 for two runs of one optimiser",
        ),
        judge(
            "Adam's heads are more active than a change of the same entries in random order: median linearity over its",
            where="closure of a head",
            values=active.transpose(*runs).values,
            relation=">=",
            threshold=1.2,
            against="the reference is the null: entries of the change in random order give 1",
        ),
        judge(
            "The rank of ΔKQ falls before it rises under Adam: smallest median stable rank over that of the first step",
            where="ranks along training",
            values=fall.transpose(*runs).values,
            relation="<=",
            threshold=0.8,
            null=(still.min("time") / still.isel(time=0)).transpose(*runs).values,
            against="SGD, whose first step has no signs",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.networks.closure(trajectory)


EXPERIMENT = Experiment(
    "networks/closure",
    "Real heads along training: balance, memory of the start, linearity, and the first step of Adam",
    PAPER,
    sizes={
        "tiny": Size(10, Settings(images="digits", text="made", width=16, layers=1, heads=2, batch=16, steps=6,
                                  adam_rate=1e-3, sgd_rate=0.1, looks=3, seeds=1)),
        "laptop": Size(11, Settings(images="digits", text="python", width=64, layers=2, heads=4, batch=8, steps=200,
                                    adam_rate=1e-3, sgd_rate=0.1, looks=10, seeds=2)),
        "gpu": Size(500, Settings(images="cifar10", text="enwik8", width=256, layers=4, heads=8, batch=128, steps=4000,
                                  adam_rate=5e-4, sgd_rate=0.1, looks=20, seeds=3)),
    },
    needs=("images", "text"),
    run=run,
    claims=claims,
    figure=figure,
)  # fmt: skip
