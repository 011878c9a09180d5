"""What a caller asks of `simulate` and `predict`, checked the same way in every lab."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saddles.errors import SaddlesError


def check_keep(keep: Any, keepable: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that cannot be kept."""
    unknown = [name for name in keep or () if name not in keepable]
    if unknown:
        raise SaddlesError.about(f"keep={unknown!r} came", f"{', '.join(keepable)} can be kept", "use those names")
    return tuple(keep or ())


def check_times(times: Any) -> np.ndarray | None:
    """Increasing rescaled times of at least 0, or None."""
    if times is None:
        return None
    asked = np.asarray(times, dtype=float)
    if asked.ndim != 1 or not len(asked) or not np.isfinite(asked).all() or asked[0] < 0 or (np.diff(asked) <= 0).any():
        raise SaddlesError.about(
            f"times {times!r:.60} came", "increasing rescaled times of at least 0 are needed", "use numpy.linspace"
        )
    return asked
