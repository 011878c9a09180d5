"""Figure 2 d–f of the paper's first version: a head with full matrices, beyond the theory.

Claims and their thresholds: "learned incrementally" is read as one singular value at a time. When one value reaches
half of its end, how far has the next smaller one of the same matrix come, as a share of its own end? That share is the
overlap. Only values that end above a tenth of the largest count (smaller ones have not finished). Values that rise
together would show ½, the null; learning one at a time belongs to the limit α → 0, so that

- at the smallest α the overlap is at most ¼, half of the null;
- it falls with α, in every seed, for every two neighbours that have ended at both α. Not the largest overlap: at a
  smaller α more values end within the same rescaled time, and a new pair there does not mean that an old one rose.
  An overlap below the rounding of the computation counts as that: singular values of d × d matrices are known to
  d ε of the largest, and the end that one is divided by is at least a tenth of it, which makes 10 d ε.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np

from saddles import diagonal, figures
from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import LARGEST, Context, Experiment, Size, Within
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import PAPER, at_scale
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOGETHER = 0.5
"""The overlap of singular values that rise together."""
ENDED = 0.1
"""The end, of that of the largest, from which on a singular value counts as one that has risen."""


@dataclass(frozen=True)
class Settings:
    """Settings of full-head."""

    dim: Annotated[int, "rows and columns of the four matrices", Within(2, LARGEST)]
    samples: Annotated[int, "sequences in the data"]
    tokens: Annotated[int, "tokens in a sequence"]
    decades: Annotated[tuple[int, ...], "initial scales, α = 10^−decades, the largest α first"]
    until: Annotated[float, "rescaled time of the end"]
    points: Annotated[int, "saved instants"]
    seeds: Annotated[int, "teachers, each with initial weights of its own"]


def run(settings: Settings, context: Context) -> Trajectory:
    """The flow of several teachers and initial weights, at every α."""
    model = diagonal.FullHead(settings.dim)
    clock = np.linspace(0.0, settings.until, settings.points)
    seeds, parts, method = context.seeds(settings.seeds), [], diagonal.Flow(tolerance=1e-5)
    with bar("diagonal/full-head", len(seeds) * len(settings.decades)) as progress:
        for seed in seeds:
            task = diagonal.TeacherStudent(model, settings.samples, settings.tokens, seed)
            for decades in settings.decades:
                make = partial(simulate, at_scale(model, decades), task, method, times=clock, seed=seed)
                parts.append(context.part(f"seed-{seed}-{decades}", make))
                progress.advance()
    shape = (len(clock), len(seeds), len(settings.decades))
    values, loss = (np.stack([part[name] for part in parts], axis=1) for name in ("singular_value", "loss"))
    return make_trajectory(
        {
            "singular_value": (("time", "seed", "decade", "family", "mode"), values.reshape(*shape, *values.shape[2:])),
            "loss": (("time", "seed", "decade"), loss.reshape(shape)),
        },
        clock,
        unit="rescaled time, t / log(1/α)",
        coords={"seed": seeds, "decade": list(settings.decades), "family": ["key_query", "value_output"]},
        lab="diagonal",
        model=model,
        method=method,
        kind="simulated",
    )


def overlaps(values: np.ndarray) -> np.ndarray:
    """How far each singular value is, of its own end, when the next larger one is at half of its end.

    One number for each two neighbours, NaN where one of them has not risen; values are (time, mode).
    """
    ends = values[-1]
    halves = np.argmax(values >= 0.5 * ends, axis=0)
    pairs = np.arange(len(ends) - 1)
    apart = values[halves[:-1], pairs + 1] / np.where(ends[1:] > 0, ends[1:], np.nan)
    return np.where(ends[1:] > ENDED * ends[0], apart, np.nan)


def largest_rise(table: np.ndarray, dim: int) -> float:
    """By how much the overlap of two neighbours rises at most from one α to the next, rounding aside; (decade, pair).

    NaN where no two neighbours have risen at two successive α.
    """
    felt = np.maximum(table, dim * np.finfo(float).eps / ENDED)
    rises = np.diff(felt, axis=0)
    return float(np.nanmax(rises)) if np.isfinite(rises).any() else float("nan")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge how far singular values overlap in time."""
    values = trajectory["singular_value"].transpose("family", "seed", "decade", "time", "mode").values
    dim = values.shape[-1]
    result = []
    for rows, words, panel in zip(values, ("W_K W_Qᵀ", "W_V W_Oᵀ"), ("(e)", "(d)"), strict=True):
        table = np.array([[overlaps(one) for one in row] for row in rows])
        judge = partial(check, paper=PAPER, where=f"first version, Figure 2 {panel}", size=size, relation="<=")
        result += [
            judge(f"Singular values of {words} rise one at a time at the smallest α: how far the next one is, of its "
                  "end, when one is at half of its own", values=np.nan_to_num(table[:, -1]).max(axis=-1),
                  threshold=0.25, null=TOGETHER, against="values that rise together"),
            judge(f"… and the overlap of every two of {words} falls with α: largest change from one α to the next, "
                  "rounding aside", values=[largest_rise(one, dim) for one in table], threshold=0.0,
                  null=[largest_rise(np.roll(one, 1, axis=0), dim) for one in table], against="the smallest α first"),
        ]  # fmt: skip
    return result


def figure(trajectory: Trajectory) -> "Figure":
    """Singular values of both products, and the loss."""
    return figures.diagonal.full_head(trajectory)


_PAPER = Settings(dim=50, samples=1000, tokens=10, decades=(5, 16, 32), until=1000.0, points=401, seeds=1)

FULL_HEAD = Experiment(
    name="diagonal/full-head",
    title="A head with full matrices: singular values rise one at a time",
    paper=PAPER,
    sizes={
        "tiny": Size(5, Settings(dim=4, samples=40, tokens=4, decades=(2, 8), until=60.0, points=81, seeds=1)),
        "laptop": Size(6, Settings(dim=8, samples=200, tokens=6, decades=(3, 8, 32), until=150.0, points=301, seeds=2)),
        "gpu": Size(75, _PAPER),
        "paper": Size(5400, _PAPER),
    },
    run=run,
    claims=claims,
    figure=figure,
)
