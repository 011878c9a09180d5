"""Arguments of `simulate` and `predict`, checked the same way in every lab."""

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TypeGuard, TypeVar, get_args

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


LABELS = 2**63
"""Seeds below this can label an axis: arrays of whole numbers hold no larger ones."""


def check_seeds(seed: object) -> list[int] | int:
    """One seed or a list of them, as plain non-negative integers."""
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        numbers = [seed]
    else:
        listed = np.asarray(seed).tolist() if getattr(seed, "ndim", 0) == 1 else seed  # arrays, columns of a table
        numbers = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) and listed else [-1]
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in numbers):
        raise SaddlesError.must_be("seed", "an integer of at least 0, or a list of them", seed)
    if not isinstance(seed, int | np.integer) and max(numbers) >= LABELS:
        raise SaddlesError.must_be("seed", "from 0 to 2⁶³ − 1 each, where it is a list", seed)
    return int(seed) if isinstance(seed, int | np.integer) else [int(n) for n in numbers]


def check_seed(seed: object) -> int:
    """One seed, as a plain non-negative integer."""
    if not is_whole(seed) or seed < 0:
        raise SaddlesError.must_be("seed", "at least 0" if is_whole(seed) else "a whole number", seed)
    return int(seed)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, of Python or NumPy, and not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int) -> None:
    """Refuse anything but an integer of at least so much."""
    if not is_whole(value) or value < least:
        raise SaddlesError.must_be(name, f"a whole number of at least {least}", value)


def check_precision(precision: object) -> None:
    """Refuse anything but the two floating-point types."""
    if precision not in PRECISIONS:
        raise SaddlesError.must_be("precision", "'float64' or 'float32'", precision)


Made = TypeVar("Made")

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
"""How messages call the plain types."""


def arguments_explained(kind: type[Made]) -> type[Made]:
    """Decorate a class: whatever its constructor raises because of an argument becomes one sentence.

    A whole number that is none, and a seed below 0, are refused here: most constructors would take them, and fail long
    after. Nothing else is checked where the constructor succeeds. Arguments that are missing, or that it does not have,
    stay Python's own TypeError, which names them.
    """
    make = kind.__init__
    signature = inspect.signature(make)
    whole = [name for name, one in signature.parameters.items() if int in (kinds := _plain(one.annotation))
             and float not in kinds]  # fmt: skip

    @functools.wraps(make)
    def init(self: Made, *words: object, **named: object) -> None:
        try:
            make(self, *words, **named)
        except SaddlesError:
            raise
        except Exception as error:
            try:
                given = signature.bind(self, *words, **named).arguments
            except TypeError:
                raise error from None
            raise _misfit(kind, given, error) from error
        if whole:
            _check_whole(whole, signature.bind(self, *words, **named).arguments)

    kind.__init__ = init
    return kind


def _check_whole(names: Sequence[str], given: Mapping[str, object]) -> None:
    """Refuse what is not a whole number (or None), and a seed that no generator takes."""
    for name in names:
        value = given.get(name)
        if value is not None and not _is(value, int):
            raise SaddlesError.must_be(name, "a whole number", value)
        if name == "seed" and isinstance(value, int | np.integer) and value < 0:
            raise SaddlesError.must_be(name, "a whole number of at least 0", value)


def _plain(hint: object) -> tuple[type, ...]:
    """The types of a hint that is one of the plain types, or a union of them and None; else none."""
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    known = tuple(one for one in (*_WORDS, NoneType) if one in parts)
    return known if len(known) == len(parts) else ()


def _misfit(kind: type, given: Mapping[str, object], error: Exception) -> SaddlesError:
    """Name the first argument whose plain type is another one, else what was raised."""
    hints = {name: parameter.annotation for name, parameter in inspect.signature(kind).parameters.items()}
    for name, value in given.items():
        plain = _plain(hints.get(name, inspect.Parameter.empty))
        if plain and not any(_is(value, one) for one in plain):
            what = " or ".join(_WORDS.get(one, "None") for one in plain if not (one is int and float in plain))
            return SaddlesError.must_be(name, what, value)
    first = next(iter(str(error).splitlines()), "")
    return SaddlesError(
        f"{kind.__name__} cannot be made of these arguments ({type(error).__name__}: {first}). See its documentation."
    )


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if kind is int:
        return is_whole(value)
    return isinstance(value, kind)
