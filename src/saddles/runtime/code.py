"""A digest of a user's own code, which changes when a cell of a notebook or a file is edited.

It stands for functions, and for what they use: other functions, classes and plain values of their own module, of the
package that it belongs to, and of files that are not installed. What installed packages do is left to their versions.
"""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic)


def code_digest(*things: object) -> str:
    """Ten characters that stand for some functions and classes and for what they use.

    Comments, and the lines on which the code stands, do not count. Nor do objects of other packages that the functions
    read, except NumPy arrays. A list or a dictionary counts with what it holds now.
    """
    whole = hashlib.sha256()
    reader = _Reader({_package(getattr(_innermost(thing), "__module__", "")) for thing in things})
    with suppress(RecursionError):  # what is nested that deep counts as far as it was read
        for word in reader.read(things):
            whole.update(word + b"\0")
    return whole.hexdigest()[:10]


class _Reader:
    """Reads each thing once, in the order in which they are met."""

    def __init__(self, packages: set[str]) -> None:
        self.packages, self.seen = packages, set[int]()
        self.kept: list[object] = []  # their ids are those of other things once they are gone

    def read(self, thing: Any) -> Iterator[bytes]:
        """Words that stand for a thing; none where it is of another package."""
        if isinstance(thing, PLAIN):
            yield repr(thing).encode("utf-8", "backslashreplace")
            return
        if id(thing) in self.seen:
            return
        self.seen.add(id(thing))
        self.kept.append(thing)
        if isinstance(thing, list | tuple):
            for one in thing:
                yield from self.read(one)
        elif isinstance(thing, set | frozenset):  # in another order in each process
            yield from sorted(b"".join(self.read(one)) for one in thing)
        elif isinstance(thing, dict):
            for pair in thing.items():
                yield from self.read(pair)
        elif isinstance(thing, np.ndarray):
            yield f"{thing.dtype}{thing.shape}".encode() + (b"" if thing.dtype.hasobject else thing.tobytes())
        elif isinstance(thing, partial):
            yield from self.read([thing.func, thing.args, thing.keywords])
        elif isinstance(thing, MethodType):
            yield from self.read([thing.__func__, thing.__self__])
        elif isinstance(thing, property):
            yield from self.read([thing.fget])
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        elif getattr_static(thing, "__wrapped__", None) is not None:  # jax.jit, functools.cache, class methods
            yield from self.read(thing.__wrapped__)
        elif not isinstance(thing, ModuleType):
            yield from self._object(thing)

    def _object(self, thing: Any) -> Iterator[bytes]:
        kind = thing if isinstance(thing, type) else type(thing)
        if not self._mine(kind.__module__):
            return
        yield kind.__qualname__.encode()
        if thing is not kind:
            yield from self.read([kind, getattr(thing, "__dict__", {})])
            return
        yield from self.read(list(kind.__bases__))
        for name, value in vars(kind).items():
            if not name.startswith("__") or isinstance(value, FunctionType):
                yield from self.read([name, value])

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        if not self._mine(function.__module__):
            return
        yield from self._code(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # not the empty ones
        yield from self.read([function.__defaults__, function.__kwdefaults__, cells])
        names = [*_names(function.__code__)]
        for name in names:
            found = function.__globals__.get(name)
            if isinstance(found, ModuleType) and self._mine(found.__name__):
                yield from self.read([vars(found)[one] for one in names if one in vars(found)])
            elif name in function.__globals__:
                yield from self.read(found)

    def _code(self, code: CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield from self.read([code.co_names, code.co_varnames])
        for one in code.co_consts:
            yield from self._code(one) if isinstance(one, CodeType) else self.read(one)

    def _mine(self, module: object) -> bool:
        name = _package(module)
        if name in self.packages:
            return name != "saddles"
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        return bool(file) and name not in {*sys.stdlib_module_names, "saddles"} and "-packages" not in file


def _package(module: object) -> str:
    return str(module or "").partition(".")[0]


def _innermost(thing: Any) -> Any:
    return _innermost(thing.func) if isinstance(thing, partial) else thing


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)
