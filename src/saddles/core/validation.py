"""Arguments of `simulate` and `predict`, checked the same way in every lab."""

from collections.abc import Iterable, Sequence

import numpy as np

from saddles.errors import SaddlesError

PRECISIONS = ("float64", "float32")


def check_keep(keep: object, keepable: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that cannot be kept."""
    if isinstance(keep, str):
        raise SaddlesError.must_be("keep", "a list of names", keep, f"Write keep=[{keep!r}]")
    names = tuple(keep) if isinstance(keep, Iterable) else ()
    if keep is not None and not isinstance(keep, Iterable):
        raise SaddlesError.must_be("keep", "a list of names", keep)
    for name in names:
        if name not in keepable:
            raise SaddlesError.must_be("keep", f"names out of {', '.join(keepable) or 'nothing'}", name)
    return names


def check_times(times: object) -> np.ndarray | None:
    """Increasing finite times of at least 0, or None."""
    if times is None:
        return None
    try:
        checked = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        checked = np.array(np.nan)
    good = checked.ndim == 1 and checked.size and np.isfinite(checked).all() and checked[0] >= 0
    if not good or (np.diff(checked) <= 0).any():
        raise SaddlesError.must_be(
            "times", "increasing numbers of at least 0", times, "Use numpy.linspace(0, end, 201)"
        )
    return checked


def check_seeds(seed: object) -> list[int] | int:
    """One seed or a list of them, as plain non-negative integers."""
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        numbers = [seed]
    elif isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str) and len(seed):
        numbers = list(seed)
    else:
        numbers = [-1]
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in numbers):
        raise SaddlesError.must_be("seed", "an integer of at least 0, or a list of them", seed)
    return int(seed) if isinstance(seed, int | np.integer) else [int(n) for n in numbers]


def check_precision(precision: object) -> None:
    """Refuse anything but the two floating-point types."""
    if precision not in PRECISIONS:
        raise SaddlesError.must_be("precision", "'float64' or 'float32'", precision)
