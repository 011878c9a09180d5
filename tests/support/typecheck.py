"""The type checker that pytest puts on every function of saddles: whole numbers count as real ones.

jaxtyping's decorator compiles four functions for each one that it checks, binds the arguments of every call, whether or
not there are shapes to check, and begins anew for every closure. Here it is left with the shapes; everything else goes
to beartype directly.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

CLOSURES = 20
"""Closures over one piece of code that are checked: solvers make thousands of them."""
CALLS = 500
"""Calls of one function whose shapes are checked: solvers make a hundred thousand."""
COMPILED = {"saddles.transformers.attention_kernels"}
"""Modules whose functions are never called: Triton reads their source."""
_made: Counter[CodeType] = Counter()


def direct(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """jaxtyping's decorator for classes and for functions with shapes, beartype for all other functions."""

    def decorator(*, typechecker: Callable[..., Any]) -> Callable[..., Any]:
        def decorate(thing: Any) -> Any:
            if not isinstance(thing, FunctionType):
                return jaxtyped(typechecker=typechecker)(thing)
            if thing.__module__ in COMPILED:
                return thing
            if "<locals>" in thing.__qualname__:
                _made[thing.__code__] += 1
                if _made[thing.__code__] > CLOSURES:
                    return thing
            known = {name: _read(text, thing) for name, text in thing.__annotations__.items()}
            if any(map(_has_shape, known.values())):
                return _first_calls(thing, jaxtyped(typechecker=typechecker)(thing))
            return _with_beartype(thing, known)

        return decorate

    return decorator


def _first_calls(function: FunctionType, with_checks: Callable[..., Any]) -> Callable[..., Any]:
    left = CALLS

    @functools.wraps(function)
    def limited(*arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        return (with_checks if left >= 0 else function)(*arguments, **keywords)

    return limited


def _read(annotation: Any, function: FunctionType) -> Any:
    """An annotation that may be text; Any where it names something that only type checkers import."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)
    except (NameError, AttributeError):
        return Any


def _has_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return True
    return any(map(_has_shape, get_args(annotation)))


def _with_beartype(function: FunctionType, annotations: dict[str, Any]) -> Any:
    written = function.__annotations__
    function.__annotations__ = annotations
    wrapped = checked(function)
    function.__annotations__ = wrapped.__annotations__ = written
    return wrapped
