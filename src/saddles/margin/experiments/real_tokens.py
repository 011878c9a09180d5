"""Beyond the theorem: the same on word vectors of real text (positive mutual information and its eigenvectors).

Real scores satisfy neither Assumption 2 nor 3, so a flow may settle on a token that is not optimal; such runs are
counted and left out of the comparison. Claims, on runs that separate: the expectations of section 4.2, smaller nuclear
norm of K and Q apart and smaller Frobenius norm of one joint matrix, in nine of ten; the ℓ1 norm of the diagonal layer
is below that of the ℓ2 max-margin solution, the bias of one trained β, in nine of ten (wherever there is an ℓ1 bias
at all, it must beat the other one). Nulls: a half of the comparisons, which two parametrisations without a difference
give; for the diagonal layer the same comparison at the first norm, before the direction has turned.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import xarray as xr

from saddles import figures, margin, measures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.margin.experiments.general import compare
from saddles.margin.experiments.norm_grid import PAPER, Draws, Grid, each, gather, norm_grid, on_norms, piece

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PYTHON = {"text": "python"}
"""What takes the place of WikiText where it is not at hand."""
TRIES = 50
"""Draws of sequences before the search for separable ones gives up."""


@dataclass(frozen=True, kw_only=True)
class Settings(Draws):
    """Settings of real-tokens."""

    text: Annotated[str, "data set whose words are the tokens"]
    words: Annotated[int, "how many of its words are read"]
    vocabulary: Annotated[int, "most frequent words that get a vector"]
    scale: Annotated[float, "standard deviation of the entries of K and Q at the start"]
    omega: Annotated[float, "initial scale ω₀ of the diagonal layer"]


def run(settings: Settings, context: Context) -> Trajectory:
    """Diagonal, factored and joint flows on draws of sequences from the text."""
    words = margin.text.read_words(settings.text, settings.words)
    embedding = margin.text.embed(words, settings.vocabulary, settings.dim)
    grid, seeds = norm_grid(1.0, settings.until), context.seeds(settings.instances)
    pieces = {f"seed-{seed}": partial(_instance, embedding, settings, grid, seed) for seed in seeds}
    return gather(each(context, "margin/real-tokens", pieces), grid, "instance", seeds, text=settings.text)


def _instance(embedding: "margin.text.Embedding", settings: Settings, grid: Grid, seed: int) -> xr.Dataset:
    task, best = _separable(embedding, settings, seed)
    wide = compare(task, margin.FactoredAttention(scale=settings.scale), settings.method, grid, seed)
    flow = simulate(margin.DiagonalAttention(settings.omega), task, settings.method)
    flow = flow.assign(l1=measures.unit_margin(flow)["l1"] / best.objective - 1)
    other = np.abs(margin.max_margin(task, "frobenius", diagonal=True).solution).sum() / best.objective - 1
    checked = {one.name: one.value for one in margin.check_assumptions(task).checks}
    numbers = {
        "l1_optimum": best.objective, "l2_solution_l1": float(other),
        "initial_loss": checked["3 initial loss"], "score_spread": checked["2 equal other scores"],
    }  # fmt: skip
    alone = piece({"diagonal_l1": on_norms(flow, grid, ("l1",))["l1"]}, numbers, grid)
    return wide.merge(alone, combine_attrs="override")


def _separable(
    embedding: "margin.text.Embedding", settings: Settings, seed: int
) -> "tuple[margin.Tokens, margin.Certified]":
    """The first draw that a diagonal W separates, with its ℓ1 optimum."""
    for attempt in range(TRIES):
        task, _ = margin.text.sequences(embedding, settings.n, settings.length, seed + attempt)
        try:
            return task, margin.max_margin(task, "l1")
        except margin.InfeasibleError:
            continue
    raise SaddlesError(f"No diagonal W separates any of {TRIES} draws of sequences. Raise dim, or lower n.")


def _share(values: np.ndarray, fine: np.ndarray) -> float:
    return float(values[fine].mean()) if fine.any() else float("nan")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge the runs that separate."""
    judge = partial(
        check, paper=PAPER, size=size, where="section 4.2, beyond the theorems", relation=">=", threshold=0.9
    )
    last = {name: trajectory[name].values[-1] for name in
            ("factored_nuclear", "factored_frobenius", "joint_nuclear", "joint_frobenius", "diagonal_l1")}  # fmt: skip
    both = np.isfinite(last["factored_nuclear"]) & np.isfinite(last["joint_nuclear"])
    alone, other = np.isfinite(last["diagonal_l1"]), trajectory["l2_solution_l1"].values
    return [
        judge("K and Q apart have the smaller nuclear norm at unit margin: share of runs that separate",
              values=_share(last["factored_nuclear"] < last["joint_nuclear"], both), null=0.5,
              against="a coin"),
        judge("one joint matrix has the smaller Frobenius norm at unit margin: share of runs that separate",
              values=_share(last["joint_frobenius"] < last["factored_frobenius"], both), null=0.5,
              against="a coin"),
        judge("a diagonal layer has a smaller ℓ1 norm than the ℓ2 solution: share of runs that separate",
              values=_share(last["diagonal_l1"] < other, alone),
              null=_share(trajectory["diagonal_l1"].values[0] < other, alone), against="the start"),
    ]  # fmt: skip


def figure(trajectory: Trajectory) -> "Figure":
    """Both norms on real tokens, and the diagonal layer against both of its candidates."""
    return figures.margin.real_tokens(trajectory)


_text = partial(Settings, text="wikitext2", words=300_000, vocabulary=1000, scale=1e-3, omega=0.5, until=1e4)

REAL_TOKENS = Experiment(
    name="margin/real-tokens",
    title="Beyond the theorem: the same on word vectors of real text",
    paper=PAPER,
    needs=("text",),
    sizes={
        "tiny": Size(5, _text(words=30_000, vocabulary=300, n=2, length=4, dim=12, instances=2, until=1e3), PYTHON),
        "laptop": Size(8, _text(n=4, length=5, dim=24, instances=12), PYTHON),
        "gpu": Size(150, _text(n=6, length=6, dim=32, instances=50)),
        "paper": Size(600, _text(n=8, length=8, dim=48, instances=50)),
    },
    run=run,
    claims=claims,
    figure=figure,
)
