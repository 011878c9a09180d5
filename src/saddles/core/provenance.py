"""What made a result: versions, machine, and readable descriptions of objects."""

import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping

import numpy as np

import saddles

SHOWN = 4
"""Packages that a message about versions names."""

_PACKAGES = ("jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy", "xarray", "zarr", "torch")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers.

    That of saddles is its own `__version__`: a source tree that is not installed has no other.
    """
    return {"python": platform.python_version(), "saddles": saddles.__version__, **_installed()}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str] | None:
    """Packages whose versions differ, as text for both sides, saddles first; None where none does."""
    names = [name for name in {"saddles": "", **before, **now} if before.get(name) != now.get(name)]
    if not names:
        return None
    old, new = (
        ", ".join(f"{name} {side.get(name, '(none)')}" for name in names[:SHOWN]) + ", …" * (len(names) > SHOWN)
        for side in (before, now)
    )
    return old, new


@functools.cache
def _installed() -> dict[str, str]:
    known = {}
    for name in _PACKAGES:
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return known


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def machine() -> dict[str, str | int | float | None]:
    """Facts about this machine that explain a wall time; nothing that identifies it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": cores,
        "memory_gib": _memory_gib(),
    }


def describe(thing: object) -> str:
    """Write a frozen object as `Name(field=value, ...)`, arrays by their shape."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        plain = type(thing).__repr__ is object.__repr__  # its repr is nothing but an address
        return f"{type(thing).__name__}()" if plain else _repr(thing)
    shown = [f"{field.name}={_value(getattr(thing, field.name))}" for field in dataclasses.fields(thing) if field.repr]
    return f"{type(thing).__name__}({', '.join(shown)})"


def _value(value: object) -> str:
    if isinstance(value, np.ndarray) and value.size > 12:
        return f"array{value.shape}"
    if isinstance(value, np.generic | np.ndarray):
        return repr(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return describe(value)
    return _repr(value)


def _repr(value: object) -> str:
    """The repr without addresses, which differ from run to run: <function f>, not <function f at 0x7f…>."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
