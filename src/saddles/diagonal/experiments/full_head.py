"""Figure 2 d–f of the paper's first version: a head with full matrices, beyond the theory.

Claims and their thresholds: "learned incrementally" is read as one singular value at a time: when one reaches half of
its end, the next smaller one of the same matrix is below half of its own. Counted among those that end above a tenth
of the largest (smaller ones have not finished). And the order is by size: the share of such pairs in order is 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import diagonal, figures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import PAPER, log_alpha
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """Settings of full-head."""

    dim: Annotated[int, "rows and columns of the four matrices"]
    samples: Annotated[int, "sequences in the data"]
    tokens: Annotated[int, "tokens in a sequence"]
    decades: Annotated[int, "initial scale, α = 10^−decades"]
    until: Annotated[float, "rescaled time of the end"]
    points: Annotated[int, "saved instants"]
    seeds: Annotated[int, "teachers, each with initial weights of its own"]


def run(settings: Settings, context: Context) -> Trajectory:
    """The flow of several teachers and initial weights."""
    model = diagonal.FullHead(settings.dim, log_alpha=log_alpha(settings.decades))
    clock = np.linspace(0.0, settings.until, settings.points)
    seeds, parts, method = context.seeds(settings.seeds), [], diagonal.Flow(tolerance=1e-5)
    with bar("diagonal/full-head", len(seeds)) as progress:
        for seed in seeds:
            task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
            make = partial(simulate, model, task, method, times=clock, seed=seed)
            parts.append(context.part(f"seed-{seed}", make))
            progress.advance()
    values = np.stack([part["singular_value"] for part in parts], axis=1)
    return make_trajectory(
        {
            "singular_value": (("time", "seed", "family", "mode"), values),
            "loss": (("time", "seed"), np.stack([part["loss"] for part in parts], axis=1)),
        },
        clock,
        unit="rescaled time, t / log(1/α)",
        coords={"seed": seeds, "family": ["key_query", "value_output"]},
        lab="diagonal",
        model=model,
        method=method,
        kind="simulated",
    )


def _next(values: np.ndarray) -> list[float]:
    """For each pair of neighbours: how far the smaller is, of its own end, when the larger is at half of its end."""
    ends = values[-1]
    modes = np.flatnonzero(ends > 0.1 * ends[0])
    return [float(values[np.argmax(values[:, k] >= 0.5 * ends[k]), k + 1] / ends[k + 1]) for k in modes[:-1]]


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the order of the singular values."""
    values = trajectory["singular_value"].transpose("seed", "family", "time", "mode").values
    return [
        check(
            f"Singular values of {words} rise one at a time: how far the next one is, of its end, "
            "when one is at half of its own",
            paper=PAPER,
            where=f"first version, Figure 2 {panel}",
            values=[max(_next(one[i])) for one in values if _next(one[i])],
            relation="<=",
            threshold=0.5,
            size=size,
        )
        for i, (words, panel) in enumerate((("W_K W_Qᵀ", "(e)"), ("W_V W_Oᵀ", "(d)")))
    ]


def figure(trajectory: Trajectory) -> "Figure":
    """Singular values of both products, and the loss."""
    return figures.diagonal.full_head(trajectory)


_PAPER = Settings(dim=50, samples=1000, tokens=10, decades=5, until=1000.0, points=401, seeds=1)

FULL_HEAD = Experiment(
    name="diagonal/full-head",
    title="A head with full matrices: singular values rise one at a time",
    paper=PAPER,
    sizes={
        "tiny": Size(5, Settings(dim=4, samples=40, tokens=4, decades=2, until=60.0, points=81, seeds=1)),
        "laptop": Size(45, Settings(dim=8, samples=200, tokens=6, decades=5, until=150.0, points=301, seeds=3)),
        "gpu": Size(25, _PAPER),
        "paper": Size(1800, _PAPER),
    },
    run=run,
    claims=claims,
    figure=figure,
)
