"""Functions of a user's own, as compiled programs must see them.

JAX keeps a compiled program by the function that it was made of, and everything that the function reads besides its
arguments is a constant there. A variable of a notebook, an attribute or a closure that changes between two calls would
give the number of before. `as_it_is` makes such a function another one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

OWN = "saddles."
"""Functions of the package read nothing that changes."""


@dataclass(frozen=True, eq=False)
class AsItIs:
    """A function beside what it reads: equal to another where both are the same, object by object."""

    function: Callable[..., Any]
    parts: tuple[object, ...]

    def __call__(self, *args: Any, **words: Any) -> Any:  # whatever the function takes
        return self.function(*args, **words)

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.parts)))

    def __eq__(self, other: object) -> bool:
        # Arrays have no plain `==`, so that all parts are compared by identity.
        return isinstance(other, AsItIs) and [*map(id, self.parts)] == [*map(id, other.parts)]


def as_it_is(function: Any) -> Any:  # a callable, which comes back as one
    """A callable that is equal to itself as long as what it reads is the same.

    Looked at are the attributes of its object, the variables that it closes over and the global ones that it names,
    also through functions of the same module, and what these hold in turn, one level deep. An array that is changed in
    place stays the same object: give arrays as arguments.
    """
    if isinstance(function, AsItIs) or (getattr(function, "__module__", None) or "").startswith(OWN):
        return function
    inner = function.func if isinstance(function, partial) else function
    owner = inner.__self__ if isinstance(inner, MethodType) else inner
    code = getattr(inner, "__func__", inner)
    if not isinstance(code, FunctionType):
        code = type(inner).__call__
    read = [*_read(code, set())] if isinstance(code, FunctionType) else []
    if not isinstance(owner, FunctionType) and not _by_value(owner):
        # Where its attributes cannot be looked at it is new each time, and compiled anew.
        attributes = getattr(owner, "__dict__", None)
        read += [object()] if attributes is None and not _hashable(owner) else [*(attributes or {}).values()]
    held = [part for one in read for part in _within(one)]
    if not held and _hashable(function):
        return function
    identity = (inner.__func__, owner) if isinstance(inner, MethodType) else (function,)
    return AsItIs(function, (*identity, *held))


def _hashable(thing: object) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return True


def _by_value(thing: object) -> bool:
    """Whether it is a frozen dataclass, whose hash tells its contents; one that a class writes itself may not."""
    facts = getattr(type(thing), "__dataclass_params__", None)
    return facts is not None and facts.frozen and _hashable(thing)


def _read(function: FunctionType, seen: set[int]) -> Iterator[object]:
    """What a function reads besides its arguments; of other functions of its module, what they read."""
    if id(function) in seen:
        return
    seen.add(id(function))
    found = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # empty ones have none
    found += [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    for one in found:
        yield one
        if isinstance(one, FunctionType) and one.__globals__ is function.__globals__:
            yield from _read(one, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _within(thing: object) -> Iterator[object]:
    """A thing and what it holds; modules, classes and functions hold nothing that counts."""
    yield thing
    if isinstance(thing, dict):  # other mappings, such as an xarray.Dataset, may make their values anew each time
        yield from thing.values()
    elif isinstance(thing, list | tuple):
        yield from thing
    elif not isinstance(thing, ModuleType | type | FunctionType):
        yield from getattr(thing, "__dict__", {}).values()
