"""How the rank of a change grows over a recorded or inspected training run, head by head."""

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures.spectra import need

SHARE = 0.1
"""A singular value counts as active above this share of the largest that its spectrum ever has."""


def rank_growth(heads: xr.Dataset, share: float = SHARE) -> xr.Dataset:
    """Count active singular values over time, and how many become active from one row to the next.

    A value is active above max(`share` · the largest σ₁ of its spectrum over all times, the noise floor). The
    count before the first row is 0, since the change is then zero. Two values that become active between two rows
    may still have come one after the other: rows close in time decide more.

    Args:
        heads: the group `heads` or `modules` of a recording or an inspection: `singular_value` over (time, …, index)
            and, where it is there, `noise_floor` over (time, …).
        share: of the largest value.

    Returns:
        `active` and `gain` (time, …), and over all spectra and rows: `rises` (rows in which a count rises), `single`
        (the share of those that rise by one), `largest_gain`, `falls` (the share of rows in which a count falls). Where
        a row has no spectrum (heads that a layer lacks, rows between whole spectra) both are NaN, and the next gain is
        counted from the last spectrum before.
    """
    need(heads, "singular_value")
    values = heads["singular_value"]
    if values.dims[0] != "time" or values.dims[-1] != "index":
        raise SaddlesError(
            f"singular_value must have the dimensions (time, …, index); it has {values.dims}. Give the group `heads`."
        )
    if not 0 < share < 1:
        raise SaddlesError.must_be("share", "between 0 and 1", share)
    level = share * values.max(["time", "index"])
    if "noise_floor" in heads:
        level = np.maximum(level, heads["noise_floor"].fillna(0.0))
    known = values.notnull().any("index")
    active = ((values > level) & (values > 0)).sum("index").transpose(*values.dims[:-1])
    gain = active.copy(data=_gains(active.values, known.values))
    if not known.all():  # whole numbers otherwise
        active, gain = active.where(known), gain.where(known)
    rises = int((gain > 0).sum())
    later = int((known.cumsum("time") > 1).where(known, False).sum())
    return xr.Dataset(
        {
            "active": active,
            "gain": gain,
            "rises": rises,
            "single": float((gain == 1).sum()) / rises if rises else np.nan,
            "largest_gain": int(gain.max()) if known.any() else 0,
            "falls": int((gain < 0).sum()) / later if later else 0.0,
        },
        attrs={"share": share},
    )


def _gains(active: np.ndarray, known: np.ndarray) -> np.ndarray:
    """How far each count lies above the last one that is known, 0 before the first; 0 where it is not known itself."""
    last, gains = np.zeros_like(active[0]), np.zeros_like(active)
    for row in range(len(active)):
        gains[row] = np.where(known[row], active[row] - last, 0)
        last = last + gains[row]
    return gains
