"""Descent on drawn prompts against the exact one: the distance falls with the batch.

Threshold: the noise of a mean over B prompts is of order 1/√B, so sixteen times the batch should bring the distance of
M to a quarter; half is required. The null is the same with the distances to descent from another start.

The exact loss itself is a formula of the population. At the end of a run it is compared with the mean over 40,000 drawn
prompts: within four standard errors of it. The null is the formula for endless prompts, N → ∞.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import xarray as xr

from saddles import figures, incontext
from saddles.core.claim import Claim, check, too_few
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.settings import check_different
from saddles.core.trajectory import Trajectory, make_trajectory

PAPER = "zhang2025training"
DRAWN, ERRORS = 40_000, 4.0
"""Prompts whose mean loss stands beside the exact one, and the standard errors that they may be apart."""


@dataclass(frozen=True)
class Settings:
    """Descent on batches of several sizes."""

    steps: Annotated[int, "steps of descent"]
    seeds: Annotated[int, "independent initial weights and prompts"]
    batches: Annotated[tuple[int, ...], "prompts in a step"] = (16, 256)
    heads: Annotated[int, "attention heads of rank 1"] = 6
    scale: Annotated[float, "size of the start"] = 0.3
    rate: Annotated[float, "learning rate"] = 0.02
    prompt: Annotated[int, "pairs in a prompt, N"] = 20


def run(settings: Settings, context: Context) -> Trajectory:
    """Exact loss along descent on prompts and along exact descent, and the distance of their matrices."""
    check_different("batches", settings.batches, 1)
    task = incontext.Regression([1.0, 0.6, 0.35], settings.prompt)
    seeds, every = context.seeds(settings.seeds), max(1, settings.steps // 50)
    model = incontext.Separate(settings.heads, 1, settings.scale)
    exact = simulate(model, task, incontext.GradientDescent(settings.rate, settings.steps, every), seed=seeds)
    loss, distance, apart = [], [], []
    other = exact["matrix"].isel(seed=np.roll(np.arange(len(seeds)), 1)).values
    for batch in settings.batches:
        method = incontext.PromptDescent(settings.rate, settings.steps, every, batch=batch)
        drawn = simulate(model, task, method, seed=seeds)
        loss.append(drawn["loss"].values)
        distance.append(np.sqrt(((drawn["matrix"] - exact["matrix"]).values ** 2).mean(axis=(2, 3))))
        apart.append(np.sqrt(((drawn["matrix"].values - other) ** 2).mean(axis=(2, 3))))
    dims = ("time", "batch", "seed")
    variables = {
        "loss": (dims, np.stack(loss, axis=1)), "distance": (dims, np.stack(distance, axis=1)),
        "distance_to_another": (dims, np.stack(apart, axis=1)), "exact_loss": (("time", "seed"), exact["loss"].values),
    }  # fmt: skip
    for name, loss in _beside_drawn(task, exact["matrix"].isel(time=-1), context.seeds(2 * settings.seeds)).items():
        variables[name] = (("seed",), loss)
    coords = {"batch": list(settings.batches), "seed": seeds}
    return make_trajectory(
        variables, exact["time"].values, coords=coords, lab="incontext", kind="simulated",
        status=exact.attrs["status"],
    )  # fmt: skip


def _beside_drawn(task: "incontext.Regression", matrices: xr.DataArray, seeds: list[int]) -> dict[str, list[float]]:
    """How far the exact loss is from the mean over drawn prompts, in standard errors, and that of endless prompts."""
    endless = incontext.Regression(task.covariance, 10**9)
    rows: dict[str, list[float]] = {"loss_off": [], "endless_off": []}
    for matrix, seed in zip(matrices.transpose("seed", ...).values, seeds[matrices.sizes["seed"] :], strict=True):
        drawn = task.draw(DRAWN, seed)
        context = np.einsum("pnd,pn->pd", drawn.inputs, drawn.outputs) / task.prompt
        losses = (drawn.answer - np.einsum("pd,de,pe->p", context, matrix, drawn.query)) ** 2
        error = losses.std(ddof=1) / np.sqrt(DRAWN)
        for name, here in (("loss_off", task), ("endless_off", endless)):
            rows[name].append(abs(float(here.cost(matrix)) - losses.mean()) / error)
    return rows


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge how the distance falls with the batch, and the exact loss."""
    gap, null = ((trajectory[name] ** 2).mean("time") ** 0.5 for name in ("distance", "distance_to_another"))
    return [
        check(
            "Descent on drawn prompts nears exact descent with the batch: root mean square distance of M over the run, "
            "largest batch over smallest",
            paper=PAPER, where="population loss", size=size, relation="<=", threshold=0.5,
            values=float(gap.isel(batch=-1).mean("seed") / gap.isel(batch=0).mean("seed")),
            null=float(null.isel(batch=-1).mean("seed") / null.isel(batch=0).mean("seed")),
            against="exact descent from another start", not_applicable=too_few("`batches`", gap["batch"].values),
        ),
        check(
            "The exact loss is the mean over drawn prompts: distance at the end of the runs, in standard errors",
            paper=PAPER, where="population loss", size=size, relation="<=", threshold=ERRORS,
            values=trajectory["loss_off"].values, null=trajectory["endless_off"].values,
            against="the loss of endless prompts",
        ),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.incontext.finite_prompts(trajectory)


EXPERIMENT = Experiment(
    "incontext/finite-prompts",
    "Descent on drawn prompts against the exact flow over all prompts",
    PAPER,
    sizes={
        "tiny": Size(8, Settings(steps=200, seeds=2)),
        "laptop": Size(7, Settings(steps=2000, seeds=4)),
        "gpu": Size(60, Settings(steps=4000, seeds=8, batches=(16, 64, 256, 1024))),
    },
    run=run,
    claims=claims,
    figure=figure,
)
