"""Section 1.5: of aligned balanced weights with random signs, half of the modes get stuck at zero.

Balanced weights are built by hand, W₁ = √|S| U_inᵀ and W₂ = U_out sgn(S) √|S|, aligned with the singular vectors of
the observed matrix, with s_i(0) drawn from N(0, (s_i*/100)²), symmetric; the network itself is followed by its
gradient flow.

Claims and their thresholds:

- *Above zero* a mode converges to s_i*, *below zero* to 0. The slowest mode needs a time of ln(100)/2 to rise or
  decay on the clock of its own rate 2s*/d², and draws nearer to zero than s*/100 a little longer; runs last four
  times as long, so that |s_i − s_i*| and |s_i| are at most 1 % of s_i* unless a start is below 1e-6 of it (chance
  1e-4).
- *Each with probability ½*: the share of stuck modes over all starts is within three standard deviations of the
  binomial distribution, 3 · ½/√n. *A random subset* is recovered, so that all of R modes are from 2^−R of the starts:
  from at most one start (40 starts of 10 modes: two or more have a chance of 1e-3).
- The introduction says that the mixed dynamics, with σ²w > 0, can never get stuck: the same starts with σ²w equal to
  the standard deviation of the weakest mode recover every mode within 5 %, which is a time ln(20)/2 after it has
  risen.

Nulls: the sign read the other way; positive starts only; the mixed and the balanced dynamics for each other.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from saddles import figures, linear
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.linear.experiments.scaling import PAPER
from saddles.runtime.progress import bar

SMALL = 0.01
"""Standard deviation of s_i(0) over s_i*."""
LONG = 4 * float(np.log(1 / SMALL)) / 2
"""End of the runs on the clock of the slowest mode's rate."""


@dataclass(frozen=True)
class Settings:
    """Balanced networks from several starts."""

    rank: Annotated[int, "modes, and rows and columns of the matrix"]
    starts: Annotated[int, "independent starts"]
    instants: Annotated[int, "saved instants"] = 41


def run(settings: Settings, context: Context) -> Trajectory:
    """The flow of balanced weights, and of the self-consistent dynamics with σ²w > 0 from the same matrix."""
    seeds = context.seeds(settings.starts)
    with bar("linear/stuck", len(seeds)) as progress:
        rows = []
        for seed in seeds:
            rows.append(_one(settings, seed))
            progress.advance()
    names = ("share", "mixed_share")
    variables = {name: (("time", "seed", "mode"), np.stack([row[name] for row in rows], axis=1)) for name in names}
    start = np.stack([row["start"] for row in rows])
    return make_trajectory(
        variables | {"start": (("seed", "mode"), start)},
        np.linspace(0.0, LONG, settings.instants),
        unit="gradient time × rate of the slowest mode",
        coords={"seed": seeds},
        lab="linear",
        kind="simulated and predicted",
    )


def _one(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    rank = settings.rank
    # equally spaced, so that no two modes mix, within a factor of two, so that the slowest is not far behind
    spectrum = np.linspace(1.0, 0.5, rank)
    task = linear.Denoising(rank, rank, noise=0.0, seed=seed, spectrum=[float(a) for a in spectrum])
    left, true, right = np.linalg.svd(task.observed)
    start = SMALL * true * np.random.default_rng([seed, 15]).normal(size=rank)
    root = np.sqrt(np.abs(start))
    model = linear.TwoLayer.from_weights(root[:, None] * right, left * (np.sign(start) * root))
    times = np.linspace(0.0, LONG, settings.instants) * rank**2 / (2 * true[-1])
    flow = simulate(model, task, linear.GradientFlow(), times=times, keep=("matrix",), skip=("singular_value",))
    mixed = linear.TwoLayer.from_weights(*_as_given(model), variance=SMALL * true[-1] / rank)
    theory = predict(mixed, task, linear.SelfConsistent(), times=times, keep=("matrix",), skip=("singular_value",))
    shares = [np.einsum("ik,tij,kj->tk", left, one["matrix"].values, right) / true for one in (flow, theory)]
    return {"share": shares[0], "mixed_share": shares[1], "start": start / true}


def _as_given(model: "linear.TwoLayer") -> tuple[np.ndarray, np.ndarray]:
    assert model.weights is not None
    return model.weights


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge which modes end where, and how often."""
    end, mixed = (trajectory[name].isel(time=-1).transpose("seed", "mode").values for name in ("share", "mixed_share"))
    up = trajectory["start"].transpose("seed", "mode").values > 0
    stuck = end < 0.5
    n, rank = stuck.size, stuck.shape[1]
    judge = partial(check, paper=PAPER, where="Section 1.5", size=size, relation="<=")
    return [
        judge(
            "Balanced modes that start above zero converge to s_i*, those below zero to 0: largest distance over s_i*",
            values=np.abs(end - up).max(axis=1),
            threshold=0.01,
            null=np.abs(end - ~up).max(axis=1),
            against="the other way round",
        ),
        judge(
            f"Each mode gets stuck with probability ½: distance of the share of {n} from it, in standard deviations",
            values=float(abs(stuck.mean() - 0.5) / (0.5 / np.sqrt(n))),
            threshold=3.0,
            null=float(abs(stuck[up].mean() - 0.5) / (0.5 / np.sqrt(up.sum()))),
            against="modes that start above zero",
        ),
        judge(
            f"Training fails to recover A* with high probability: share of starts that learn all {rank} modes",
            values=float((~stuck).all(axis=1).mean()),
            threshold=1 / len(stuck),
            null=float((mixed > 0.5).all(axis=1).mean()),
            against="the mixed dynamics, σ²w > 0",
        ),
        judge(
            "The mixed dynamics, σ²w > 0, never get stuck: largest distance from s_i* over s_i*",
            where="Section 1, section 1.5",
            values=np.abs(mixed - 1).max(axis=1),
            threshold=0.05,
            null=np.abs(end - 1).max(axis=1),
            against="the balanced dynamics",
        ),
    ]


def figure(trajectory: Trajectory) -> Drawing:
    """Draw it."""
    return figures.linear.stuck(trajectory)


EXPERIMENT = Experiment(
    "linear/stuck",
    "Balanced networks get stuck: every mode with probability one half",
    PAPER,
    sizes={
        "tiny": Size(3, Settings(rank=4, starts=4, instants=21)),
        "laptop": Size(6, Settings(rank=10, starts=40)),
        "gpu": Size(20, Settings(rank=10, starts=200)),
        "paper": Size(20, Settings(rank=10, starts=200)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
