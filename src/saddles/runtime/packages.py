"""Packages that only some labs need."""

import importlib

from saddles.errors import SaddlesError


def need_package(name: str, extra: str) -> None:
    """Refuse to start without a package, and say which extra of saddles brings it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SaddlesError(
            f"The package {error.name or name} is needed here and is not installed. pip install 'saddles[{extra}]'."
        ) from error
