"""Figures 10 and 11: a flow at α = 1e-32 is perturbed where it stands, and trained on, by the flow and by SGD.

An epoch is gradient time 1 (a full-batch step with η = 1). u and v of every coordinate whose weight
exceeds 1e-5 get independent noise; the others keep their place in log-scale coordinates.

Claim of figure-10 (Assumption 4.4, weights perturbed on a plateau return) and its threshold: noise of standard
deviation 0.05 on each weight moves β by about a tenth of itself; "return" asks that on the plateaus of the second 500
of 1,000 epochs the relative distance has fallen to a tenth of what the perturbation made it.

Claim of figure-11 (Assumption 4.5, weights perturbed as a coordinate becomes active end at the same point) and its
threshold: noise of standard deviation 1e-2 on weights of order 1 moves β by about 2 %; the same endpoint means a
relative distance of at most 1 %, half of the perturbation itself, on the plateaus of the second 500 of 1,000 epochs.

The paper goes on with SGD. Here both runs, with and without the noise, see the same batches, so that what is left of
their distance comes from the perturbation; the thresholds are those of the flow.
SGD never rests, so that its plateaus are those of the two flows from the same points; where one of its own transitions
comes at another time than the flow's, the median over the plateau leaves it out.
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

RATE, BATCH = 0.25, 20
"""Learning rate of SGD, that of figure-2, and sequences in a step."""

RUNS = ("beta", "perturbed_beta", "sgd_beta", "perturbed_sgd_beta")
"""What is kept of the weights after each perturbation: by the flow and by SGD."""

WAYS = {"": "", "sgd_": ", trained on with SGD"}
"""How training goes on: what names of variables begin with, and words of a claim."""

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

    Returns `beta` and `perturbed_beta` (time, start, coordinate), time in epochs after the perturbation, the same two
    of SGD, and `started` (start), the rescaled time of it.
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
    sgd = diagonal.Descent(RATE, int(np.ceil(settings.epochs / RATE)), min(BATCH, settings.samples))
    # Two generators of one seed for each start: the flow and SGD are perturbed by the same noise.
    again = [[np.random.default_rng([seed, 45, number]) for number in range(len(chosen))] for _ in range(2)]
    apart = partial(diagonal.perturbed_flows, model, task, clock=clock, noise=noise, seed=seed)
    pairs = [apart(row, draw=draw) for row, draw in zip(base["log_scale"].values, again[0], strict=True)]
    flows = [np.stack([pair[k] for pair in pairs], axis=1) for k in (0, 1)]
    descents = diagonal.perturbed_descents(
        model, task, base["log_scale"].values, clock=clock, noise=noise, draws=again[1], method=sgd, seed=seed
    )
    curves: dict[str, Variable] = {
        name: (("time", "start", "coordinate"), run) for name, run in zip(RUNS, [*flows, *descents], strict=True)
    }
    return make_trajectory(
        curves | {"started": (("start",), chosen)},
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
    for name in RUNS:
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


def elsewhere(trajectory: Trajectory, way: str = "") -> np.ndarray:
    """The last distances of `distances` where training from the next instant stands for the perturbed one: the null."""
    moved = trajectory[f"{way}beta"].roll(start=1, roll_coords=False)
    return distances(trajectory.assign({f"perturbed_{way}beta": moved}), way)[1]


def distances(trajectory: Trajectory, way: str = "") -> tuple[np.ndarray, np.ndarray]:
    """‖perturbed − unperturbed‖ / ‖unperturbed‖ at the start and, as a median over the second half, at the end.

    Instants in a transition of either flow are left out, because the noise may shift it a little in time: there the
    weights move by more than 1e-4 of their norm per epoch. NaN where no instant is left.

    Args:
        way: "" for the flow, "sgd_" for SGD.
    """
    rest, half = _plateaus(trajectory)
    plain, moved = (_rows(trajectory, name) for name in (f"{way}beta", f"perturbed_{way}beta"))
    ratio = np.linalg.norm(moved - plain, axis=2) / np.maximum(np.linalg.norm(plain, axis=2), 1e-12)
    last = [np.median(ratio[half:, i][rest[:, i]]) if rest[:, i].any() else np.nan for i in range(ratio.shape[1])]
    return ratio[0], np.array(last)


def _plateaus(trajectory: Trajectory) -> tuple[np.ndarray, int]:
    """Whether both flows rest at the instants of the second half, (instant, start), and where it begins."""
    rows = [_rows(trajectory, name) for name in RUNS[:2]]
    size = np.maximum(np.linalg.norm(rows[0], axis=2), 1e-12)
    spacing = np.diff(trajectory["time"].values)[:, None]
    moves = np.maximum(*(np.linalg.norm(np.diff(row, axis=0), axis=2) for row in rows)) / spacing / size[1:]
    half = len(size) // 2
    return moves[half - 1 :] <= MOVING, half


def _rows(trajectory: Trajectory, name: str) -> np.ndarray:
    return trajectory[name].transpose("time", "start", "coordinate").values


def claims_figure_10(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the return, by the flow and by SGD."""
    result = []
    for way, words in WAYS.items():
        first, last = distances(trajectory, way)
        null = elsewhere(trajectory, way) / first
        result.append(
            check(
                f"Perturbed weights return to the unperturbed ones{words}: "
                "distance on the plateaus of the second 500 epochs over the first",
                paper=PAPER,
                where="Figure 10, Assumption 4.4",
                values=(last / first)[np.isfinite(last)],
                relation="<=",
                threshold=0.1,
                size=size,
                null=null[np.isfinite(null)],
                against="training from another instant",
            )
        )
    return result


def claims_figure_11(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the endpoints, by the flow and by SGD."""
    result = []
    for way, words in WAYS.items():
        last, other = distances(trajectory, way)[1], elsewhere(trajectory, way)
        result.append(
            check(
                f"Weights perturbed at the start of a stage end where they would have{words}: "
                "relative distance on the plateaus of the second 500 epochs",
                paper=PAPER,
                where="Figure 11, Assumption 4.5",
                values=last[np.isfinite(last)],
                relation="<=",
                threshold=0.01,
                size=size,
                null=other[np.isfinite(other)],
                against="training from another instant",
            )
        )
    return result


def figure(trajectory: Trajectory) -> "Figure":
    """Weights after a perturbation and without it."""
    return figures.diagonal.perturbation(trajectory)


_PAPER = Settings(dim=50, samples=1000, tokens=10, stages=40, decades=32, epochs=1000, times=5, points=201, seeds=1)
SIZES = {
    "tiny": Size(
        5, Settings(dim=5, samples=60, tokens=5, stages=5, decades=32, epochs=1000, times=2, points=61, seeds=1)
    ),
    "laptop": Size(
        9, Settings(dim=10, samples=200, tokens=10, stages=10, decades=32, epochs=1000, times=2, points=121, seeds=2)
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
