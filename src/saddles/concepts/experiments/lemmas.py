"""Appendix D where its assumptions hold as printed, and what is left of it at realistic scales.

Random tasks (s = 2 and 3, each a more than 3 times the next) and random W(0) (entries within a factor of 10),
scaled to where D.1 to D.5 hold with P, κ, K, C at their best; the flow is followed until all is learned.

Claims and their thresholds:

- Lemmas D.1, D.2, D.4 to D.8 hold in every instance (margins in logs, −1e-6 for the solver's error).
- D.3 as printed does not: its proof forgets that a stronger concept takes away what is shared. The smallest
  margin over instances is negative, and minus infinity at rank one. This is a claim against the text.
- w_ii ≤ 1 along the flow, D.5 with K = ∞, at realistic scales too.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.concepts.ensemble import flow_many
from saddles.concepts.experiments import PAPER
from saddles.concepts.experiments.searches import DRAWS, draw
from saddles.concepts.lemmas import KAPPAS, check_all, least_constants, lemma_curves, lemma_margins
from saddles.concepts.observe import PAPER_CLOCK
from saddles.concepts.task import Identity
from saddles.concepts.theory import pivots
from saddles.core.claim import Claim, check
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.figures.concepts import lemma_table as figure
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]

LEAST_KAPPA = KAPPAS[:1]

LEMMAS = ("D.1", "D.2", "D.3", "D.4", "D.5", "D.6", "D.7", "D.8")
LEAST = ("D.1 κ", "D.2 κ", "D.3 κ", "D.4 κ", "D.5 top", "D.7 ratio", "D.8 P")


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Margins of every lemma, and the least constants at realistic scales; all flows in one program."""
    (seed,) = context.seeds(1)
    rng = np.random.default_rng([seed, 43])
    with bar("starts that meet the assumptions", settings["instances"]) as progress:
        cases = [_case(2 + k % 2, rng, progress) for k in range(settings["instances"])]
    cases.append(_rank_one())
    task = Identity((0.7, 1.7, 3.0), 0.05)
    real = [
        _Case(u, task.strengths, None, 80.0) for kind in DRAWS for u in draw(kind, 3, 3, settings["realistic"], seed)
    ]
    runs, status = _follow(cases + real, settings["instants"])
    margin = np.stack(
        [lemma_margins(one, lemma_curves(one, c.constants)).values for one, c in zip(runs, cases, strict=False)]
    )
    constants = [least_constants(one) for one in runs[len(cases) :]]
    least = np.array([[found[name] for name in LEAST] for found in constants])
    return make_trajectory(
        {
            "margin": (("time", "run", "lemma"), margin[None, :-1]),
            "omega": (("run",), [c.constants.omega for c in cases[:-1]]),
            "correlation": (("run",), [c.correlation for c in cases[:-1]]),
            "concepts": (("run",), [len(c.strengths) for c in cases[:-1]]),
            "counterexample": (("lemma",), np.nan_to_num(margin[-1], neginf=-1e6, posinf=1e6)),
            "least": (("draw", "start", "constant"), least.reshape(len(DRAWS), -1, len(LEAST))),
        },
        [0.0],
        unit="end of the run",
        lab="concepts",
        kind="simulated and predicted",
        status=status,
        coords={"lemma": list(LEMMAS), "constant": list(LEAST), "draw": list(DRAWS)},
    )


@dataclass(frozen=True)
class _Case:
    """A start, its a in any order, the constants that fit it, and how long to follow it."""

    factor: np.ndarray
    strengths: np.ndarray
    constants: Any
    until: float

    @property
    def correlation(self) -> float:
        """The largest |w_ij| / √(w_ii w_jj)."""
        shape = self.factor @ self.factor.T
        own = np.sqrt(np.diag(shape))
        return float(np.abs(shape / np.outer(own, own))[~np.eye(len(own), dtype=bool)].max())


def _scaled(shape: np.ndarray, ascending: np.ndarray, slack: float) -> float:
    """The largest power of ten at which the assumptions hold, and `slack` decades below it."""
    low, high = -280.0, -1.0
    if check_all(10.0**low * shape, ascending, kappas=LEAST_KAPPA).broken:
        raise ValueError("no scale meets the assumptions")
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if check_all(10.0**middle * shape, ascending, kappas=LEAST_KAPPA).broken else (middle, high)
        )
    return 10.0 ** (low - slack)


def _case(s: int, rng: np.random.Generator, progress: Any) -> _Case:
    while True:
        u = rng.normal(size=(s, s))
        size = np.abs(u @ u.T)
        if size.max() <= 10 * size.min():
            break
    ascending = np.cumprod(np.concatenate([[1.0], rng.uniform(3.2, 8.0, s - 1)]))
    scale = _scaled(size, ascending, rng.uniform(0, 5))
    factor = np.sqrt(scale) * u
    progress.advance()
    end = 1.1 * float(pivots(factor @ factor.T, ascending)[0].max())
    return _Case(factor, ascending, check_all(scale * size, ascending).constants, end)


def _rank_one() -> _Case:
    """The counterexample to D.3: a = (18, 1), W(0) = 1e-66 everywhere."""
    ascending = np.array([1.0, 18.0])
    return _Case(np.full((2, 1), 1e-33), ascending, check_all(np.full((2, 2), 1e-66), ascending).constants, 45.0)


def _follow(cases: list[_Case], instants: int) -> tuple[list[Trajectory], str]:
    """Every case to its own end: the flow of a on time t is that of a × end on t / end."""
    shares = np.unique(np.concatenate([np.linspace(0, 1, instants), np.geomspace(1e-4, 1, instants)]))
    factors, strengths = np.zeros((len(cases), 3, 3)), np.zeros((len(cases), 3))
    for k, case in enumerate(cases):
        factors[k, : case.factor.shape[0], : case.factor.shape[1]] = case.factor
        strengths[k, : len(case.strengths)] = case.strengths * case.until
    found, status = flow_many(factors, strengths, 1.0, shares, keep=("jacobian",), rtol=1e-7)
    runs = []
    for k, case in enumerate(cases):
        s, times = len(case.strengths), case.until * shares
        jacobian = found["jacobian"][:, k, :s, :s]
        variables: dict[str, Any] = {
            "jacobian": (("time", "row", "column"), jacobian),
            "strength": (("coordinate",), case.strengths),
        }
        clock = {"paper_time": ("time", PAPER_CLOCK * times)}
        runs.append(xr.Dataset(variables, coords={"time": times, **clock}))
    return runs, status


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the appendix."""
    margin = trajectory["margin"].isel(time=0)
    judge = partial(check, paper=PAPER, size=size, sizes=("tiny", "laptop", "gpu", "paper"))
    found = [
        judge(
            f"Lemma {name} holds where the assumptions do: least margin (log)",
            where=f"Lemma {name}",
            values=list(margin.sel(lemma=name).values),
            relation=">=",
            threshold=-1e-6,
        )
        for name in LEMMAS
        if name != "D.3"
    ]
    top = trajectory["least"].sel(constant="D.5 top").values.ravel()
    return [
        *found,
        judge(
            "Lemma D.3 as printed is false, though all assumptions hold: its margin at rank one",
            where="Lemma D.3",
            values=float(trajectory["counterexample"].sel(lemma="D.3")),
            relation="<=",
            threshold=-1.0,
        ),
        judge(
            "Major entries never exceed 1 along the flow: largest w_ii at realistic scales",
            where="Lemma D.5",
            values=list(top),
            relation="<=",
            threshold=1 + 1e-5,
        ),
    ]
