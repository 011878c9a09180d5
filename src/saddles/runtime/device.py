"""Choosing where JAX computes. JAX itself is imported where it is used: commands on real models do without."""

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def environment_that_keeps_programs() -> dict[str, str]:
    """Variables with which a new process keeps compiled programs in the user's cache folder, as set here already if so.

    Small programs take 0.02 to 0.5 s each, and an experiment has dozens: loading one takes a few ms. The checks that
    diffrax makes of its arguments (`saddles.solvers.ode` gives it sorted times and a step ahead) call back to Python,
    and JAX keeps no program that does: in their place a NaN would end a run as diverged.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    usual = {
        "JAX_COMPILATION_CACHE_DIR": str(Path(home) / "saddles" / "jax"),
        SHORTEST: "0.01",
        "EQX_ON_ERROR": "nan",
    }
    return {name: os.environ.get(name, value) for name, value in usual.items()}


def compiled_programs() -> str:
    """The folder in which compiled programs are kept, and how much is in it.

    It has no limit. With JAX's own (`jax_compilation_cache_max_size`) each new program costs a look at all others, and
    one without the file of its last use (from a process without the limit, or a killed one) ends the writing for good.
    """
    folder = environment_that_keeps_programs()["JAX_COMPILATION_CACHE_DIR"]
    sizes = []
    with suppress(OSError), os.scandir(folder) as found:
        for file in found:
            with suppress(FileNotFoundError):  # removed meanwhile
                sizes.append(file.stat().st_size)
    return f"{folder} ({f'{len(sizes):,} files, {sum(sizes) / 1e6:.1f} MB' if sizes else 'none yet'})"


def keep_compiled_programs() -> None:
    """Store compiled programs in the user's cache folder, unless JAX was told another place.

    Where JAX is not loaded yet, it reads this from the environment when it is, if ever. Memory of a GPU is taken as it
    is needed, unless the environment says otherwise: to take most of it at once, as JAX does, takes two seconds.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # JAX writes programs in place: another process may find one half written, or one that a kill left so. It compiles
    # that program itself then, and users need not hear of it; nor, dozens of times, that the disk of the cache is full.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    wanted = environment_that_keeps_programs()
    if "jax" not in sys.modules:
        os.environ.update(wanted)
        return
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", wanted["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(wanted[SHORTEST]))
