"""Values of an experiment's settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saddles.errors import SaddlesError


def flat(value: object) -> list[object]:
    """The members of a list, or the value alone."""
    return list(value) if isinstance(value, list | tuple) else [value]


def read_like(example: object, value: Any, key: str) -> Any:
    """Read a value (often text from the command line) as the type of the setting's present value."""
    try:
        if isinstance(example, bool):
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(example, int):
            number = float(value)
            if number != int(number):
                raise ValueError
            return int(number)
        if isinstance(example, float):
            return float(value)
        if isinstance(example, list | tuple):
            parts = value.split(",") if isinstance(value, str) else list(np.atleast_1d(value).tolist())
            return type(example)(read_like(example[0], part, key) for part in parts)
        return str(value)
    except (ValueError, KeyError, TypeError, OverflowError, IndexError) as error:
        like = ",".join(map(str, example)) if isinstance(example, list | tuple) and example else str(example)
        raise SaddlesError.must_be(key, f"a value like {like}", value) from error


def check_different(name: str, values: Sequence[float], least: int = 2) -> None:
    """Refuse a list with fewer numbers than are compared, or with one twice."""
    if len(values) < least or len(set(values)) < len(values):
        raise SaddlesError.must_be(name, f"{least} or more different numbers", list(values))
