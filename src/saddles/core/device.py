"""Choosing where JAX computes."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from saddles.core.errors import SaddlesError


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """Compute on "cpu", "gpu" or "gpu:1" inside this block; None leaves JAX's default."""
    if name is None:
        yield
        return
    platform, _, number = name.partition(":")
    try:
        device = jax.devices(platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        here = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise SaddlesError.about(f"device={name!r} came", f"this machine has {here}", "leave it out") from error
    with jax.default_device(device):
        yield
