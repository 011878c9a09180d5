"""The initial scale α of the weights, a field of the models, held as log α."""

import math
import warnings
from collections.abc import Sequence

import numpy as np

from saddles.errors import SaddlesError

LogAlpha = float | Sequence[float] | np.ndarray | None
"""log α, a list or an array of them (which adds the axis `log_alpha`), or None where it is not set."""

SMALLEST = -300.0
"""log α below which weights are not held as ordinary numbers: e^−300 ≈ 1e-130, whose square float64 still holds."""


def check_log_alpha(log_alpha: LogAlpha) -> None:
    """Refuse α ≥ 1 and what is not a number, also in a list; None is not set."""
    values = log_alpha if isinstance(log_alpha, Sequence | np.ndarray) else [log_alpha]
    for value in values:
        if value is None and values is not log_alpha:
            continue
        if not isinstance(value, int | float) or not (math.isfinite(value) and value < 0):
            raise SaddlesError.must_be(
                "log_alpha", "a negative number, the natural logarithm of an α below 1", value,
                "α = 1e-32 is log_alpha=-32*math.log(10)",
            )  # fmt: skip


def warn_moved(owner: object, log_alpha: LogAlpha) -> None:
    """Check and warn where the scale is given to a method or theory, as it was before it became the model's."""
    check_log_alpha(log_alpha)
    if log_alpha is not None:
        warnings.warn(
            f"`log_alpha` is a field of the model now: write LinearDiagonal(dim, log_alpha=...) instead of "
            f"{type(owner).__name__}(log_alpha=...), which the next release removes.",
            DeprecationWarning,
            stacklevel=4,  # __post_init__, the generated __init__, and the caller
        )


def scale_of(model: object, method: object = None) -> float:
    """The log α of a run: the model's, or the one that the method was given in the old spelling."""
    own, given = getattr(model, "log_alpha", None), getattr(method, "log_alpha", None)
    name = type(model).__name__
    if own is not None and given is not None:
        raise SaddlesError(
            f"`log_alpha` is given twice: {own} to {name} and {given} to {type(method).__name__}. Give it to the model."
        )
    scale = own if own is not None else given
    if scale is None:
        raise SaddlesError(
            f"{name} needs an initial scale α. Give its logarithm, for instance {name}(..., log_alpha=math.log(1e-4))."
        )
    return float(scale)


def refuse_tiny(log_alpha: float, model: object, hint: str) -> None:
    """Refuse a scale at which the weights would vanish as ordinary numbers."""
    if log_alpha < SMALLEST:
        raise SaddlesError(
            f"`log_alpha` of {type(model).__name__} must be at least {SMALLEST:g} here, where weights are held as "
            f"ordinary numbers; got {log_alpha:.6g}. {hint}"
        )
