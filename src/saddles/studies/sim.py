"""Order and speed of concept learning in a diffusion model against the structured identity mapping (SIM) task.

The paper compares the two by eye (section 5). Here SIM gets the signals of the images: concept p of the images has the
signal μ_p (the difference of two class means in pixels) and the spread σ_p within a class, and the classes 00, 10 and
01 are SIM's clusters at 0, μ_1 e_1 and μ_2 e_2. So

    a_p = σ_p² + μ_p²/3,   and Theorem 4.1 from W(0) = 0 learns concept p as 1 − e^{−a_p t}.

The concept with the larger a is learned first, and learning times are proportional to 1/a. The two clocks have no
common unit (SIM's is gradient time of a linear network, the model's counts steps of AdamW), so only what does not
depend on a unit is compared: which concept comes first, and how the ratio of the two times of one run follows from
the signals.
"""

import os

import numpy as np
import xarray as xr

from saddles.core.dispatch import predict
from saddles.core.store import load
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.errors import SaddlesError
from saddles.measures.concept_space import learning_times
from saddles.measures.lines import fit_line, rank_correlation

LEVEL = 0.5
"""A concept is learned once half of it is there and stays."""
SAME = 0.01
"""Relative difference of signal ratios up to which two trajectories have the same task."""

DURATION = 5
"""SIM is followed until 5/a of its slowest concept: 1 − e^{−5}, more than 99 %, is learned by then."""

INSTANTS = 2001
"""Instants at which SIM is evaluated."""

Stored = xr.Dataset | str | os.PathLike[str]


def sim_for(diffusion: Stored) -> Trajectory:
    """SIM's prediction (Theorem 4.1 from zero weights) at the signals of a diffusion trajectory.

    Returns `output` (time, separation, coordinate), `target` and `strength` a (separation, coordinate); time in units
    of 1/(largest a of all separations).
    """
    from saddles.concepts import Identity, OneLayer, OneLayerTheory

    run = _opened(diffusion, ("signal", "spread"))
    signal, spread = (run[name].transpose("separation", "coordinate").values for name in ("signal", "spread"))
    scale = np.sqrt(3) / signal.max()  # the largest μ²/3 becomes 1
    tasks = [
        Identity(mu=scale * mu, sigma=scale * sigma, zero_cluster=True)
        for mu, sigma in zip(signal, spread, strict=True)
    ]
    strengths = np.stack([task.strengths for task in tasks])
    times = np.linspace(0.0, float(DURATION / strengths.min()), INSTANTS)
    rows = [
        predict(OneLayer(np.zeros((2, 2))), task, OneLayerTheory(), times=times, keep=())["output"].values
        for task in tasks
    ]
    names = ("separation", "coordinate")
    return make_trajectory(
        {
            "output": (("time", *names), np.stack(rows, axis=1)),
            "target": (names, np.stack([task.target for task in tasks])),
            "strength": (names, strengths),
        },
        times,
        unit="gradient time, signals scaled to a largest of √3",
        coords={"separation": run["separation"].values, "coordinate": run["coordinate"].values},
        lab="studies",
        kind="predicted",
        theory="Theorem 4.1 of yang2025concepts from zero weights, with a cluster at 0",
    )


def order_against_sim(diffusion: Stored, sim: Stored | None = None) -> xr.Dataset:
    """Which concept is learned first, and how much sooner, in a diffusion model and in SIM.

    Args:
        diffusion: a trajectory of lab `diffusion`, or its folder: `output` (time, separation, seed, point, coordinate).
        sim: a trajectory with `output` (time, separation, coordinate) and `target` (separation, coordinate), or its
            folder; its signal ratios must be those of the images. None computes it with `sim_for`.

    Returns:
        measured (separation, seed, coordinate), predicted (separation, coordinate): times from which half is learned
        and stays learned, NaN where it is not, each in its own clock;
        colour_first (separation, seed), predicted_colour_first (separation), agrees (separation, seed); a run in which
        neither is learned never agrees;
        lead, predicted_lead: log of the time of size over that of colour, positive where colour is first;
        agreement: share of all runs that agree;
        over the runs in which both are learned: correlation (Spearman's ρ of lead and predicted lead), slope with its
        95 % interval slope_low, slope_high (of lead against predicted lead; 1 where times are proportional to 1/a, 0
        where signals do not matter), and runs, their number.
    """
    run = _opened(diffusion, ("output", "signal", "target"))
    theory = _opened(sim, ("output", "target")) if sim is not None else sim_for(run)
    _same_signals(run, theory)
    path = run["output"].sel(point="11", drop=True)
    measured = learning_times(path, run["target"], LEVEL, for_good=True)["learned_at"]
    measured = measured.transpose("separation", "seed", "coordinate")
    predicted = learning_times(theory["output"], theory["target"], LEVEL, for_good=True)["learned_at"]
    predicted = predicted.transpose("separation", "coordinate")
    late, late_sim = measured.fillna(np.inf), predicted.fillna(np.inf)
    first = late.sel(coordinate="colour") < late.sel(coordinate="size")
    first_sim = late_sim.sel(coordinate="colour") < late_sim.sel(coordinate="size")
    known = (late < np.inf).any("coordinate")
    result = xr.Dataset(
        {
            "measured": measured,
            "predicted": predicted,
            "colour_first": first,
            "predicted_colour_first": first_sim,
            "agrees": (first == first_sim) & known,
            "lead": _lead(measured),
            "predicted_lead": _lead(predicted),
        },
        attrs={"level": LEVEL},
    ).reset_coords(drop=True)
    regression = _regression(result["lead"], result["predicted_lead"])
    return result.assign({"agreement": result["agrees"].mean(), **regression})


def _lead(times: xr.DataArray) -> xr.DataArray:
    share = times.sel(coordinate="size", drop=True) / times.sel(coordinate="colour", drop=True)
    return share.copy(data=np.log(share.values))


def _regression(lead: xr.DataArray, predicted: xr.DataArray) -> dict[str, float]:
    y = lead.transpose("separation", "seed").values
    x = np.broadcast_to(predicted.values[:, None], y.shape)
    used = np.isfinite(x) & np.isfinite(y)
    names = ("correlation", "slope", "slope_low", "slope_high")
    if used.sum() < 3 or np.ptp(x[used]) == 0:  # no interval from two points, no slope from one abscissa
        return dict.fromkeys(names, np.nan) | {"runs": int(used.sum())}
    line = fit_line(x[used], y[used])
    values = (float(rank_correlation(x[used], y[used])), line.slope, line.low, line.high)
    return dict(zip(names, values, strict=True)) | {"runs": int(used.sum())}


def _opened(given: Stored, needed: tuple[str, ...]) -> xr.Dataset:
    run = given if isinstance(given, xr.Dataset) else load(given)
    missing = [name for name in needed if not isinstance(run, xr.Dataset) or name not in run]
    if missing or "separation" not in run.dims:
        raise SaddlesError(
            f"The trajectory has no {', '.join(missing) or 'axis `separation`'}. The first one must be a run of "
            "diffusion/figure-6a; the second one, SIM's at the same signals, can be left out."
        )
    return run


def _same_signals(run: xr.Dataset, theory: xr.Dataset) -> None:
    ours, theirs = (
        (one.sel(coordinate="colour") / one.sel(coordinate="size")).values for one in (run["signal"], theory["target"])
    )
    if ours.shape != theirs.shape or np.abs(theirs / ours - 1).max() > SAME:
        raise SaddlesError(
            "Both trajectories must have the same ratios of signals, separation by separation; got "
            f"{np.round(ours, 3).tolist()} and {np.round(theirs, 3).tolist()}. Leave the second one out to compute it."
        )
