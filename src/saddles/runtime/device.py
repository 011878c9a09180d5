"""Choosing where JAX computes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from saddles.errors import SaddlesError


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
        raise SaddlesError.must_be("device", f"one of this machine's ({here})", name) from error
    with jax.default_device(device):
        yield


def devices() -> list[str]:
    """The devices JAX sees, such as `cpu:0` or `gpu:0 (NVIDIA H200)`."""
    return [f"{d.platform}:{d.id}" + ("" if d.platform == "cpu" else f" ({d.device_kind})") for d in jax.devices()]


def keep_compiled_programs() -> None:
    """Store compiled programs in the user's cache folder, unless JAX was told another place."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "saddles" / "jax"))
    # A GPU's small programs take 0.05 to 0.5 s each, and an experiment has dozens: loading one takes a few ms.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
