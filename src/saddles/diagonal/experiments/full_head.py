"""Figure 2 d–f of the paper's first version: a head with full matrices, beyond the theory.

Claims and their thresholds: "learned incrementally" is read as one singular value at a time: when one reaches half of
its end, the next smaller one of the same matrix is below half of its own. Counted among those that end above a tenth
of the largest (smaller ones have not finished). And the order is by size: the share of such pairs in order is 1.
"""

from functools import partial
from typing import Any

import numpy as np

from saddles.core.claim import Claim, check
from saddles.core.dispatch import simulate
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diagonal.experiments.agreement import log_alpha
from saddles.diagonal.method import Flow
from saddles.diagonal.model import FullHead
from saddles.diagonal.task import TeacherStudent
from saddles.figures.diagonal import full_head as figure
from saddles.runtime.progress import bar

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """The flow of several teachers and initial weights."""
    model = FullHead(settings["dim"])
    clock = np.linspace(0.0, settings["until"], settings["points"])
    seeds, parts = context.seeds(settings["seeds"]), []
    method = Flow(log_alpha(settings["decades"]), tolerance=1e-5)
    with bar("diagonal/full-head", len(seeds)) as progress:
        for seed in seeds:
            task = TeacherStudent(model, settings["samples"], settings["tokens"], seed)
            make = partial(simulate, model, task, method, times=clock, seed=seed)
            parts.append(context.part(f"seed-{seed}", make))
            progress.advance()
    return make_trajectory(
        {
            "singular_value": (
                ("time", "seed", "family", "mode"),
                np.stack([p["singular_value"] for p in parts], axis=1),
            ),
            "loss": (("time", "seed"), np.stack([p["loss"] for p in parts], axis=1)),
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
            paper="boix2023rank",
            where=f"first version, Figure 2 {panel}",
            values=[max(_next(one[i])) for one in values if _next(one[i])],
            relation="<=",
            threshold=0.5,
            size=size,
        )
        for i, (words, panel) in enumerate((("W_K W_Qᵀ", "(e)"), ("W_V W_Oᵀ", "(d)")))
    ]
