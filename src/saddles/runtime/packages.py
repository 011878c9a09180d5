"""Packages that only some labs need."""

import importlib

from saddles.errors import MissingPackageError

EXTRAS = {
    "cvxpy": "labs", "diffrax": "labs", "equinox": "labs", "jax": "labs", "jaxlib": "labs",
    "PIL": "probe", "accelerate": "probe", "peft": "probe", "safetensors": "probe", "tokenizers": "probe",
    "torch": "probe", "transformers": "probe",
    "dask": "sweep", "datasets": "hub", "distributed": "sweep", "lightning": "lightning", "nicegui": "explorer",
    "timm": "timm",
}  # fmt: skip
"""Package -> the extra of saddles that brings it."""


def extra_for(error: ModuleNotFoundError) -> str | None:
    """The extra of saddles that brings the package that was not found; None where none does."""
    return EXTRAS.get((error.name or "").partition(".")[0])


def need_package(name: str, extra: str) -> None:
    """Refuse to start without a package, and say which extra of saddles brings it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise not_installed(error, extra) from error


def not_installed(error: ModuleNotFoundError, extra: str) -> MissingPackageError:
    """What to install."""
    name = (error.name or "").partition(".")[0]
    return MissingPackageError(
        f"The package {name} is needed here and is not installed. pip install 'saddles[{extra}]'."
    )
