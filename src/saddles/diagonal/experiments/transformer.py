"""The transformer of Example 3.2 with several heads: a tie at the start, and what breaks it.

At θ = 0 all heads of a layer attend uniformly, so their forces on W_V W_Oᵀ are equal: Assumption 4.3 fails at
stage 0 for every H ≥ 2, which the paper's corollary overlooks.

Claims and their thresholds:

- *The tie.* Algorithm 1 finds at least H coordinates with the same Δ at the first stage.
- *Together.* In the flow the tied heads of a layer rise together at every α: their times differ by no more than
  their starts allow, 2 max|log p₀, q₀|/log(1/α) relative. (Layers are tied at θ = 0 too, but only to first order:
  one layer's heads may stay behind, all of them.)
- *No strict minimum.* The loss sees heads of a layer through their sum, a flat direction; across two tied layers
  the symmetric path may even end at a saddle. The smallest curvature (Assumption 4.4) is at most 1e-8 of the largest.
- *Broken symmetry* (an initial exponent for each head): in the flow one coordinate rises at each qualifying stage, so
  at most one head's rank grows. The null is the symmetric start, in which tied coordinates rise together.
- *The flow then agrees* with the predicted coordinate and sign at every qualifying stage, whose margin exceeds what
  the start can reverse (as in figure-2), at the smallest α: Theorem 4.1 is about the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import diagonal, figures, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import LARGEST, Context, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.diagonal.experiments.agreement import (
    FACTS,
    PAPER,
    agreement_with_another_teacher,
    at_scale,
    compare_stages,
    freedom,
    log_alpha,
)
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """Settings of transformer."""

    dim: Annotated[int, "dimension of a token"]
    samples: Annotated[int, "sequences in the data"]
    tokens: Annotated[int, "tokens in a sequence"]
    stages: Annotated[int, "stages that are compared"]
    decades: Annotated[tuple[int, ...], "initial scales, α = 10^−decades; the last is drawn"]
    seeds: Annotated[int, "teachers"]
    layers: Annotated[int, "layers"] = 2
    heads: Annotated[int, "heads in a layer"] = 2
    feedforward: Annotated[int, "width of the frozen feed-forward part; 0 leaves it out"] = 0
    spread: Annotated[
        float, "difference of the initial exponents of neighbouring heads, which breaks the tie", Within(0, LARGEST)
    ] = 0.15
    points: Annotated[int, "instants on a curve"] = 301


def run(settings: Settings, context: Context) -> Trajectory:
    """Symmetric and broken transformers, predicted and followed."""
    seeds = context.seeds(settings.seeds)
    layers, heads = settings.layers, settings.heads
    alike = diagonal.DiagonalTransformer(settings.dim, layers, heads, settings.feedforward)
    exponents = 1 + settings.spread * np.arange(layers * heads).reshape(layers, heads)
    broken = diagonal.DiagonalTransformer(settings.dim, layers, heads, settings.feedforward, exponents)
    ties, orders, untied = [], [], []
    with bar("diagonal/transformer", 2 * len(seeds)) as progress:
        for seed in seeds:
            task = diagonal.TeacherStudent(alike, settings.samples, settings.tokens, seed)
            ties.append(context.part(f"tie-{seed}", partial(_tie, alike, task, seed, settings.decades)))
            progress.advance()
            task = diagonal.TeacherStudent(broken, settings.samples, settings.tokens, seed)
            make = partial(compare_stages, broken, task, seed, settings.stages, settings.decades)
            orders.append(context.part(f"order-{seed}", make))
            untied.append(context.part(f"untied-{seed}", partial(_first_stage, broken, task)))
            progress.advance()
    whole = context.part("curves", partial(_curves, alike, broken, settings, seeds[0]))
    for name in ("tie", "curvature"):
        whole[f"broken_{name}"] = (("seed",), np.stack([one[name].values[0] for one in untied]))
    for name in ("tie", "apart", "curvature", "risen_together", "allowed"):
        whole[name] = (("seed", "decade"), np.stack([tie[name].isel(time=0).values for tie in ties]))
    for name in FACTS:
        whole[name] = (
            ("seed", "decade", "order_stage"), np.stack([order[name].isel(time=0).values for order in orders]),
        )  # fmt: skip
    whole.attrs |= {"heads": heads, "spread": settings.spread}
    return whole.assign_coords(seed=seeds, decade=list(settings.decades))


def _first_stage(model: "diagonal.DiagonalTransformer", task: "diagonal.TeacherStudent") -> Trajectory:
    """How many coordinates tie at the first stage, and the ratio of curvatures on the support there."""
    predicted = predict(model, task, diagonal.Incremental(1))
    flat = diagonal.check_assumptions(model, task, predicted, trials=0).about("4.4").checks[0].value
    rows = {"tie": float(predicted.sizes["stage"]), "curvature": float(flat)}
    return make_trajectory({name: (("time",), [value]) for name, value in rows.items()}, [0.0], unit="end of the run")


def _tie(
    model: "diagonal.DiagonalTransformer", task: "diagonal.TeacherStudent", seed: int, decades: Sequence[int]
) -> Trajectory:
    """How many coordinates tie at the first stage, how flat the loss is there, and how far apart they rise."""
    predicted = predict(model, task, diagonal.Incremental(1))
    tied = predicted["stage_coordinate"].values
    flat = diagonal.check_assumptions(model, task, predicted, trials=0).about("4.4").checks[0].value
    # A little beyond the tie, so that heads that rise late are still seen.
    end = 1.1 * float(predicted["stage_time"][0])
    apart, risen, allowed = [], [], []
    for decade in decades:
        flow = simulate(at_scale(model, decade), task, diagonal.Flow(until=end), seed=seed)
        seen = measures.stages(flow)
        spread = max(_apart(seen, group) for group in _by_layer(model, tied))
        allowed.append(freedom(model, seed) / -log_alpha(decade))
        apart.append(spread / allowed[-1])
        risen.append(float(np.isin(seen["stage_coordinate"].values, tied).sum()))
    rows = {"tie": np.full(len(decades), len(tied)), "apart": np.array(apart), "risen_together": np.array(risen),
            "curvature": np.full(len(decades), flat), "allowed": np.array(allowed)}  # fmt: skip
    return make_trajectory(
        {name: (("time", "decade"), values[None]) for name, values in rows.items()}, [0.0], unit="end of the run"
    )


def _by_layer(model: "diagonal.DiagonalTransformer", tied: np.ndarray) -> list[np.ndarray]:
    layer = tied // (2 * model.dim * model.heads)
    return [tied[layer == one] for one in np.unique(layer)]


def _apart(seen: xr.Dataset, group: np.ndarray) -> float:
    """Relative spread of the first activations of a layer's tied heads; 0 where none, ∞ where only some rose."""
    coordinate = seen["stage_coordinate"].values
    times = [seen["stage_time"].values[coordinate == one][0] for one in group if (coordinate == one).any()]
    if not times:
        return 0.0
    return float(np.ptp(times) / np.mean(times)) if len(times) == len(group) else np.inf


def _curves(
    alike: "diagonal.DiagonalTransformer", broken: "diagonal.DiagonalTransformer", settings: Settings, seed: int
) -> Trajectory:
    variables: dict[str, Variable] = {}
    clock = np.linspace(0.0, 1.0, settings.points)
    for name, model in (("symmetric", alike), ("broken", broken)):
        task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
        predicted = predict(model, task, diagonal.Incremental(settings.stages + 1))
        end = float(np.unique(predicted["stage_time"].values)[-2:].mean())  # between the last two stages
        flow = simulate(at_scale(model, settings.decades[-1]), task, diagonal.Flow(), times=clock * end, seed=seed)
        variables[f"{name}_beta"] = (("time", "coordinate"), flow["beta"].values)
        variables[f"{name}_loss"] = (("time",), flow["loss"].values)
        variables[f"{name}_end"] = ((), end)
        variables[f"{name}_stage_time"] = (("stage",), predicted["stage_time"].values[: settings.stages])
    return make_trajectory(
        variables, clock, unit="rescaled time over `symmetric_end` or `broken_end`",
        coords={"family": ("coordinate", np.array(alike.families))}, lab="diagonal", model=alike,
        kind="simulated and predicted",
    )  # fmt: skip


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the tie and what breaks it."""
    heads = int(trajectory.attrs["heads"])
    order = trajectory.isel(decade=-1)
    agrees = order["agrees"].values == 1
    firm = (order["same_before"].values == 1) & (order["margin"].values > 1)
    risen = [row[sure & hit].max() for row, sure, hit in zip(order["risen"].values, firm, agrees, strict=True)
             if (sure & hit).any()]  # fmt: skip
    rates = [np.mean(agrees[i][firm[i]]) for i in range(len(agrees)) if firm[i].any()]
    # Times are proportional to exponents: two heads at 1 and 1 + s rise s/(1 + s/2) of their mean time apart.
    parted = float(trajectory.attrs["spread"]) / (1 + float(trajectory.attrs["spread"]) / 2)
    judge = partial(check, paper=PAPER, where="Corollary of Theorem 4.1, Example 3.2", size=size)
    return [
        judge(
            "Symmetric start: the first stage is a tie of at least one coordinate a head, so Assumption 4.3 "
            "fails: tied coordinates over heads",
            values=trajectory["tie"].isel(decade=0).values / heads,
            relation=">=",
            threshold=1.0,
            null=trajectory["broken_tie"].values / heads,
            against="broken symmetry",
        ),
        judge(
            "The tied heads of a layer rise together: spread of their times over 2 max|log p₀, q₀|/log(1/α)",
            values=trajectory["apart"].max("decade").values,
            relation="<=",
            threshold=1.0,
            null=(parted / trajectory["allowed"]).max("decade").values,
            against="neighbouring heads of the broken symmetry, as predicted",
        ),
        judge(
            "Assumption 4.4 fails at the tie: smallest over largest curvature on the support",
            values=trajectory["curvature"].isel(decade=0).values,
            relation="<=",
            threshold=1e-8,
            null=trajectory["broken_curvature"].values,
            against="broken symmetry",
        ),
        judge(
            "Broken symmetry: coordinates of the flow that become active in one stage, at most",
            values=risen,
            relation="<=",
            threshold=1.0,
            null=order["risen_together"].values,
            against="symmetric start",
        ),
        judge(
            f"Broken symmetry: at the smallest α the flow's stages are as predicted ({int((agrees & firm).sum())} of "
            f"{int(firm.sum())} qualifying stages of {firm.size}): share",
            values=rates,
            relation=">=",
            threshold=1.0,
            null=agreement_with_another_teacher(order, firm),
            against="the prediction for another teacher",
        ),
    ]


def figure(trajectory: Trajectory) -> "Figure":
    """Weights with a symmetric and with a broken start."""
    return figures.diagonal.transformer(trajectory)


_PAPER = Settings(dim=12, samples=300, tokens=10, stages=10, decades=(30, 1300, 10000), seeds=5)

TRANSFORMER = Experiment(
    name="diagonal/transformer",
    title="Two layers of two heads: tied by symmetry, one head at a time when it is broken",
    paper=PAPER,
    sizes={
        "tiny": Size(
            5, Settings(dim=2, samples=30, tokens=3, stages=2, decades=(30,), seeds=1, points=61, feedforward=2)
        ),
        "laptop": Size(7, Settings(dim=4, samples=60, tokens=5, stages=4, decades=(30, 1300), seeds=2, feedforward=4)),
        "gpu": Size(80, _PAPER),
        "paper": Size(600, _PAPER),
    },
    run=run,
    claims=claims,
    figure=figure,
)
