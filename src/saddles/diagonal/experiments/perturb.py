"""Perturb a flow at α = 1e-32 where it stands, and go on: what figures 10 and 11 share.

An epoch is gradient time 1 (a full-batch step with η = 1). u and v of every coordinate whose weight
exceeds 1e-5 get independent noise; the others keep their place in log-scale coordinates.
"""

from typing import Any

import numpy as np

from saddles.core.dispatch import predict, simulate
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import log_alpha
from saddles.diagonal.method import Flow
from saddles.diagonal.model import AttentionHead
from saddles.diagonal.risk import Risk, risk_of
from saddles.diagonal.task import TeacherStudent
from saddles.diagonal.theory import Incremental
from saddles.measures.activations import stages
from saddles.solvers.log_scale import LogScale
from saddles.solvers.plateau import follow

NEGLIGIBLE = 1e-5


def perturbed_runs(settings: dict[str, Any], seed: int, noise: float, at_activation: bool) -> Trajectory:
    """Perturbed and unperturbed weights side by side, from several instants.

    Args:
        noise: standard deviation of the perturbation of u and v.
        at_activation: start where a coordinate has just exceeded 1e-5, else at random times after the
            first predicted stage.

    Returns `beta` and `perturbed_beta` (time, start, coordinate), time in epochs after the perturbation, and
    `started` (start), the rescaled time of it.
    """
    model = AttentionHead(settings["dim"])
    task = TeacherStudent(model, settings["samples"], settings["tokens"], seed)
    scale = log_alpha(settings["decades"])
    foreseen = predict(model, task, Incremental(settings["stages"]), seed=seed)["stage_time"].values
    begin, end = float(foreseen[0]), float(foreseen[-1])
    draw = np.random.default_rng([seed, 39])
    if at_activation:
        seen = stages(simulate(model, task, Flow(scale, until=end), seed=seed))["stage_time"].values
        chosen = np.sort(draw.permutation(seen)[: settings["times"]]) * (1 + 1e-9)
    else:
        chosen = np.sort(draw.uniform(begin, end, size=settings["times"]))
    base = simulate(model, task, Flow(scale), times=chosen, seed=seed)
    u, v = model.start(seed)
    first = LogScale.from_weights(u, v, scale)
    shifts = base["log_scale"].values * scale - first.log_p
    risk = risk_of(model, task)
    clock = np.linspace(0.0, settings["epochs"], settings["points"])
    rows = [_pair(risk, first, shift, clock, noise, draw) for shift in shifts]
    return make_trajectory(
        {
            "beta": (("time", "start", "coordinate"), np.stack([row[0] for row in rows], axis=1)),
            "perturbed_beta": (("time", "start", "coordinate"), np.stack([row[1] for row in rows], axis=1)),
            "started": (("start",), chosen),
        },
        clock,
        unit="epochs after the perturbation",
        coords={"family": ("coordinate", np.array(model.families))},
        lab="diagonal",
        model=model,
        task=task,
        kind="simulated",
        noise=noise,
    )


def _pair(
    risk: Risk, first: LogScale, shift: np.ndarray, clock: np.ndarray, noise: float, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    here = LogScale(first.log_p + shift, first.log_q - shift, first.sign_p, first.sign_q)
    u, v = here.weights(np.zeros_like(shift))
    felt = np.maximum(np.abs(u), np.abs(v)) > NEGLIGIBLE
    moved = LogScale.from_weights(u + noise * draw.normal(size=u.shape), v + noise * draw.normal(size=v.shape))
    names = ("log_p", "log_q", "sign_p", "sign_q")
    there = LogScale(*(np.where(felt, getattr(moved, name), getattr(here, name)) for name in names))
    paths = [follow(risk.force, risk.columns, c, clock[-1], times=clock) for c in (here, there)]
    return here.beta(paths[0].shifts), there.beta(paths[1].shifts)


def run_seeds(settings: dict[str, Any], context: Any, noise: float, at_activation: bool) -> Trajectory:
    """The runs of several teachers, their instants one after the other."""
    parts = [
        context.part(f"seed-{seed}", lambda seed=seed: perturbed_runs(settings, seed, noise, at_activation))
        for seed in context.seeds(settings["seeds"])
    ]
    if len(parts) == 1:
        return parts[0]
    variables: dict[str, Any] = {}
    for name in ("beta", "perturbed_beta"):
        rows = np.concatenate([part[name].values for part in parts], axis=1)
        variables[name] = (("time", "start", "coordinate"), rows)
    variables["started"] = (("start",), np.concatenate([part["started"].values for part in parts]))
    whole = make_trajectory(
        variables, parts[0]["time"].values, unit=parts[0]["time"].attrs["unit"],
        coords={"family": ("coordinate", parts[0]["family"].values)}, lab="diagonal", kind="simulated", noise=noise,
    )  # fmt: skip
    return whole


def distances(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """‖perturbed − unperturbed‖ / ‖unperturbed‖ at the start and, as a median over the second half, at the end.

    Instants in a transition of either run are left out, because the noise may shift it a little in time: there the
    weights move by more than 1e-4 of their norm an epoch. NaN where no instant is left.
    """
    rows = [trajectory[name].transpose("time", "start", "coordinate").values for name in ("beta", "perturbed_beta")]
    size = np.maximum(np.linalg.norm(rows[0], axis=2), 1e-12)
    ratio = np.linalg.norm(rows[1] - rows[0], axis=2) / size
    spacing = np.diff(trajectory["time"].values)[:, None]
    moves = np.maximum(*(np.linalg.norm(np.diff(row, axis=0), axis=2) for row in rows)) / spacing / size[1:]
    half = len(ratio) // 2
    rest = moves[half - 1 :] <= 1e-4
    last = [np.median(ratio[half:, i][rest[:, i]]) if rest[:, i].any() else np.nan for i in range(ratio.shape[1])]
    return ratio[0], np.array(last)
