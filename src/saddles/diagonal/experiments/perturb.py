"""Figures 10 and 11: a flow at α = 1e-32 is perturbed where it stands, and followed on.

An epoch is gradient time 1 (a full-batch step with η = 1). u and v of every coordinate whose weight
exceeds 1e-5 get independent noise; the others keep their place in log-scale coordinates.

Claim of figure-10 (Assumption 4.4, weights perturbed on a plateau return) and its threshold: noise of standard
deviation 0.05 on each weight moves β by about a tenth of itself; "return" asks that on the plateaus of the second 500
of 1,000 epochs the relative distance has fallen to a tenth of what the perturbation made it.

Claim of figure-11 (Assumption 4.5, weights perturbed as a coordinate becomes active end at the same point) and its
threshold: noise of standard deviation 1e-2 on weights of order 1 moves β by about 2 %; the same endpoint means a
relative distance of at most 1 %, half of the perturbation itself, on the plateaus of the second 500 of 1,000 epochs.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import diagonal, figures, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import predict, simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.diagonal.experiments.agreement import PAPER, log_alpha

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNIT = "epochs after the perturbation"

MOVING = 1e-4
"""Weights that move by more than this part of their norm per epoch are in a transition."""


@dataclass(frozen=True)
class Settings:
    """Settings of figure-10 and figure-11."""

    dim: Annotated[int, "dimension of the head; it has twice as many coordinates"]
    samples: Annotated[int, "sequences in the data"]
    tokens: Annotated[int, "tokens in a sequence"]
    stages: Annotated[int, "stages within which the flow is perturbed"]
    decades: Annotated[int, "initial scale, α = 10^−decades"]
    epochs: Annotated[int, "gradient time after the perturbation"]
    times: Annotated[int, "perturbations per teacher"]
    points: Annotated[int, "instants saved after each"]
    seeds: Annotated[int, "teachers"]


def perturbed_runs(settings: Settings, seed: int, noise: float, at_activation: bool) -> Trajectory:
    """Perturbed and unperturbed weights side by side, from several instants.

    Args:
        noise: standard deviation of the perturbation of u and v.
        at_activation: start where a coordinate has just exceeded 1e-5, else at random times after the
            first predicted stage.

    Returns `beta` and `perturbed_beta` (time, start, coordinate), time in epochs after the perturbation, and
    `started` (start), the rescaled time of it.
    """
    model = diagonal.AttentionHead(settings.dim, log_alpha=log_alpha(settings.decades))
    task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
    predicted = predict(model, task, diagonal.Incremental(settings.stages))["stage_time"].values
    begin, end = float(predicted[0]), float(predicted[-1])
    draw = np.random.default_rng([seed, 39])
    if at_activation:
        seen = measures.stages(simulate(model, task, diagonal.Flow(until=end), seed=seed))["stage_time"].values
        chosen = np.sort(draw.permutation(seen)[: settings.times]) * (1 + 1e-9)  # just after it
    else:
        chosen = np.sort(draw.uniform(begin, end, size=settings.times))
    base = simulate(model, task, diagonal.Flow(), times=chosen, seed=seed)
    clock = np.linspace(0.0, settings.epochs, settings.points)
    apart = partial(diagonal.perturbed_flows, model, task, clock=clock, noise=noise, draw=draw, seed=seed)
    pairs = [apart(log_scale) for log_scale in base["log_scale"].values]
    return make_trajectory(
        {
            "beta": (("time", "start", "coordinate"), np.stack([pair[0] for pair in pairs], axis=1)),
            "perturbed_beta": (("time", "start", "coordinate"), np.stack([pair[1] for pair in pairs], axis=1)),
            "started": (("start",), chosen),
        },
        clock,
        unit=UNIT,
        coords={"family": ("coordinate", np.array(model.families))},
        lab="diagonal",
        model=model,
        task=task,
        kind="simulated",
        noise=noise,
    )


def run_seeds(settings: Settings, context: Context, noise: float, at_activation: bool) -> Trajectory:
    """The runs of several teachers, their instants one after the other."""
    parts = [
        context.part(f"seed-{seed}", partial(perturbed_runs, settings, seed, noise, at_activation))
        for seed in context.seeds(settings.seeds)
    ]
    if len(parts) == 1:
        return parts[0]
    variables: dict[str, Variable] = {}
    for name in ("beta", "perturbed_beta"):
        rows = np.concatenate([part[name].values for part in parts], axis=1)
        variables[name] = (("time", "start", "coordinate"), rows)
    variables["started"] = (("start",), np.concatenate([part["started"].values for part in parts]))
    return make_trajectory(
        variables, parts[0]["time"].values, unit=UNIT, coords={"family": ("coordinate", parts[0]["family"].values)},
        lab="diagonal", kind="simulated", noise=noise,
    )  # fmt: skip


def run_figure_10(settings: Settings, context: Context) -> Trajectory:
    """Perturb at random times."""
    return run_seeds(settings, context, 0.05, at_activation=False)


def run_figure_11(settings: Settings, context: Context) -> Trajectory:
    """Perturb where a coordinate has just exceeded 1e-5."""
    return run_seeds(settings, context, 0.01, at_activation=True)


def elsewhere(trajectory: Trajectory) -> np.ndarray:
    """The last distances of `distances` where the flow from the next instant stands for the perturbed one: the null."""
    return distances(trajectory.assign(perturbed_beta=trajectory["beta"].roll(start=1, roll_coords=False)))[1]


def distances(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """‖perturbed − unperturbed‖ / ‖unperturbed‖ at the start and, as a median over the second half, at the end.

    Instants in a transition of either run are left out, because the noise may shift it a little in time: there the
    weights move by more than 1e-4 of their norm per epoch. NaN where no instant is left.
    """
    rows = [trajectory[name].transpose("time", "start", "coordinate").values for name in ("beta", "perturbed_beta")]
    size = np.maximum(np.linalg.norm(rows[0], axis=2), 1e-12)
    ratio = np.linalg.norm(rows[1] - rows[0], axis=2) / size
    spacing = np.diff(trajectory["time"].values)[:, None]
    moves = np.maximum(*(np.linalg.norm(np.diff(row, axis=0), axis=2) for row in rows)) / spacing / size[1:]
    half = len(ratio) // 2
    rest = moves[half - 1 :] <= MOVING
    last = [np.median(ratio[half:, i][rest[:, i]]) if rest[:, i].any() else np.nan for i in range(ratio.shape[1])]
    return ratio[0], np.array(last)


def claims_figure_10(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the return."""
    first, last = distances(trajectory)
    seen = np.isfinite(last)
    return [
        check(
            "Perturbed weights return to the unperturbed ones: "
            "distance on the plateaus of the second 500 epochs over the first",
            paper=PAPER,
            where="Figure 10, Assumption 4.4",
            values=last[seen] / first[seen],
            relation="<=",
            threshold=0.1,
            size=size,
            null=(elsewhere(trajectory) / first)[np.isfinite(elsewhere(trajectory))],
            against="the flow from another instant",
        )
    ]


def claims_figure_11(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the endpoints."""
    last, other = distances(trajectory)[1], elsewhere(trajectory)
    return [
        check(
            "Weights perturbed at the start of a stage end where they would have: "
            "relative distance on the plateaus of the second 500 epochs",
            paper=PAPER,
            where="Figure 11, Assumption 4.5",
            values=last[np.isfinite(last)],
            relation="<=",
            threshold=0.01,
            size=size,
            null=other[np.isfinite(other)],
            against="the flow from another instant",
        )
    ]


def figure(trajectory: Trajectory) -> "Figure":
    """Weights after a perturbation and without it."""
    return figures.diagonal.perturbation(trajectory)


_PAPER = Settings(dim=50, samples=1000, tokens=10, stages=40, decades=32, epochs=1000, times=5, points=201, seeds=1)
SIZES = {
    "tiny": Size(
        5, Settings(dim=5, samples=60, tokens=5, stages=5, decades=32, epochs=1000, times=2, points=61, seeds=1)
    ),
    "laptop": Size(
        40, Settings(dim=10, samples=200, tokens=10, stages=10, decades=32, epochs=1000, times=5, points=121, seeds=2)
    ),
    "gpu": Size(10, _PAPER),
    "paper": Size(300, _PAPER),
}
FIGURE_10 = Experiment(
    name="diagonal/figure-10",
    title="Assumption 4.4: weights perturbed at random times return",
    paper=PAPER,
    sizes=SIZES,
    run=run_figure_10,
    claims=claims_figure_10,
    figure=figure,
)
FIGURE_11 = Experiment(
    name="diagonal/figure-11",
    title="Assumption 4.5: weights perturbed as a stage begins end at the same point",
    paper=PAPER,
    sizes=SIZES,
    run=run_figure_11,
    claims=claims_figure_11,
    figure=figure,
)
