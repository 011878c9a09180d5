"""Appendix D where its assumptions hold as printed, and what is left of it at realistic scales.

Random tasks (s = 2 and 3, each a more than 3 times the next) and random W(0) (entries within a factor of 10),
scaled to where D.1 to D.5 hold with P, κ, K, C at their best; the flow is followed until all is learned.

Claims and their thresholds:

- Lemmas D.1, D.2, D.4 to D.8 hold in every instance (margins in logs, −1e-6 for the solver's error).
- D.3 as printed does not: its proof forgets that a stronger concept takes away what is shared. The smallest
  margin over instances is negative, and minus infinity at rank one. This is a claim against the text.
- w_ii ≤ 1 along the flow, D.5 with K = ∞, at realistic scales too.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.concepts.ensemble import flow_many
from saddles.concepts.experiments.grids import PAPER
from saddles.concepts.experiments.searches import DRAWS, draw
from saddles.concepts.lemmas import Constants, check_all, least_constants, lemma_curves, lemma_margins
from saddles.concepts.task import Identity
from saddles.concepts.theory import pivots
from saddles.concepts.watch import PAPER_CLOCK
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.progress import bar
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.concepts import lemma_table as figure

__all__ = ["claims", "figure", "run"]

LEMMAS = ("D.1", "D.2", "D.3", "D.4", "D.5", "D.6", "D.7", "D.8")
LEAST = ("D.1 κ", "D.2 κ", "D.3 κ", "D.4 κ", "D.5 top", "D.7 ratio", "D.8 P")


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Margins of every lemma, and the least constants at realistic scales."""
    (seed,) = context.seeds(1)
    count = settings["instances"] // 2
    parts = [context.part(f"s-{s}", partial(_instances, s, count, settings["instants"], seed)) for s in (2, 3)]
    parts.append(context.part("rank-one", partial(_rank_one, settings["instants"])))
    real = context.part("realistic", partial(_realistic, settings["realistic"], seed))
    return make_trajectory(
        {
            "margin": (("run", "lemma"), np.concatenate([part["margin"].values for part in parts[:2]])),
            "omega": (("run",), np.concatenate([part["omega"].values for part in parts[:2]])),
            "correlation": (("run",), np.concatenate([part["correlation"].values for part in parts[:2]])),
            "concepts": (("run",), np.repeat([2, 3], count)),
            "counterexample": (("lemma",), np.nan_to_num(parts[2]["margin"].values[0], neginf=-1e6, posinf=1e6)),
            "least": (("draw", "start", "constant"), real["least"].values),
        },
        [0.0], unit="end of the run", lab="concepts", kind="simulated and predicted",
        coords={"lemma": list(LEMMAS), "constant": list(LEAST), "draw": list(DRAWS)},
    )  # fmt: skip


def _scaled(shape: np.ndarray, ascending: np.ndarray, slack: float) -> float:
    """The largest power of ten at which the assumptions hold, and `slack` decades below it."""
    low, high = -280.0, -1.0
    if check_all(10.0**low * shape, ascending).broken:
        raise ValueError("no scale meets the assumptions")
    while high - low > 0.25:
        middle = (low + high) / 2
        low, high = (low, middle) if check_all(10.0**middle * shape, ascending).broken else (middle, high)
    return 10.0 ** (low - slack)


def _instances(s: int, count: int, instants: int, seed: int) -> Trajectory:
    rng = np.random.default_rng([seed, 43, s])
    factors, strengths, constants, near = [], [], [], []
    with bar(f"starts that meet the assumptions, s = {s}", count) as progress:
        while len(factors) < count:
            u = rng.normal(size=(s, s))
            shape = u @ u.T
            size = np.abs(shape)
            if size.max() > 10 * size.min():
                continue
            ascending = np.cumprod(np.concatenate([[1.0], rng.uniform(3.2, 8.0, s - 1)]))
            scale = _scaled(size, ascending, rng.uniform(0, 5))
            factors.append(np.sqrt(scale) * u)
            strengths.append(ascending)
            constants.append(check_all(scale * size, ascending).constants)
            own = np.sqrt(np.diag(shape))
            near.append(float(np.abs(shape / np.outer(own, own))[~np.eye(s, dtype=bool)].max()))
            progress.advance()
    margins = _margins(np.stack(factors), np.stack(strengths), constants, instants)
    return make_trajectory(
        {
            "margin": (("run", "lemma"), margins),
            "omega": (("run",), [c.omega for c in constants]),
            "correlation": (("run",), near),
        },
        [0.0], unit="end of the run",
    )  # fmt: skip


def _rank_one(instants: int) -> Trajectory:
    """The counterexample to D.3: a = (18, 1), W(0) = 1e-66 everywhere."""
    ascending, factor = np.array([1.0, 18.0]), np.full((1, 2, 1), 1e-33)
    constants = check_all(np.full((2, 2), 1e-66), ascending).constants
    margins = _margins(factor, ascending[None], [constants], instants, until=45.0)
    return make_trajectory({"margin": (("run", "lemma"), margins)}, [0.0], unit="end of the run")


def _margins(
    factors: np.ndarray, strengths: np.ndarray, constants: list[Constants], instants: int, until: float | None = None
) -> np.ndarray:
    weights = factors @ factors.swapaxes(1, 2)
    end = 1.1 * float(pivots(weights, strengths)[0].max()) if until is None else until
    times = np.unique(np.concatenate([np.linspace(0, end, instants), np.geomspace(end * 1e-4, end, instants)]))
    found, _ = flow_many(factors, strengths, np.ones(strengths.shape[1]), times, keep=("jacobian",), rtol=1e-7)
    rows = []
    for k, c in enumerate(constants):
        one = make_trajectory(
            {"jacobian": (("time", "row", "column"), found["jacobian"][:, k]), "strength": (("coordinate",), strengths[k])},
            times, unit="gradient time", coords={"paper_time": ("time", PAPER_CLOCK * times)},
        )  # fmt: skip
        rows.append(lemma_margins(one, lemma_curves(one, c)).values)
    return np.stack(rows)


def _realistic(count: int, seed: int) -> Trajectory:
    """Figure 10's task, which meets a_i > 3a_j, from starts as they are drawn in practice."""
    task = Identity((0.7, 1.7, 3.0), 0.05)
    least = np.zeros((len(DRAWS), count, len(LEAST)))
    for i, kind in enumerate(DRAWS):
        factors = draw(kind, 3, 3, count, seed)
        times = np.concatenate([[0.0], np.geomspace(1e-3, 80.0, 600)])
        found, _ = flow_many(factors, task.strengths, task.target, times, keep=("jacobian",), rtol=1e-7)
        for k in range(count):
            one = make_trajectory(
                {"jacobian": (("time", "row", "column"), found["jacobian"][:, k]), "strength": (("coordinate",), task.strengths)},
                times, unit="gradient time", coords={"paper_time": ("time", PAPER_CLOCK * times)},
            )  # fmt: skip
            constants = least_constants(one)
            least[i, k] = [constants[name] for name in LEAST]
    return make_trajectory({"least": (("draw", "start", "constant"), least)}, [0.0], unit="end of the run")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the appendix."""
    margin = trajectory["margin"]
    judge = partial(check, paper=PAPER, size=size, sizes=("tiny", "laptop", "gpu", "paper"))
    found = [
        judge(f"Lemma {name} holds where the assumptions do: least margin (log)", where=f"Lemma {name}", values=list(margin.sel(lemma=name).values), relation=">=", threshold=-1e-6)
        for name in LEMMAS if name != "D.3"
    ]  # fmt: skip
    top = trajectory["least"].sel(constant="D.5 top").values.ravel()
    return [
        *found,
        judge("Lemma D.3 as printed is false, though all assumptions hold: its margin at rank one", where="Lemma D.3", values=float(trajectory["counterexample"].sel(lemma="D.3")), relation="<=", threshold=-1.0),
        judge("Major entries never exceed 1 along the flow: largest w_ii at realistic scales", where="Lemma D.5", values=list(top), relation="<=", threshold=1 + 1e-5),
    ]  # fmt: skip
