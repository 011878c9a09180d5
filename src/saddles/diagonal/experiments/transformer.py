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
- *Broken symmetry* (an initial exponent for each head): one coordinate a stage, so at most one head's rank grows.
- *The flow then agrees* with the predicted coordinate and sign at every stage whose margin exceeds what the
  start can reverse (as in figure-2).
"""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.assumptions import curvature
from saddles.diagonal.experiments.agreement import FACTS, compare_stages, freedom, log_alpha
from saddles.diagonal.method import Flow
from saddles.diagonal.model import DiagonalTransformer
from saddles.diagonal.risk import risk_of
from saddles.diagonal.task import TeacherStudent
from saddles.diagonal.theory import Incremental
from saddles.figures.diagonal import transformer as figure
from saddles.measures.activations import stages
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]

PAPER = "boix2023rank"


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Symmetric and broken transformers, predicted and followed."""
    seeds = context.seeds(settings["seeds"])
    layers, heads = settings["layers"], settings["heads"]
    alike = DiagonalTransformer(settings["dim"], layers, heads, settings["feedforward"])
    exponents = 1 + settings["spread"] * np.arange(layers * heads).reshape(layers, heads)
    broken = DiagonalTransformer(settings["dim"], layers, heads, settings["feedforward"], exponents)
    ties, orders = [], []
    with bar("diagonal/transformer", 2 * len(seeds)) as progress:
        for seed in seeds:
            task = TeacherStudent(alike, settings["samples"], settings["tokens"], seed)
            ties.append(context.part(f"tie-{seed}", partial(_tie, alike, task, seed, settings["decades"])))
            progress.advance()
            task = TeacherStudent(broken, settings["samples"], settings["tokens"], seed)
            make = partial(_order, broken, task, seed, settings["stages"], settings["decades"])
            orders.append(context.part(f"order-{seed}", make))
            progress.advance()
    whole = context.part("curves", partial(_curves, alike, broken, settings, seeds[0]))
    for name in ("tie", "apart", "curvature"):
        whole[name] = (("seed", "decade"), np.stack([tie[name].isel(time=0).values for tie in ties]))
    whole["broken_tie"] = (("seed",), [float(order["tie"]) for order in orders])
    for name in FACTS:
        whole[name] = (
            ("seed", "decade", "order_stage"), np.stack([order[name].isel(time=0).values for order in orders]),
        )  # fmt: skip
    whole.attrs["heads"] = heads
    return whole.assign_coords(seed=seeds, decade=settings["decades"])


def _tie(model: DiagonalTransformer, task: TeacherStudent, seed: int, decades: list[int]) -> Trajectory:
    foreseen = predict(model, task, Incremental(1), seed=seed)
    tied = foreseen["stage_coordinate"].values
    flat = curvature(risk_of(model, task), foreseen["stage_beta"].values[0])
    apart = []
    for decade in decades:
        end = 1.1 * float(foreseen["stage_time"][0])
        seen = stages(simulate(model, task, Flow(log_alpha(decade), until=end), seed=seed))
        spread = max(_apart(seen, group) for group in _by_layer(model, tied))
        apart.append(spread / (freedom(model, seed) / -log_alpha(decade)))
    rows = {"tie": np.full(len(decades), len(tied)), "apart": np.array(apart), "curvature": np.full(len(decades), flat)}
    return make_trajectory(
        {name: (("time", "decade"), values[None]) for name, values in rows.items()}, [0.0], unit="end of the run"
    )


def _by_layer(model: DiagonalTransformer, tied: np.ndarray) -> list[np.ndarray]:
    layer = tied // (2 * model.dim * model.heads)
    return [tied[layer == one] for one in np.unique(layer)]


def _apart(seen: xr.Dataset, group: np.ndarray) -> float:
    """Relative spread of the first activations of a layer's tied heads; 0 where none, ∞ where only some rose."""
    coordinate = seen["stage_coordinate"].values
    times = [seen["stage_time"].values[coordinate == one][0] for one in group if (coordinate == one).any()]
    if not times:
        return 0.0
    return float(np.ptp(times) / np.mean(times)) if len(times) == len(group) else np.inf


def _order(model: DiagonalTransformer, task: TeacherStudent, seed: int, count: int, decades: list[int]) -> Trajectory:
    found = compare_stages(model, task, seed, count, decades)
    found["tie"] = ((), float(predict(model, task, Incremental(count), seed=seed)["stage_tie"].max()))
    return found


def _curves(alike: Any, broken: Any, settings: dict[str, Any], seed: int) -> Trajectory:
    scale = log_alpha(settings["decades"][-1])
    variables: dict[str, Any] = {}
    clock = np.linspace(0.0, 1.0, settings["points"])
    for name, model in (("symmetric", alike), ("broken", broken)):
        task = TeacherStudent(model, settings["samples"], settings["tokens"], seed)
        foreseen = predict(model, task, Incremental(settings["stages"] + 1), seed=seed)
        edges = np.unique(foreseen["stage_time"].values)
        end = float(edges[-2:].mean())
        flow = simulate(model, task, Flow(scale), times=clock * end, seed=seed)
        variables[f"{name}_beta"] = (("time", "coordinate"), flow["beta"].values)
        variables[f"{name}_loss"] = (("time",), flow["loss"].values)
        variables[f"{name}_end"] = ((), end)
        variables[f"{name}_stage_time"] = (("stage",), foreseen["stage_time"].values[: settings["stages"]])
    return make_trajectory(
        variables, clock, unit="rescaled time over `symmetric_end` or `broken_end`",
        coords={"family": ("coordinate", np.array(alike.families))}, lab="diagonal", model=alike,
        kind="simulated and predicted",
    )  # fmt: skip


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the tie and what breaks it."""
    heads = int(trajectory.attrs["heads"])
    agrees = trajectory["agrees"].values == 1
    firm = (trajectory["same_before"].values == 1) & (trajectory["margin"].values > 1)
    rates = [np.mean(agrees[i][firm[i]]) for i in range(len(agrees)) if firm[i].any()]
    judge = partial(check, paper=PAPER, where="Corollary of Theorem 4.1, Example 3.2", size=size)
    return [
        judge(
            "Symmetric start: the first stage is a tie of at least one coordinate a head, so Assumption 4.3 "
            "fails: tied coordinates over heads",
            values=trajectory["tie"].isel(decade=0).values / heads,
            relation=">=",
            threshold=1.0,
        ),
        judge(
            "The tied heads of a layer rise together: spread of their times over 2 max|log p₀, q₀|/log(1/α)",
            values=trajectory["apart"].max("decade").values,
            relation="<=",
            threshold=1.0,
        ),
        judge(
            "Assumption 4.4 fails at the tie: smallest over largest curvature on the support",
            values=trajectory["curvature"].isel(decade=0).values,
            relation="<=",
            threshold=1e-8,
        ),
        judge(
            "Broken symmetry: coordinates that become active in one stage, at most",
            values=trajectory["broken_tie"].values,
            relation="<=",
            threshold=1.0,
        ),
        judge(
            f"Broken symmetry: the flow's stages are as predicted ({int((agrees & firm).sum())} of "
            f"{int(firm.sum())} qualifying stages of {firm.size}): share",
            values=rates,
            relation=">=",
            threshold=1.0,
        ),
    ]
