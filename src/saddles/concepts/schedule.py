"""The order of events in the Jacobian of the symmetric pair: predicted, and read off a run."""

import numpy as np
import xarray as xr

from saddles.concepts.assumptions import check_pair
from saddles.concepts.observe import PAPER_CLOCK
from saddles.concepts.pivots import pivots
from saddles.concepts.task import Identity
from saddles.core.trajectory import Trajectory

Row = tuple[float, str, int, int]
"""An event: its time, what happens, and the entry (row, column) of W, counted from 1."""


def predicted_events(model: object, task: Identity, *, seed: int = 0) -> xr.Dataset:
    """Predict the events of section 4.2.1 from W(0): which entry grows when, and which is suppressed when.

    - "growth" of major p: w_pp passes ½ at the pivot law's t_p.
    - "suppression" of the minor entry (p, j), a_p > a_j: G = S once w_pp = 2(a_p+a_j)/(3a_p+a_j), the
      noise and w_jj neglected. On the logistic curve through ½ at t_p that is
      t_p + log(2(a_p+a_j)/(a_p−a_j)) / (4a_p). For a tie in a it never happens.
    - "initial growth" ends when the first major entry grows.

    Args:
        model: a `SymmetricTwoLayer`, or another model with `product(task, seed)`.
        task: the task.
        seed: the run's, where the start is drawn.

    Returns, along `event` in order of time: kind, row, column (concepts from 1), `at` and
    `at_paper` in the paper's clock (infinite where it never happens).
    """
    pair, strengths = check_pair(model, "The pivot law"), task.strengths[: task.concepts]
    times, _ = pivots(task.to_concepts(pair.product(task, seed)), strengths)
    rows: list[Row] = [(float(times.min()), "initial growth ends", 0, 0)]
    for p, a in enumerate(strengths):
        rows.append((float(times[p]), "growth", p + 1, p + 1))
        for j, b in enumerate(strengths):
            if a > b or (a == b and p < j):
                wait = np.log(2 * (a + b) / (a - b)) / (4 * a) if a > b else np.inf
                rows.append((float(times[p] + wait), "suppression", p + 1, j + 1))
    return _table(rows)


def events(trajectory: Trajectory) -> xr.Dataset:
    """Read the same events off a run: w_pp passing ½, and |w_pj| at its largest.

    Entries that never get there within the run are left out, and so are minor entries that are
    largest at the start (they only decay) or at the end (they still grow).
    """
    clock, jacobian = trajectory["time"].values, trajectory["jacobian"].values
    strengths = trajectory["strength"].values
    concepts = int((strengths > 0).sum())
    rows: list[Row] = []
    for p in range(concepts):
        own = jacobian[:, p, p]
        if (own >= 0.5).any():
            rows.append((_crossing(clock, own, 0.5), "growth", p + 1, p + 1))
        for j in range(concepts):
            size = np.abs(jacobian[:, p, j])
            peak = int(np.argmax(size))
            if strengths[p] > strengths[j] and 0 < peak < len(clock) - 1:
                rows.append((float(clock[peak]), "suppression", p + 1, j + 1))
    growths = [row[0] for row in rows if row[1] == "growth"]
    if growths:
        rows.append((min(growths), "initial growth ends", 0, 0))
    return _table(rows)


def _crossing(clock: np.ndarray, values: np.ndarray, level: float) -> float:
    first = int(np.argmax(values >= level))
    if first == 0:
        return float(clock[0])
    low, high = values[first - 1], values[first]
    return float(clock[first - 1] + (level - low) / (high - low) * (clock[first] - clock[first - 1]))


def _table(rows: list[Row]) -> xr.Dataset:
    at, kind, row, column = zip(*sorted(rows), strict=True) if rows else ((), (), (), ())
    return xr.Dataset(
        {
            "kind": ("event", np.array(kind, dtype=str)),
            "row": ("event", np.array(row, dtype=int)),
            "column": ("event", np.array(column, dtype=int)),
            "at": ("event", np.array(at, dtype=float)),
            "at_paper": ("event", PAPER_CLOCK * np.array(at, dtype=float)),
        }
    )


def loss_accounts(trajectory: Trajectory) -> xr.Dataset:
    """Split the change of the test loss between instants by what the entries of W do.

        dℓ = Σ_k (f_k − x̂_k) Σ_p μ_p dw_kp,   trapezium rule, exact for quadratic ℓ,

    into growing major entries, growing minor entries (|w| rising) and suppressed ones (|w|
    falling). Their sum is the change of the test loss up to rounding.

    Returns major_growth, minor_growth, suppressed along `time`, cumulative from the start.
    """
    jacobian, target = trajectory["jacobian"].values, trajectory["target"].values
    change = np.diff(jacobian, axis=0)
    gap = trajectory["output"].values - target
    middle = (gap[1:] + gap[:-1]) / 2
    share = middle[:, :, None] * change * target[None, None, :]
    growing = np.abs(jacobian[1:]) > np.abs(jacobian[:-1])
    major = np.zeros(jacobian.shape[1:], dtype=bool)
    index = np.arange(int((trajectory["strength"].values > 0).sum()))
    major[index, index] = True
    parts = {
        "major_growth": share * (major & growing),
        "minor_growth": share * (~major & growing),
        "suppressed": share * ~growing,
    }
    zero = np.zeros(1)
    return xr.Dataset(
        {n: ("time", np.concatenate([zero, np.cumsum(v.sum(axis=(1, 2)))])) for n, v in parts.items()},
        coords={"time": trajectory["time"]},
    )
