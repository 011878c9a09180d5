"""Values of an experiment's settings: read as their types, and held to their bounds."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np

from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Within:
    """Bounds of a setting, ends included: `Annotated[float, "what it is", Within(-10, 10)]`.

    A setting without it takes finite numbers up to LARGEST. Where every size has whole numbers from 1 on, numbers from
    0 on, or positive ones, a change must have them too.
    """

    low: float
    high: float


LARGEST = 10**9
"""More than this of anything is a slip of the keyboard."""


def as_dict(settings: object) -> dict[str, Any]:
    """Settings as a plain dictionary, in the order of their fields."""
    if isinstance(settings, dict):
        return dict(settings)
    assert dataclasses.is_dataclass(settings)
    return {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}


def flat(value: object) -> list[object]:
    """The members of a list, or the value alone."""
    return list(value) if isinstance(value, list | tuple) else [value]


def read_like(example: object, value: Any, key: str, hint: object = None) -> Any:
    """Read a value (often text from the command line) as the type of the setting's present value.

    Args:
        hint: the setting's annotation, which decides where the present value does not tell: see `typical`.
    """
    if _may_be_none(hint) and (value is None or str(value).lower() == "none"):
        return None
    told = typical(example, hint)
    if isinstance(told, list | tuple) and not told and isinstance(value, str):
        what = "a list in Python: its default is empty, and its annotation does not say of what"
        raise SaddlesError.must_be(key, what, value, "An annotation such as tuple[float, ...] does")
    try:
        return _read(told, value)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        like = ",".join(map(str, told)) if isinstance(told, list | tuple) and told else str(told)
        raise SaddlesError.must_be(key, f"a value like {like}", value) from error


def typical(example: object, hint: object) -> object:
    """A value of the setting that tells its type.

    The present value, unless the annotation knows more: of an empty list, of None, and of a whole number where any
    number may stand.
    """
    origin, members = _without_none(hint)
    if isinstance(example, list | tuple) and example:
        inner = members[0] if origin in (list, tuple, Sequence) and members else None
        told = [typical(member, inner) for member in example]
        mixed = any(isinstance(member, float) for member in told)
        return type(example)(float(one) if mixed and type(one) is int else one for one in told)
    if example is None or isinstance(example, list | tuple):
        found = _invented(origin, members)
        if isinstance(example, list | tuple) and isinstance(found, list | tuple):
            return type(example)(found)
        return example if found is None else found
    return float(example) if type(example) is int and origin is float else example


def check_bounds(key: str, value: object, usual: Sequence[object], hint: object, within: Within | None) -> None:
    """Refuse numbers that are not within the bounds; where there are none, those unlike the `usual` values."""
    numbers = [number for number in flat(value) if isinstance(number, int | float)]
    if not numbers or isinstance(numbers[0], bool):
        return
    if within is None:
        given = [one for one in usual if one is not None and flat(one)]
        known = [number for one in given for number in flat(typical(one, hint)) if isinstance(number, int | float)]
        smallest = min(known, default=-math.inf)
        whole = all(isinstance(number, int) for number in known)
        low = -math.inf if smallest < 0 else 1 if whole and smallest >= 1 else 0
        if not whole and smallest > 0 and min(numbers) <= 0:
            raise SaddlesError.must_be(key, "positive", min(numbers))
        within = Within(low, max([LARGEST, *known]))
    for number in numbers:
        if not (math.isfinite(number) and within.low <= number <= within.high):
            between = f"between {within.low:,} and {within.high:,}"
            what = f"at most {within.high:,}" if within.low == -math.inf else between
            raise SaddlesError.must_be(key, what, number)


def check_different(name: str, values: Sequence[float], least: int = 2) -> None:
    """Refuse a list with fewer numbers than are compared, or with one twice."""
    if len(values) < least or len(set(values)) < len(values):
        raise SaddlesError.must_be(name, f"{least} or more different numbers", list(values))


def _read(example: object, value: Any) -> Any:
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
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
        else:  # NumPy would make text of the numbers of a mixed list
            parts = value if isinstance(value, list | tuple) else np.atleast_1d(value).tolist()
        return type(example)(_read(example[0], part) if example else part for part in parts)
    if value is None or (isinstance(value, Iterable) and not isinstance(value, str)):
        raise TypeError
    return str(value)


_EXAMPLES: dict[object, tuple[object, object]] = {
    bool: (True, False), int: (1, 2), float: (1.0, 2.0), str: ("one", "two"),
}  # fmt: skip


def _invented(origin: object, members: tuple[Any, ...]) -> object:
    """A value of the annotated type; None where that is none of the plain types or a list of one of them."""
    if origin in (list, tuple, Sequence):
        pair = _EXAMPLES.get(members[0] if members else None)
        return None if pair is None else list(pair) if origin is list else pair
    return _EXAMPLES[origin][0] if origin in _EXAMPLES else None


def _alternatives(hint: object) -> list[object]:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def _may_be_none(hint: object) -> bool:
    return hint is not None and NoneType in _alternatives(hint)


def _without_none(hint: object) -> tuple[Any, tuple[Any, ...]]:
    """The annotated type and those of its members; of `int | float` it is float."""
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    kind = float if float in kinds else kinds[0] if len(kinds) == 1 else None
    return get_origin(kind) or kind, get_args(kind)
