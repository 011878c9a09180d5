"""Choosing where JAX computes. JAX itself is imported where it is used: commands on real models do without."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from saddles.errors import SaddlesError


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """Compute on "cpu", "gpu" or "gpu:1" inside this block; None leaves JAX's default."""
    if name is None:
        yield
        return
    import jax

    platform, _, number = name.partition(":")
    try:
        device = jax.devices(platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        here = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise SaddlesError.must_be("device", f"one of this machine's ({here})", name) from error
    with jax.default_device(device):
        yield


def devices() -> list[str]:
    """The devices JAX sees, such as `cpu:0` or `gpu:0 (NVIDIA H200)`; none where JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        return []
    import jax

    return [f"{d.platform}:{d.id}" + ("" if d.platform == "cpu" else f" ({d.device_kind})") for d in jax.devices()]
